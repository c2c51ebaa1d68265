"""Start of an emulated run, and its result."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from coarse.emulation.account import ALLOWED_LATE_SHARE
from coarse.emulation.failure import Ends, first_failure
from coarse.emulation.order import EmulationOrder, order_json
from coarse.errors import CoarseError, OverrunError
from coarse.launch.exit_reporter import STARTUP
from coarse.launch.mpirun import ON_ONE_MACHINE, AppContext, MpirunJob, mpirun_argv, usable_mpirun, watched_command
from coarse.launch.rank_exits import exit_status
from coarse.launch.watch import Watch
from coarse.protocol.plan import Facts
from coarse.simulation.adaptation import Profile
from coarse.simulation.report import WorkerIteration, profile_share
from coarse.transport.launcher import environ_of_new_job

_POLL_S = 1.0
_ENDING_S = 5.0
"""Seconds that mpirun may take to end once there is a result."""
_ORDER, _RESULT, _PRINTED = "order.json", "result.json", "printed.txt"
"""Files of a run. Lines that its ranks and mpirun print are shown if they cannot say better what went wrong."""
_NUM_PRINTED = 40


@dataclass(frozen=True, kw_only=True)
class EmulatedResult:
    """Result of an emulated run; kind "emulated"."""

    order: EmulationOrder
    iterations: tuple[WorkerIteration, ...]
    num_transfers: int
    num_late: int
    """Transfers that were submitted after their emulated time had passed."""
    worst_late_s: float
    start_profile_s: float = 0.0
    """Emulated seconds in which everything was measured, before the first iteration."""
    measured_facts: tuple[Facts, ...] = ()
    """Facts that were measured then; () for a mode that measures nothing."""
    profiles: tuple[Profile, ...] = ()
    """Profilings of the running job, in order."""

    @property
    def profile_share(self) -> float:
        """Share of the run that its workers spent in those profilings."""
        return profile_share(self.iterations, self.profiles)

    @property
    def late_share(self) -> float:
        """Share of transfers that were submitted too late."""
        return self.num_late / max(1, self.num_transfers)

    @property
    def iteration_s(self) -> float:
        """Mean emulated seconds of an iteration over workers."""
        return fmean(row.duration_s for row in self._counted())

    @property
    def exposed_s(self) -> float:
        """Mean exposed communication of an iteration."""
        return fmean(row.exposed_s for row in self._counted())

    def _counted(self) -> tuple[WorkerIteration, ...]:
        """Return all but the first iteration, or period, which registers keys; that one if it is alone."""
        period = self.order.period
        return tuple(row for row in self.iterations if row.iteration >= period) or self.iterations


def emulate(order: EmulationOrder) -> EmulatedResult:
    """Run a decided order.

    Raises:
        OverrunError: more than 1 % of transfers were submitted after their emulated time had passed.
        CoarseError: a rank failed; its own message stands above.
    """
    result = run_order(order)
    if result.late_share <= ALLOWED_LATE_SHARE:
        return result
    raise OverrunError(
        f"{result.late_share:.1%} of {result.num_transfers} transfers were submitted after their emulated time had "
        f"passed, and at most {ALLOWED_LATE_SHARE:.0%} may be; no result. Please report the command that you gave"
    )


def run_order(order: EmulationOrder) -> EmulatedResult:
    """Run a decided order, however late its transfers are.

    Raises:
        FabricError, DeadRankError: the fabric process or a rank ended in mid-run; the whole run has ended.
        CoarseError: the error that a rank raised.
    """
    with _signals_unwind(), tempfile.TemporaryDirectory(prefix="coarse-emulation-") as name:
        folder = Path(name)
        (folder / _ORDER).write_text(order_json(order))
        ends = Ends(order.num_workers, order.num_ranks)
        status = _run_ranks(order.num_ranks, folder, ends)
        if not (folder / _RESULT).is_file():
            raise _why_not(folder, ends, status)
        found = json.loads((folder / _RESULT).read_text())
    return EmulatedResult(
        order=order,
        iterations=tuple(WorkerIteration(**row) for row in found["iterations"]),
        num_transfers=found["num_transfers"],
        num_late=found["num_late"],
        worst_late_s=found["worst_late_s"],
        start_profile_s=found["start_profile_s"],
        measured_facts=tuple(map(tuple, found["measured_facts"])),
        profiles=tuple(_profile(row) for row in found["profiles"]),
    )


def _profile(row: dict[str, Any]) -> Profile:
    return Profile(**row | {"facts": tuple(map(tuple, row["facts"])), "by": tuple(row["by"])})


def _run_ranks(num_ranks: int, folder: Path, ends: Ends) -> int | None:
    """Start all ranks and return when they have ended, with mpirun's status; None if it had to be ended."""
    program = ("-m", "coarse.emulation.run", str(folder / _ORDER), str(folder / _RESULT))
    argv = mpirun_argv(
        usable_mpirun(sys.executable, os.environ),
        [AppContext(num_ranks=num_ranks, command=watched_command(sys.executable, "-", program))],
        exports={},
        as_root=os.geteuid() == 0,
        fault_tolerant=False,
        options=ON_ONE_MACHINE,
    )
    with Watch(ends) as watch, (folder / _PRINTED).open("w") as printed:
        environ = {**environ_of_new_job(os.environ, STARTUP), "COARSE_LAUNCHER": watch.name}
        with MpirunJob(argv, environ, output=printed, errors=printed) as job:
            watch.start(lambda _: job.send_signal(signal.SIGTERM))
            has_ended = False
            while not has_ended and not (folder / _RESULT).is_file():
                has_ended = job.wait_until_ended(_POLL_S)
            has_ended = has_ended or job.wait_until_ended(_ENDING_S)
        return job.wait() if has_ended else None


@contextlib.contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that ranks and files are removed.

    Only the main thread gets them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> None:
    """Unwind once: another signal would cut off the removal that the first has begun."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(exit_status(-number))


def _why_not(folder: Path, ends: Ends, status: int | None) -> CoarseError:
    """Return the error of a run without a result: a rank's own reason, else the process that ended first."""
    failure = first_failure(folder)
    lines = (folder / _PRINTED).read_text(errors="replace").splitlines()[-_NUM_PRINTED:]
    printed = "\n".join(["; the last lines that were printed:", *lines]) if lines else ""
    if failure is not None and failure.dead_rank is None:
        return failure.as_error(printed)
    dead = ends.error(None if failure is None else failure.dead_rank, printed)
    return dead or CoarseError(f"the emulated run ended without a result, mpirun with status {status}{printed}")
