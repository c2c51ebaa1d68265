"""A worker's compute in emulated seconds: CPU time between calls, over a scale."""

import pytest

from coarse.emulation import compute
from coarse.emulation.compute import ComputeClock, Stretches, flops_per_cpu_s, scale_of
from coarse.emulation.compute_file import ComputeTimes
from coarse.hardware.presets import load_preset


@pytest.fixture
def cpu(monkeypatch):
    """CPU seconds that a test moves."""
    spent = [5.0]
    monkeypatch.setattr(compute.time, "process_time", lambda: spent[0])
    return spent


def test_only_what_is_spent_between_calls_counts_over_the_scale(cpu):
    clock = ComputeClock(10.0)
    cpu[0] += 1.0
    assert clock.stop() == 0.0  # nothing has begun
    clock.start()
    cpu[0] += 3.0
    assert clock.peek() == pytest.approx(0.3)
    cpu[0] += 1.0
    assert clock.stop() == pytest.approx(0.4)
    cpu[0] += 7.0
    assert (clock.peek(), clock.stop()) == (0.0, 0.0)


def test_by_the_wall_what_passes_counts_over_the_scale(cpu, monkeypatch):
    passed = [5.0]
    monkeypatch.setattr(compute.WallClock, "now_s", lambda clock: passed[0])
    clock = ComputeClock(10.0, is_by_wall=True)
    clock.start()
    cpu[0] += 7.0
    passed[0] += 4.0
    assert clock.stop() == pytest.approx(0.4)


def test_a_core_is_measured_and_held_against_a_share_of_the_accelerators_peak():
    own = flops_per_cpu_s()
    assert 1e8 < own < 1e13
    accelerator = load_preset("aws-p3").accelerator
    assert scale_of(accelerator, accelerator.fp32_flops_per_s) == pytest.approx(0.3)


def test_stretches_go_from_one_named_point_to_the_next_whatever_lies_between():
    stretches = Stretches(None)
    stretches.pass_time(100.0, "before the run")
    stretches.begin()
    counted = [stretches.pass_time(*each) for each in ((1.0, "push a"), (2.0, None), (3.0, "wait"), (4.0, "push a"))]
    assert counted == [1.0, 2.0, 3.0, 4.0]
    stretches.pass_time(7.0, "wait")
    assert stretches.measured_s == {"start -> push a": [1.0], "push a -> wait": [5.0, 7.0], "wait -> push a": [4.0]}


def test_times_of_a_file_count_at_named_points_and_what_it_lacks_as_measured():
    times = {"start -> push a": 10.0, "push a -> wait": 0.0}
    stretches = Stretches(ComputeTimes("train.py", "A40", 50.0, times, {"push a": 20.0}))
    counted = [stretches.pass_time(*each) for each in ((1.0, None), (2.0, "push a"), (3.0, "wait"), (4.0, None))]
    assert counted == [0.0, 10.0, 0.0, 0.0]
    assert [stretches.pass_time(*each) for each in ((5.0, "b"), (6.0, "push a"), (7.0, "c"))] == [9.0, 20.0, 7.0]
    assert (stretches.missing_s, stretches.first_missing, stretches.measured_s) == (16.0, "wait -> b", {})
