import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coarse.protocol.units import KIB, MIB
from coarse.simulation.live_split import (
    LEAST_GAIN,
    MeasuredStep,
    MeasuredView,
    MeasuredWays,
    measured_job,
    measured_link,
)
from coarse.simulation.training import simulate
from coarse.strategy.builtin import Auto, Paper
from coarse.strategy.dual_sync import IterationTimes, SyncRates, train_s
from coarse.strategy.rounds import first_to_devices

SIZES = (64 * KIB, MIB, 8 * MIB)
SECONDS = st.floats(1e-5, 1.0)


def table(seconds_per_mib, *, latency_s=0.0):
    return tuple((nbytes, latency_s + seconds_per_mib * nbytes / MIB) for nbytes in SIZES)


def step_of(num_buckets, *, forward_s=0.01, backward_s=0.02):
    """Buckets that are complete at equal distances."""
    ready_s = tuple(backward_s * (index + 1) / num_buckets for index in range(num_buckets))
    return MeasuredStep(forward_s=forward_s, backward_s=backward_s, step_s=math.inf, ready_s=ready_s)


def iteration_s(nbytes, step, ways, num_to_devices):
    return simulate(measured_job(nbytes, step, ways).with_split(num_to_devices)).iteration_s


class Chosen:
    """Buckets that a strategy leaves to the devices, and what iterations take with them and with all of them."""

    def __init__(self, strategy, nbytes, step, ways, num_workers):
        self.view = MeasuredView(nbytes, step, ways, num_workers)
        decided = strategy.decide(self.view)
        self.num_to_devices = decided.num_to_devices
        self.simulated_s = self.view.iteration_s(decided)
        self.simulated_all_s = self.view.iteration_s(first_to_devices(len(nbytes), len(nbytes)))


@given(st.lists(SECONDS, min_size=3, max_size=3, unique=True).map(sorted))
def test_a_measured_link_gives_back_every_time_that_was_measured(seconds):
    assume(all(later > earlier * (1 + 1e-9) for earlier, later in pairwise(seconds)))
    rows = tuple(zip(SIZES, seconds, strict=True))
    link = measured_link("way", rows)
    for nbytes, measured_s in rows:
        assert link.alone_s(nbytes) == pytest.approx(measured_s, rel=1e-9)


def test_a_size_that_was_disturbed_is_left_out_of_a_link():
    link = measured_link("way", ((KIB, 0.1), (MIB, 0.001), (8 * MIB, 0.008)))
    assert link.alone_s(MIB) == pytest.approx(0.001)
    assert link.alone_s(8 * MIB) == pytest.approx(0.008)


@pytest.mark.parametrize("nbytes", SIZES)
def test_one_bucket_takes_the_measured_time_of_its_way_once_it_is_complete(nbytes):
    ways = MeasuredWays(devices=table(0.002, latency_s=1e-4), workers=table(0.005, latency_s=3e-4))
    step = MeasuredStep(forward_s=0.3, backward_s=0.2, step_s=1.0, ready_s=(0.2,))
    for num_to_devices, rows in ((1, ways.devices), (0, ways.workers)):
        expected_s = 0.5 + dict(rows)[nbytes]
        assert iteration_s([nbytes], step, ways, num_to_devices) == pytest.approx(expected_s, rel=1e-9)


def test_a_bucket_that_was_complete_before_its_predecessor_waits_for_it():
    ways = MeasuredWays(devices=table(0.002), workers=table(0.002))
    step = MeasuredStep(forward_s=0.0, backward_s=0.1, step_s=1.0, ready_s=(0.08, 0.01, 0.3))
    gradients = measured_job([MIB] * 3, step, ways).gradients
    assert [gradient.ready_s for gradient in gradients] == [0.08, 0.08, 0.1]


def test_devices_that_are_faster_and_hidden_by_backward_take_all():
    ways = MeasuredWays(devices=table(0.001), workers=table(0.004))
    split = Chosen(Auto(), [MIB] * 8, step_of(8), ways, 2)
    assert split.num_to_devices == 8
    assert split.simulated_s == split.simulated_all_s


def test_workers_that_are_much_faster_take_all():
    ways = MeasuredWays(devices=table(0.5), workers=table(0.0001))
    assert Chosen(Auto(), [MIB] * 8, step_of(8), ways, 4).num_to_devices == 0


def test_two_ways_that_are_about_as_fast_share_the_buckets():
    ways = MeasuredWays(devices=table(0.02), workers=table(0.02))
    split = Chosen(Auto(), [MIB] * 16, step_of(16), ways, 2)
    assert 0 < split.num_to_devices < 16
    assert split.simulated_s < split.simulated_all_s * (1 - LEAST_GAIN)


@given(st.lists(st.integers(1, 8 * MIB), min_size=1, max_size=10), SECONDS, SECONDS, SECONDS)
@settings(max_examples=40)
def test_the_simulated_choice_is_as_fast_as_any_other_but_for_the_least_gain(nbytes, devices_s, workers_s, backward_s):
    ways = MeasuredWays(devices=table(devices_s), workers=table(workers_s))
    step = step_of(len(nbytes), backward_s=backward_s)
    split = Chosen(Auto(), nbytes, step, ways, 3)
    every_s = [iteration_s(nbytes, step, ways, k) for k in range(len(nbytes) + 1)]
    assert split.simulated_all_s == every_s[-1]
    assert split.simulated_s == every_s[split.num_to_devices]
    assert split.simulated_s <= min(every_s) / (1 - LEAST_GAIN) * (1 + 1e-9)
    assert all(split.view.least_shared_s <= split_s * (1 + 1e-9) for split_s in every_s[:-1])


@given(st.integers(2, 8), SECONDS, SECONDS, SECONDS)
def test_the_papers_split_minimises_its_formula_over_all_splits(num_workers, devices_s, workers_s, backward_s):
    nbytes = [MIB] * 12
    ways = MeasuredWays(devices=table(devices_s), workers=table(workers_s))
    step = step_of(12, backward_s=backward_s)
    times = IterationTimes(forward_s=step.forward_s, backward_s=backward_s)
    sent = 2 * (num_workers - 1) / num_workers
    rates = SyncRates(
        num_workers=num_workers,
        num_devices=num_workers,
        worker_bytes_per_s=sent * MIB / workers_s,
        proxy_bytes_per_s=sent * MIB / devices_s,
    )
    every_s = [train_s(12 * MIB, k * MIB, times, rates) for k in range(13)]
    chosen = Chosen(Paper(), nbytes, step, ways, num_workers).num_to_devices
    neighbours_s = every_s[max(0, chosen - 1) : chosen + 2]
    assert min(every_s) in neighbours_s
