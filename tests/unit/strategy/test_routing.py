import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.protocol.units import KIB, MIB
from coarse.strategy.routing import (
    NEVER_BYTES,
    ProxyProfile,
    crossing_bytes,
    derive_table,
    full_bandwidth_bytes,
    proxy_for,
)

SIZES = tuple(2**exponent for exponent in range(12, 27, 2))  # 4 KiB to 64 MiB


def linear(device, *, latency_s, bytes_per_s, is_local=False, sizes=SIZES):
    """A proxy behind a link that costs latency plus bytes over rate."""
    times = tuple((nbytes, latency_s + nbytes / bytes_per_s) for nbytes in sizes)
    return ProxyProfile(
        device=device, is_local=is_local, latency_s=latency_s, seconds_by_nbytes=times
    )


def timed(device, *times_s, is_local=False):
    """A proxy measured at 100, 200, ... bytes."""
    pairs = tuple((100 * (step + 1), time_s) for step, time_s in enumerate(times_s))
    return ProxyProfile(device=device, is_local=is_local, latency_s=0.0, seconds_by_nbytes=pairs)


def derive(profiles, tie_tolerance=0.1, smallest=256 * KIB, largest=8 * MIB):
    return derive_table(
        profiles,
        tie_tolerance=tie_tolerance,
        min_partition_bytes=smallest,
        max_partition_bytes=largest,
    )


def test_anti_locality_sends_small_tensors_near_and_large_ones_far():
    """V100s of AWS p3 (COARSE figure 15b): local latency is better, remote bandwidth higher."""
    local = linear(0, latency_s=10e-6, bytes_per_s=8e9, is_local=True)
    remote = linear(1, latency_s=30e-6, bytes_per_s=12e9)
    table = derive([local, remote])
    assert (table.latency_proxy, table.bandwidth_proxy) == (0, 1)
    assert table.threshold_bytes == pytest.approx(20e-6 / (1 / 8e9 - 1 / 12e9), abs=1)
    assert proxy_for(4 * KIB, table) == 0
    assert proxy_for(64 * MIB, table) == 1


def test_locality_sends_everything_near():
    """P100s of SDSC (COARSE figure 15c): the local proxy is better in both."""
    local = linear(2, latency_s=10e-6, bytes_per_s=12e9, is_local=True)
    remote = linear(0, latency_s=30e-6, bytes_per_s=8e9)
    table = derive([remote, local])
    assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (2, 2, 0)


def test_ties_go_to_the_local_proxy():
    """T4s of AWS (COARSE figure 15a): near or far makes no difference."""
    local = linear(1, latency_s=10.5e-6, bytes_per_s=9.6e9, is_local=True)
    remote = linear(0, latency_s=10e-6, bytes_per_s=10e9)
    table = derive([remote, local])
    assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (1, 1, 0)
    strict = derive([remote, local], tie_tolerance=0.0)
    assert (strict.latency_proxy, strict.bandwidth_proxy) == (0, 0)


def test_equal_remote_proxies_go_to_the_lowest_device():
    profiles = [linear(device, latency_s=1e-6, bytes_per_s=1e9) for device in (3, 1, 2)]
    table = derive(profiles)
    assert (table.latency_proxy, table.bandwidth_proxy) == (1, 1)


def test_a_lone_proxy_takes_everything():
    assert derive([linear(0, latency_s=1e-6, bytes_per_s=1e9, is_local=True)]).bandwidth_proxy == 0


def test_the_crossing_lies_between_measured_sizes_by_interpolation():
    assert crossing_bytes(timed(0, 1.0, 5.0), timed(1, 2.0, 3.0)) == 133


def test_the_crossing_is_zero_where_the_bandwidth_proxy_is_never_slower():
    assert crossing_bytes(timed(0, 2.0, 5.0), timed(1, 2.0, 3.0)) == 0


def test_the_crossing_is_never_where_the_bandwidth_proxy_stays_slower():
    assert crossing_bytes(timed(0, 1.0, 2.0), timed(1, 2.0, 2.1)) == NEVER_BYTES


def test_the_last_of_several_crossings_counts():
    assert crossing_bytes(timed(0, 1.0, 3.0, 3.0, 6.0), timed(1, 2.0, 2.0, 4.0, 5.0)) == 350


def test_a_local_proxy_tied_in_bandwidth_but_slower_everywhere_is_never_used():
    remote = linear(0, latency_s=1e-6, bytes_per_s=10e9)
    local = linear(1, latency_s=9e-6, bytes_per_s=9.9e9, is_local=True)
    table = derive([remote, local])
    assert (table.latency_proxy, table.bandwidth_proxy) == (0, 1)
    assert table.threshold_bytes == NEVER_BYTES
    assert proxy_for(100 * MIB, table) == 0


times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8)


@given(times, st.data())
def test_a_slower_bandwidth_proxy_never_lowers_the_crossing(latency_s, data):
    num_sizes = len(latency_s)
    of_sizes = st.lists(st.floats(1e-6, 1.0), min_size=num_sizes, max_size=num_sizes)
    bandwidth_s = data.draw(of_sizes)
    slower_s = [base + more for base, more in zip(bandwidth_s, data.draw(of_sizes), strict=True)]
    faster = crossing_bytes(timed(0, *latency_s), timed(1, *bandwidth_s))
    slower = crossing_bytes(timed(0, *latency_s), timed(1, *slower_s))
    assert slower >= faster - 1


@given(times, st.data())
def test_beyond_the_crossing_the_bandwidth_proxy_is_nowhere_slower(latency_s, data):
    num_sizes = len(latency_s)
    bandwidth_s = data.draw(st.lists(st.floats(1e-6, 1.0), min_size=num_sizes, max_size=num_sizes))
    latency, bandwidth = timed(0, *latency_s), timed(1, *bandwidth_s)
    threshold_bytes = crossing_bytes(latency, bandwidth)
    for (nbytes, slow_s), (_, fast_s) in zip(
        latency.seconds_by_nbytes, bandwidth.seconds_by_nbytes, strict=True
    ):
        assert nbytes <= threshold_bytes + 1 or fast_s <= slow_s


def test_the_partition_is_the_smallest_size_at_full_bandwidth():
    # 100/2=50, 200/2.1=95.2, 300/3=100 bytes/s: 95 % of 100 is reached at 200 bytes
    assert full_bandwidth_bytes(timed(0, 2.0, 2.1, 3.0)) == 200
    assert full_bandwidth_bytes(timed(0, 2.0, 2.2, 3.0)) == 300


def test_full_bandwidth_counts_even_where_larger_transfers_slow_down_again():
    assert full_bandwidth_bytes(timed(0, 2.0, 2.0, 6.0)) == 200


def test_the_partition_is_that_of_the_bandwidth_proxy():
    local = linear(0, latency_s=1e-6, bytes_per_s=8e9, is_local=True)
    remote = linear(1, latency_s=10e-6, bytes_per_s=12e9)
    table = derive([local, remote], smallest=1, largest=2**40)
    assert table.partition_bytes == full_bandwidth_bytes(remote) > full_bandwidth_bytes(local)


@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e11))
def test_the_partition_stays_within_its_limits(latency_s, bytes_per_s):
    profile = linear(0, latency_s=latency_s, bytes_per_s=bytes_per_s, is_local=True)
    table = derive([profile], smallest=64 * KIB, largest=MIB)
    assert 64 * KIB <= table.partition_bytes <= MIB


def test_a_longer_start_up_never_makes_partitions_smaller():
    sizes = [
        full_bandwidth_bytes(linear(0, latency_s=latency_s, bytes_per_s=1e10))
        for latency_s in (0.0, 1e-6, 1e-5, 1e-4, 1e-3)
    ]
    assert sizes == sorted(sizes)


def test_proxies_measured_at_different_sizes_are_refused():
    short = linear(1, latency_s=1e-6, bytes_per_s=1e9, sizes=SIZES[:2])
    with pytest.raises(ValueError, match="same sizes"):
        derive([linear(0, latency_s=1e-6, bytes_per_s=1e9), short])
    with pytest.raises(ValueError, match="same sizes"):
        derive([])


@pytest.mark.parametrize(
    ("latency_s", "times_s"),
    [
        (1.0, ()),
        (1.0, ((0, 1.0),)),
        (1.0, ((2, 1.0), (2, 1.0))),
        (-1.0, ((1, 1.0),)),
        (0.0, ((1, 0.0),)),
    ],
)
def test_a_profile_that_cannot_be_is_refused(latency_s, times_s):
    with pytest.raises(ValueError, match="device 4"):
        ProxyProfile(device=4, is_local=True, latency_s=latency_s, seconds_by_nbytes=times_s)


@pytest.mark.parametrize("num_proxies", [2, 3, 4, 8])
def test_equal_clients_spread_over_proxies_that_are_equally_fast(num_proxies):
    """Each finds its own switch's proxy slower than all others (COARSE figure 8a), which are alike."""
    chosen = []
    for client in range(num_proxies):
        rates = [8e9 if device == client else 12e9 for device in range(num_proxies)]
        profiles = [
            linear(device, latency_s=10e-6, bytes_per_s=rate, is_local=device == client)
            for device, rate in enumerate(rates)
        ]
        chosen.append(derive(profiles).bandwidth_proxy)
    assert sorted(chosen) == list(range(num_proxies))
