"""A worker's compute in emulated seconds: CPU time between calls, over a scale."""

import pytest

from coarse.emulation import compute
from coarse.emulation.compute import ComputeClock, flops_per_cpu_s, scale_of
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


def test_a_core_is_measured_and_held_against_a_share_of_the_accelerators_peak():
    own = flops_per_cpu_s()
    assert 1e8 < own < 1e13
    accelerator = load_preset("aws-p3").accelerator
    assert scale_of(accelerator, accelerator.fp32_flops_per_s) == pytest.approx(0.3)
