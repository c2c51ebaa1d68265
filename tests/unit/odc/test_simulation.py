"""On-demand communication on a virtual clock: the paper's formula, bytes by the tables, a slow worker, full slots."""

import itertools
from dataclasses import replace

import pytest

from coarse.hardware.presets import load_preset
from coarse.odc.layout import EVERYTHING, OdcDeclaration, OdcUnit
from coarse.odc.simulation.machines import Microbatch, OdcRun, SimulatedOdc
from coarse.odc.simulation.sites import bare_site, host_site
from coarse.protocol.dtypes import DType
from coarse.strategy.sharding import Sum
from tests.support.odc_cluster import placement_of

NUM_UNITS = 3
ELEMENTS = 1000


def run(
    nodes: tuple[int, ...], work: list[list[list[float]]], rates: dict[str, float] | None = None, **options: int
) -> OdcRun:
    """`work`: seconds of each microbatch, a third of which is forward; `rates`: see bare_site."""
    settings = {"cache_bytes": 0, "num_slots": 4, **options}
    declaration = OdcDeclaration(
        members=tuple(range(len(nodes))), sum=Sum.INT64, top=18,
        units=tuple(OdcUnit(4 * ELEMENTS, (ELEMENTS,), int(DType.FLOAT32)) for _ in range(NUM_UNITS)), **settings,
    )  # fmt: skip
    placement = placement_of(nodes, tuple(sorted(set(nodes))))
    job = SimulatedOdc(placement, declaration, bare_site(placement, **(rates or {})))
    per_unit = [
        [[Microbatch(s / NUM_UNITS / 3, 2 * s / NUM_UNITS / 3) for s in own] for own in minibatch] for minibatch in work
    ]
    return job.run(per_unit)


def test_a_minibatch_takes_the_slowest_workers_sum():
    """ODC: max_d sum_m sum_l T, where communication takes no time."""
    work = [[[3.0, 1.0], [5.0], [], [1.0, 1.0, 1.0]], [[1.0], [1.0], [9.0], []]]
    for nodes in ((0, 0, 0, 0), (0, 0, 1, 1)):
        for cache_bytes in (0, EVERYTHING):
            found = run(nodes, work, cache_bytes=cache_bytes)
            assert found.ended_s == pytest.approx((5.0, 14.0))
            assert found.computed_s == pytest.approx((5.0, 6.0, 9.0, 3.0))
            assert found.idle_share == pytest.approx(1 - 23.0 / (4 * 14.0))


def test_bytes_between_nodes_are_those_of_the_table():
    """Docs/odc.md, The node cache: N = 2, L = 2, M = 4."""
    work = [[[1.0] * 4] * 4]
    shards = NUM_UNITS * 4 * ELEMENTS * 4  # W
    found = run((0, 0, 1, 1), work)
    assert found.sent_bytes == pytest.approx([4 * 2 * (2 + 1) * shards / 2] * 2)
    kept = run((0, 0, 1, 1), work, cache_bytes=EVERYTHING)
    assert kept.sent_bytes == pytest.approx([shards / 2 + 4 * shards / 2] * 2)


def test_a_slow_network_costs_what_its_rate_says_and_less_with_a_cache():
    work, rates = [[[0.0] * 4] * 4], {"node_bytes_per_s": 1e6}
    plain, kept = (run((0, 0, 1, 1), work, rates, cache_bytes=cache) for cache in (0, EVERYTHING))
    assert plain.ended_s[0] >= plain.sent_bytes[0] / 1e6
    assert plain.ended_s[0] / kept.ended_s[0] > 3


def test_units_may_take_unlike_times():
    work, placement = Microbatch((1.0, 2.0, 3.0), (2.0, 4.0, 6.0)), placement_of((0, 1), (0, 1))
    units = tuple(OdcUnit(4 * ELEMENTS, (ELEMENTS,), int(DType.FLOAT32)) for _ in range(NUM_UNITS))
    declaration = OdcDeclaration(members=(0, 1), units=units, sum=Sum.INT64, cache_bytes=0, top=18, num_slots=4)
    found = SimulatedOdc(placement, declaration, bare_site(placement)).run([[[work], [work]]])
    assert found.ended_s == pytest.approx((18.0,))


def test_a_host_is_its_nodes_memory_device():
    machine = replace(load_preset("fcdp-a40-10gbe"), num_nodes=2)
    site = host_site(machine, (0, 1), 4)
    assert site.pull[5, 1] == machine.host_path("gpu9", to_host=False)
    assert site.push[5, 1] == machine.host_path("gpu9", to_host=True)
    assert site.between_devices[0, 1] == machine.path("gpu0", "gpu8")
    assert site.adder_bytes_per_s == machine.memory_device.adder_bytes_per_s


def test_full_slots_hold_their_worker_and_nobody_else():
    """The device takes a second for each unit's piece, of two rows; the other worker has none."""
    rates = {"add_bytes_per_s": 2 * 4 * ELEMENTS}
    few, many = (run((0, 0), [[[0.0] * 4, [1.0]]], rates, num_slots=slots) for slots in (1, 12))
    assert few.ended_s[0] == pytest.approx(many.ended_s[0], rel=0.3)
    assert few.ended_s[0] >= 4 * NUM_UNITS


def test_a_constantly_slower_worker_gains_nothing_and_random_stalls_do():
    """Of two workers one is three times as slow: max of sums equals sum of maxima. Stalls of the same mean that hit
    either in turn are evened out."""
    slower = [[[1.0] * 6, [3.0] * 6]]
    in_turn = [[[1.0, 3.0] * 3, [3.0, 1.0] * 3]]
    lockstep = sum(max(pair) for pair in zip(*slower[0], strict=True))
    assert run((0, 0), slower).ended_s[0] == pytest.approx(lockstep)
    assert lockstep == sum(max(pair) for pair in zip(*in_turn[0], strict=True))
    assert run((0, 0), in_turn).ended_s[0] == pytest.approx(lockstep * 2 / 3)


def test_minibatches_follow_one_another_for_any_counts():
    for counts in itertools.product((0, 1, 3), repeat=3):
        work = [[[1.0] * count for count in counts], [[1.0] * count for count in reversed(counts)]]
        assert run((0, 0, 1), work).ended_s == pytest.approx((max(counts), 2 * max(counts)), abs=1e-9)


def test_messages_of_a_device_to_several_nodes_overlap_as_they_do_live():
    """So the links of each of many nodes are as busy as those of each of two. A device that sent one message after the
    other left them idle for a quarter of the time on 4 nodes and for longer on 8."""
    def per_byte_s(num_nodes: int) -> float:
        found = run(tuple(range(num_nodes)), [[[0.0] * 2] * num_nodes] * 2, {"node_bytes_per_s": 1e6})
        return found.ended_s[1] / found.sent_bytes[0]

    of_two = per_byte_s(2)
    assert [per_byte_s(num_nodes) for num_nodes in (3, 4, 8)] == pytest.approx([of_two] * 3, rel=0.05)
