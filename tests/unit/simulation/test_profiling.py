"""What the profiler finds on links whose numbers are known."""

import pytest

from coarse.protocol.config import MeasuredRouting
from coarse.protocol.plan import Cluster
from coarse.simulation.profiling import measured_facts, profile_proxy, ring_bytes_per_s, together_s
from coarse.simulation.sites import Path, Site
from coarse.strategy.builtin import Coarse
from coarse.strategy.routing import NEVER_BYTES
from tests.unit.simulation.small_jobs import BYTES_PER_S, LATENCY_S, link, move_s

MB = 1_000_000
ROUTING = MeasuredRouting(min_partition_bytes=1 << 18, max_partition_bytes=1 << 23, tie_tolerance=0.0)


def two_proxies(local: tuple[float, float], remote: tuple[float, float]) -> Site:
    """One client and two devices; (latency, rate) of the way to each, the same both ways."""
    ways = {(0, 0): local, (0, 1): remote}
    links = tuple(link(f"{role} {ends}", *way) for role in ("push", "pull") for ends, way in ways.items())
    push: dict[tuple[int, int], Path] = {(0, 0): (0,), (0, 1): (1,)}
    pull: dict[tuple[int, int], Path] = {(0, 0): (2,), (0, 1): (3,)}
    return Site(
        links=links, push=push, pull=pull, between_devices={}, between_workers={}, adder_bytes_per_s=BYTES_PER_S
    )


def table_of(site: Site, routing: MeasuredRouting = ROUTING):
    cluster = Cluster(worker_nodes=(0,), device_nodes=(0, 0), local_devices=(0,))
    (table,) = measured_facts(site, cluster, Coarse(routing=routing))
    return table


def test_transfers_on_links_of_their_own_take_as_long_together_as_alone():
    links = [link("one"), link("two")]
    assert together_s(links, [(0,), (1,)], MB) == pytest.approx(move_s(MB))
    assert together_s(links, [], MB) == 0.0


def test_transfers_that_share_a_link_take_longer_together():
    assert together_s([link("one")], [(0,), (0,)], MB) == pytest.approx(LATENCY_S + 2 * MB / BYTES_PER_S)


def test_the_rate_of_a_ring_is_that_of_its_slowest_hop_while_all_send():
    links = [link("fast"), link("slow", LATENCY_S, BYTES_PER_S / 4)]
    assert ring_bytes_per_s(links, [(0,), (1,)], MB) == pytest.approx(MB / (LATENCY_S + 4 * MB / BYTES_PER_S))


def test_a_profile_has_the_latency_of_the_push_and_the_seconds_of_both_ways_at_once():
    shared = Site(
        links=(link("bus"), link("port")),
        push={(0, 0): (0, 1)},
        pull={(0, 0): (0,)},
        between_devices={},
        between_workers={},
        adder_bytes_per_s=BYTES_PER_S,
    )
    profile = profile_proxy(shared, 0, 0, is_local=True, sizes=(MB, 2 * MB))
    assert profile.latency_s == pytest.approx(2 * LATENCY_S)
    assert [nbytes for nbytes, _ in profile.seconds_by_nbytes] == [MB, 2 * MB]
    assert profile.seconds_by_nbytes[1][1] == pytest.approx(LATENCY_S + 4 * MB / BYTES_PER_S, rel=0.01)


def test_the_nearer_proxy_takes_all_where_it_is_no_slower():
    table = table_of(two_proxies((1e-6, 2e9), (1e-5, 1e9)))
    assert (table.threshold_bytes, table.latency_proxy, table.bandwidth_proxy) == (0, 0, 0)


def test_small_tensors_go_to_the_near_proxy_and_large_ones_to_the_wide_one_from_where_their_times_cross():
    """1 us + n/1e9 = 51 us + n/2e9 at n = 100,000."""
    table = table_of(two_proxies((1e-6, 1e9), (51e-6, 2e9)))
    assert (table.latency_proxy, table.bandwidth_proxy) == (0, 1)
    assert table.threshold_bytes == pytest.approx(100_000, rel=1e-3)


def test_the_threshold_is_found_below_the_smallest_partition_too():
    table = table_of(two_proxies((1e-6, 1e9), (6e-6, 2e9)))
    assert table.threshold_bytes == pytest.approx(10_000, rel=1e-2)
    assert table.threshold_bytes < ROUTING.min_partition_bytes <= table.partition_bytes


def test_a_tie_is_the_local_proxys():
    table = table_of(two_proxies((1e-5, 1e9), (1e-5, 1.05e9)), MeasuredRouting(tie_tolerance=0.1))
    assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (0, 0, 0)


def test_partitions_are_no_larger_than_full_bandwidth_takes_and_stay_within_their_bounds():
    """With 10 us of start-up, 95 % of the best rate of 8 MiB needs 19 times 10 us of streaming."""
    assert table_of(two_proxies((1e-5, 1e9), (1e-4, 1e9))).partition_bytes == 1 << 18
    assert table_of(two_proxies((1e-4, 1e9), (1e-3, 1e9))).partition_bytes == 1 << 21
    assert table_of(two_proxies((1e-2, 1e9), (1e-1, 1e9))).partition_bytes == 1 << 23


def test_no_threshold_is_above_every_tensor_unless_the_wide_proxy_never_pays():
    assert table_of(two_proxies((1e-6, 1e9), (51e-6, 2e9))).threshold_bytes < NEVER_BYTES
