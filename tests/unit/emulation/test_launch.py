"""An emulated run as its caller sees it."""

import os
import signal
import tempfile

import pytest

from coarse.emulation import launch
from coarse.emulation.launch import EmulatedResult, emulate
from coarse.emulation.order import EmulationOrder
from coarse.errors import OverrunError
from coarse.simulation.report import WorkerIteration

ORDER = EmulationOrder(
    machine="aws-p3", model="resnet50", gpu="v100", batch=64, precision="fp32", mode="coarse", num_workers=2,
    num_devices=2, num_iterations=2, policy="devices",
).decided()  # fmt: skip


def rows(*durations_s):
    return tuple(
        WorkerIteration(
            worker=0, iteration=number, begin_s=0.0, forward_end_s=0.1, backward_end_s=0.2, end_s=duration_s, idle_s=0.0
        )
        for number, duration_s in enumerate(durations_s)
    )


def ended(order, num_late):
    return EmulatedResult(
        order=order, iterations=rows(0.9, 0.5), num_transfers=1000, num_late=num_late, worst_late_s=0.0
    )


def test_the_first_iteration_does_not_count(monkeypatch):
    monkeypatch.setattr(launch, "run_order", lambda order: ended(order, 10))
    assert emulate(ORDER).iteration_s == pytest.approx(0.5)


def test_a_run_of_which_more_than_a_hundredth_was_late_is_no_result(monkeypatch):
    monkeypatch.setattr(launch, "run_order", lambda order: ended(order, 11))
    with pytest.raises(OverrunError, match=r"1\.1% of 1000 transfers were submitted after their emulated time"):
        emulate(ORDER)


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
        launch.run_order(ORDER)
    assert ended.value.code == 128 + signal.SIGTERM
    assert [folder.parent for folder in found] == [tmp_path]
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before
