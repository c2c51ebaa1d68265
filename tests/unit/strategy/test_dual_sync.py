from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.strategy.dual_sync import (
    IterationTimes,
    SyncRates,
    best_proxy_bytes,
    split_keys,
    train_s,
)

TIMES = IterationTimes(forward_s=1.0, backward_s=2.0)
EQUAL = SyncRates(num_workers=2, num_devices=2, worker_bytes_per_s=1.0, proxy_bytes_per_s=1.0)
SECONDS = st.floats(0, 100)
RATES = st.builds(
    SyncRates,
    num_workers=st.integers(1, 8),
    num_devices=st.integers(1, 8),
    worker_bytes_per_s=st.floats(0.01, 100),
    proxy_bytes_per_s=st.floats(0.01, 100),
)


def brute_force(nbytes, times, rates):
    """The m of least T_train, the smallest of equal ones, by trying all."""
    return min(range(nbytes + 1), key=lambda m: (train_s(nbytes, m, times, rates), m))


def test_the_iteration_time_is_the_papers_formula():
    rates = SyncRates(num_workers=4, num_devices=4, worker_bytes_per_s=3.0, proxy_bytes_per_s=2.0)
    sync_gpu_s, sync_proxy_s = 2 * 3 / 4 * (100 - 60) / 3.0, 2 * 3 / 4 * 60 / 2.0
    assert train_s(100, 60, TIMES, rates) == max(1 + 2 + sync_gpu_s, 1 + sync_proxy_s)


@given(
    nbytes=st.integers(0, 60),
    times=st.builds(IterationTimes, forward_s=SECONDS, backward_s=SECONDS),
    rates=RATES,
)
def test_the_closed_form_is_as_good_as_trying_all(nbytes, times, rates):
    found = best_proxy_bytes(nbytes, times, rates)
    assert 0 <= found <= nbytes
    least_s = train_s(nbytes, brute_force(nbytes, times, rates), times, rates)
    assert train_s(nbytes, found, times, rates) == pytest.approx(least_s, rel=1e-12)


@given(
    nbytes=st.integers(0, 60),
    backward_s=st.integers(0, 40),
    members=st.sampled_from([(2, 2), (4, 4), (4, 2), (2, 4), (1, 2), (2, 1), (1, 1), (8, 2)]),
    exponents=st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
)
def test_the_closed_form_equals_brute_force_where_floats_are_exact(nbytes, backward_s, members, exponents):
    times = IterationTimes(forward_s=1.0, backward_s=float(backward_s))
    rates = SyncRates(
        num_workers=members[0],
        num_devices=members[1],
        worker_bytes_per_s=2.0 ** exponents[0],
        proxy_bytes_per_s=2.0 ** exponents[1],
    )
    assert best_proxy_bytes(nbytes, times, rates) == brute_force(nbytes, times, rates)


def test_equal_rates_and_no_backward_split_in_halves():
    assert best_proxy_bytes(100, replace(TIMES, backward_s=0.0), EQUAL) == 50


def test_backward_gives_the_proxies_a_head_start():
    assert best_proxy_bytes(100, TIMES, EQUAL) == 51  # 2 + (100 - m) = m


def test_the_forward_pass_does_not_move_the_split():
    assert best_proxy_bytes(100, replace(TIMES, forward_s=50.0), EQUAL) == best_proxy_bytes(100, TIMES, EQUAL)


def test_all_goes_to_the_proxies_where_they_finish_within_backward():
    assert best_proxy_bytes(100, replace(TIMES, backward_s=100.0), EQUAL) == 100


@pytest.mark.parametrize("num_devices", [1, 4])
def test_a_lone_worker_keeps_all_since_it_has_nothing_to_synchronise(num_devices):
    rates = replace(EQUAL, num_workers=1, num_devices=num_devices)
    assert best_proxy_bytes(100, TIMES, rates) == 0
    assert train_s(100, 0, TIMES, rates) == 3.0


def test_a_lone_device_takes_all_since_its_ring_costs_nothing():
    rates = replace(EQUAL, num_devices=1)
    assert best_proxy_bytes(100, TIMES, rates) == 100
    assert train_s(100, 100, TIMES, rates) == 3.0


def test_a_model_without_bytes_has_nothing_to_split():
    assert best_proxy_bytes(0, TIMES, EQUAL) == 0


@given(nbytes=st.integers(1, 10**12), backward_s=SECONDS, rates=RATES)
def test_the_best_split_of_large_models_beats_its_neighbours(nbytes, backward_s, rates):
    times = IterationTimes(forward_s=0.0, backward_s=backward_s)
    found = best_proxy_bytes(nbytes, times, rates)
    at_best_s = train_s(nbytes, found, times, rates)
    for other in {max(0, found - nbytes // 100 - 1), min(nbytes, found + nbytes // 100 + 1), 0, nbytes}:
        assert at_best_s <= train_s(nbytes, other, times, rates) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("proxy_bytes", "num_keys"),
    [(0, 0), (5, 0), (6, 1), (10, 1), (20, 1), (21, 2), (30, 2), (40, 2), (41, 3), (50, 3), (99, 3)],
)
def test_a_straddling_key_goes_where_more_than_half_of_it_lies(proxy_bytes, num_keys):
    assert split_keys([10, 20, 20], proxy_bytes) == num_keys


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 700))
def test_no_other_prefix_of_keys_is_nearer_to_the_wanted_bytes(keys, proxy_bytes):
    num_keys = split_keys(keys, proxy_bytes)
    gaps = [abs(sum(keys[:count]) - proxy_bytes) for count in range(len(keys) + 1)]
    assert gaps[num_keys] == min(gaps)


@given(st.lists(st.integers(1, 50), max_size=12))
def test_nothing_and_everything_split_exactly(keys):
    assert split_keys(keys, 0) == 0
    assert split_keys(keys, sum(keys)) == len(keys)


@pytest.mark.parametrize("key", ["forward_s", "backward_s"])
@pytest.mark.parametrize("bad", [-1.0, float("inf"), float("nan")])
def test_times_that_cannot_be_are_refused(key, bad):
    with pytest.raises(ConfigError, match=f"{key} must be finite and at least 0"):
        replace(TIMES, **{key: bad})


@pytest.mark.parametrize("key", ["worker_bytes_per_s", "proxy_bytes_per_s"])
@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_rates_that_cannot_be_are_refused(key, bad):
    with pytest.raises(ConfigError, match=f"{key} must be finite and above 0"):
        replace(EQUAL, **{key: bad})


@pytest.mark.parametrize("key", ["num_workers", "num_devices"])
def test_rings_without_members_are_refused(key):
    with pytest.raises(ConfigError, match=f"{key} must be at least 1, got 0"):
        replace(EQUAL, **{key: 0})


def test_bytes_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="between 0 and 10 bytes"):
        train_s(10, 11, TIMES, EQUAL)
    with pytest.raises(ConfigError, match="at least 0 bytes of gradients"):
        best_proxy_bytes(-1, TIMES, EQUAL)
    with pytest.raises(ConfigError, match="keys have at least 0 bytes, got -3"):
        split_keys([1, -3], 1)
