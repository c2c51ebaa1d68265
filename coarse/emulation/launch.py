"""Starts an emulated run, and again with more dilation where this machine could not keep up."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from coarse.emulation.failure import Ends, first_failure
from coarse.emulation.order import RunOrder, order_json
from coarse.errors import CoarseError, OverrunError
from coarse.launch.departures import exit_status
from coarse.launch.mpirun import ONE_MACHINE, AppContext, MpirunJob, mpirun_argv, usable_mpirun, watched_command
from coarse.launch.watch import Watch
from coarse.launch.watched import STARTUP
from coarse.protocol.plan import Facts
from coarse.protocol.records import Descriptor, key_of
from coarse.simulation.adaptation import Profile
from coarse.simulation.job import Job
from coarse.simulation.report import WorkerIteration, profile_share
from coarse.simulation.training import simulate
from coarse.strategy.rounds import By
from coarse.transport.launcher import environ_of_new_job

ALLOWED_OVERRUN_SHARE = 0.01
"""Of all transfers; above it the links were not what they claim to be, and nothing is reported."""
_LEAST_DILATION = 20.0
_MOST_TRIES = 4
_SLOWER = 2.5
"""How much more dilation the next try gets."""
_BYTES_PER_S = 4e9
_DEVICE_PASSES, _RING_PASSES = 6, 3
"""What a worker's gradients cost here: copies and sums of their bytes, by devices that exchange them over MPI and by
workers that read one another's regions; and at what rate this machine does them."""
_WALL_S_PER_TRANSFER = 2e-4
_POLL_S = 1.0
_ENDING_S = 5.0
"""How long mpirun may take to end once there is a result."""
_ORDER, _RESULT, _PRINTED = "order.json", "result.json", "printed.txt"
"""Files of a run; what its ranks and mpirun print is shown where they cannot say better what went wrong."""
_NUM_PRINTED = 40
_ROOM = 4
"""How many times longer than that gradients are under way, so that waiting is not late."""


@dataclass(frozen=True, kw_only=True)
class EmulatedResult:
    """What an emulated run took; kind "emulated"."""

    order: RunOrder
    iterations: tuple[WorkerIteration, ...]
    num_transfers: int
    num_overrun: int
    worst_late_s: float
    start_profile_s: float = 0.0
    """What measuring all took, before the first iteration."""
    measured_facts: tuple[Facts, ...] = ()
    """What came out of it; () for a mode that measures nothing."""
    profiles: tuple[Profile, ...] = ()
    """Meetings at which the running job was profiled, in order."""

    @property
    def profile_share(self) -> float:
        """Share of the run that its workers spent in those meetings."""
        return profile_share(self.iterations, self.profiles)

    @property
    def overrun_share(self) -> float:
        """Share of transfers that were handed on late."""
        return self.num_overrun / max(1, self.num_transfers)

    @property
    def iteration_s(self) -> float:
        """Mean emulated seconds of an iteration over workers."""
        return fmean(row.duration_s for row in self._counted())

    @property
    def exposed_s(self) -> float:
        """Mean exposed communication of an iteration."""
        return fmean(row.exposed_s for row in self._counted())

    def _counted(self) -> tuple[WorkerIteration, ...]:
        """All but the first iteration, or period, in which keys are met; that one where it is alone."""
        period = self.order.period
        return tuple(row for row in self.iterations if row.iteration >= period) or self.iterations


OnTry = Callable[[float, float | None], None]
"""Told the dilation of a run that begins, and the share of transfers that were late in the one before, if any."""


def emulate(order: RunOrder, *, on_try: OnTry = lambda *_: None) -> EmulatedResult:
    """Run a decided order; a dilation of 0 is chosen, and raised until at most 1 % of transfers overrun.

    Raises:
        OverrunError: this machine could not keep up with the dilation that was asked for, or with any tried.
        CoarseError: a rank failed; its own message stands above.
    """
    is_auto = not order.dilation
    tries = _MOST_TRIES if is_auto else 1
    dilation = order.dilation or first_dilation(order.job())
    late_share = None
    for number in range(tries):
        trial = replace(order, dilation=dilation * _SLOWER**number)
        on_try(trial.dilation, late_share)
        result = run_order(trial)
        late_share = result.overrun_share
        if result.overrun_share <= ALLOWED_OVERRUN_SHARE:
            return result
    raise OverrunError(
        f"{result.overrun_share:.1%} of {result.num_transfers} transfers were handed on late at a dilation of "
        f"{trial.dilation:g}, and at most {ALLOWED_OVERRUN_SHARE:.0%} may be; give a larger --dilation, fewer "
        "workers or a smaller model, or leave this machine alone meanwhile"
    )


def first_dilation(job: Job) -> float:
    """How many times longer than in emulated time this machine needs, by a rough count of its work."""
    nbytes = sum(gradient.nbytes for gradient in job.gradients) * job.num_workers
    to_devices = job.gradients_by(By.DEVICES)
    passes = _DEVICE_PASSES if to_devices else _RING_PASSES
    descriptors = job.descriptors()
    num_shards = sum(_num_shards(job, descriptors[position]) for position in to_devices)
    num_transfers = num_shards * job.num_workers or job.num_workers
    cores = len(os.sched_getaffinity(0))
    work_s = (nbytes * passes / _BYTES_PER_S + num_transfers * _WALL_S_PER_TRANSFER) / cores
    idle_s = job.forward_s if to_devices else job.forward_s + job.backward_s
    period = job.strategy.period
    under_way_s = period * (simulate(replace(job, num_iterations=period)).iteration_s - idle_s)
    return max(_LEAST_DILATION, _ROOM * work_s / under_way_s)


def _num_shards(job: Job, descriptor: Descriptor) -> int:
    """Shards of a gradient that devices sum."""
    return job.placement.plan_of(descriptor.tensor(key_of(descriptor.name)), job.facts).num_shards


def run_order(order: RunOrder) -> EmulatedResult:
    """Run a decided order once, however late its transfers are.

    Raises:
        FabricError, DeadRankError: the fabric process or a rank ended in mid-run; the whole run has ended.
        CoarseError: what a rank raised.
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
        num_overrun=found["num_overrun"],
        worst_late_s=found["worst_late_s"],
        start_profile_s=found["start_profile_s"],
        measured_facts=tuple(map(tuple, found["measured_facts"])),
        profiles=tuple(_profile(row) for row in found["profiles"]),
    )


def _profile(row: dict[str, Any]) -> Profile:
    return Profile(**row | {"facts": tuple(map(tuple, row["facts"])), "by": tuple(row["by"])})


def _run_ranks(num_ranks: int, folder: Path, ends: Ends) -> int | None:
    """Start all ranks and return when they have ended, with mpirun's status; None where it had to be ended."""
    program = ("-m", "coarse.emulation.run", str(folder / _ORDER), str(folder / _RESULT))
    argv = mpirun_argv(
        usable_mpirun(sys.executable, os.environ),
        [AppContext(num_ranks=num_ranks, command=watched_command(sys.executable, "-", program))],
        exports={},
        as_root=os.geteuid() == 0,
        fault_tolerant=False,
        options=ONE_MACHINE,
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
    """Let SIGTERM and SIGHUP raise SystemExit, so that ranks and files are removed; only the main thread gets them."""
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
    """Unwind once: another signal would cut off what the first has begun to remove."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(exit_status(-number))


def _why_not(folder: Path, ends: Ends, status: int | None) -> CoarseError:
    """What to say of a run without a result: a rank's own reason, else which process ended first."""
    failure = first_failure(folder)
    lines = (folder / _PRINTED).read_text(errors="replace").splitlines()[-_NUM_PRINTED:]
    printed = "\n".join(["; the last lines that were printed:", *lines]) if lines else ""
    if failure is not None and failure.dead_rank is None:
        return failure.as_error(printed)
    dead = ends.error(None if failure is None else failure.dead_rank, printed)
    return dead or CoarseError(f"the emulated run ended without a result, mpirun with status {status}{printed}")
