"""Dilation is raised until the machine keeps up, or the run is refused."""

import os
import signal
import tempfile
from dataclasses import replace

import pytest

from coarse.emulation import launch
from coarse.emulation.launch import EmulatedResult, emulate
from coarse.emulation.order import RunOrder
from coarse.errors import OverrunError
from coarse.simulation.report import WorkerIteration

ORDER = RunOrder(
    machine="aws-p3", model="resnet50", gpu="v100", batch=64, precision="fp32", mode="coarse", num_workers=2,
    num_devices=2, num_iterations=2, dilation=0.0, policy="devices",
).decided()  # fmt: skip


def rows(*durations_s):
    return tuple(
        WorkerIteration(
            worker=0, iteration=number, begin_s=0.0, forward_end_s=0.1, backward_end_s=0.2, end_s=duration_s, idle_s=0.0
        )
        for number, duration_s in enumerate(durations_s)
    )


@pytest.fixture
def machine(monkeypatch):
    """A machine that keeps up from a dilation on; the dilations that were tried."""
    tried = []

    def keeps_up_from(least):
        def run(order):
            tried.append(order.dilation)
            num_overrun = 0 if order.dilation >= least else 500
            return EmulatedResult(
                order=order, iterations=rows(0.9, 0.5), num_transfers=1000, num_overrun=num_overrun, worst_late_s=0.0
            )

        monkeypatch.setattr(launch, "run_order", run)
        return tried

    return keeps_up_from


def test_dilation_rises_until_transfers_are_in_time(machine):
    tried = machine(200.0)
    assert emulate(ORDER).order.dilation >= 200.0
    assert tried == sorted(tried)
    assert len(tried) > 1


def test_a_dilation_that_was_asked_for_is_kept_or_refused(machine):
    tried = machine(20.0)
    with pytest.raises(OverrunError, match=r"50\.0% of 1000 transfers.*--dilation"):
        emulate(replace(ORDER, dilation=7.0))
    assert tried == [7.0]


def test_a_machine_that_never_keeps_up_is_no_result(machine):
    machine(float("inf"))
    with pytest.raises(OverrunError):
        emulate(ORDER)


def test_the_first_iteration_does_not_count(machine):
    machine(0.0)
    assert emulate(ORDER).iteration_s == pytest.approx(0.5)


def test_a_signal_at_any_time_and_another_one_after_it_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def interrupted(num_ranks, folder, ends):
        found.append(folder)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(launch, "_run_ranks", interrupted)
    with pytest.raises(SystemExit) as ended:
        launch.run_order(replace(ORDER, dilation=1.0))
    assert ended.value.code == 128 + signal.SIGTERM
    assert [folder.parent for folder in found] == [tmp_path]
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before
