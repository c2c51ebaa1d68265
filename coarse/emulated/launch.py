"""Starts an emulated run, and again with more dilation where this machine could not keep up."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from coarse.emulated.order import RunOrder, order_json
from coarse.errors import CoarseError, OverrunError
from coarse.launch import AppContext, Job, mpirun_argv, mpirun_beside
from coarse.simulation.job import Job as TrainingJob
from coarse.simulation.report import WorkerIteration

ALLOWED_OVERRUN_SHARE = 0.01
"""Of all transfers; above it the links were not what they claim to be, and nothing is reported."""
_LEAST_DILATION = 20.0
_MOST_TRIES = 4
_SLOWER = 2.5
"""How much more dilation the next try gets."""
_BYTES_PER_S = 4e9
_PASSES = 6
"""What a worker's gradients cost here: copies and sums of their bytes, and at what rate this machine does them."""
_WALL_S_PER_TRANSFER = 2e-4
_ENDING_S = 5.0
_ROOM = 8
"""How many times longer than that an iteration may take, so that waiting is not late."""


@dataclass(frozen=True, kw_only=True)
class EmulatedResult:
    """What an emulated run took; kind "emulated"."""

    order: RunOrder
    iterations: tuple[WorkerIteration, ...]
    num_transfers: int
    num_overrun: int
    worst_late_s: float

    @property
    def overrun_share(self) -> float:
        """Share of transfers that were handed on late."""
        return self.num_overrun / max(1, self.num_transfers)

    @property
    def iteration_s(self) -> float:
        """Mean emulated seconds of an iteration over workers, without the first, in which keys are met."""
        last = max(row.iteration for row in self.iterations)
        return fmean(row.duration_s for row in self.iterations if row.iteration or not last)

    @property
    def exposed_s(self) -> float:
        """Mean exposed communication of the same iterations."""
        last = max(row.iteration for row in self.iterations)
        return fmean(row.exposed_s for row in self.iterations if row.iteration or not last)


def emulate(order: RunOrder, *, on_try: Callable[[float], None] = lambda _: None) -> EmulatedResult:
    """Run a decided order; a dilation of 0 is chosen, and raised until at most 1 % of transfers overrun.

    Raises:
        OverrunError: this machine could not keep up with the dilation that was asked for, or with any tried.
        CoarseError: a rank failed; its own message stands above.
    """
    is_auto = not order.dilation
    tries = _MOST_TRIES if is_auto else 1
    dilation = order.dilation or first_dilation(order.job())
    for number in range(tries):
        trial = replace(order, dilation=dilation * _SLOWER**number)
        on_try(trial.dilation)
        result = run_order(trial)
        if result.overrun_share <= ALLOWED_OVERRUN_SHARE:
            return result
    raise OverrunError(
        f"{result.overrun_share:.1%} of {result.num_transfers} transfers were handed on late at a dilation of "
        f"{trial.dilation:g}, and at most {ALLOWED_OVERRUN_SHARE:.0%} may be; give a larger --dilation, fewer "
        "workers or a smaller model, or leave this machine alone meanwhile"
    )


def first_dilation(job: TrainingJob) -> float:
    """How many times longer than in emulated time this machine needs, by a rough count of its work."""
    nbytes = sum(gradient.nbytes for gradient in job.gradients) * job.num_workers
    num_transfers = nbytes / min((table.partition_bytes for table in job.tables), default=nbytes) * job.num_workers
    cores = len(os.sched_getaffinity(0))
    work_s = (nbytes * _PASSES / _BYTES_PER_S + num_transfers * _WALL_S_PER_TRANSFER) / cores
    return max(_LEAST_DILATION, _ROOM * work_s / (job.forward_s + job.backward_s))


def run_order(order: RunOrder) -> EmulatedResult:
    """Run a decided order once, however late its transfers are."""
    with tempfile.TemporaryDirectory(prefix="coarse-emulated-") as folder:
        order_path, result_path = Path(folder, "order.json"), Path(folder, "result.json")
        order_path.write_text(order_json(order))
        command = (sys.executable, "-m", "coarse.emulated.run", str(order_path), str(result_path))
        argv = mpirun_argv(
            mpirun_beside(sys.executable, os.environ),
            [AppContext(num_ranks=order.num_ranks, command=command)],
            exports={},
            as_root=os.geteuid() == 0,
            fault_tolerant=False,
        )
        with Job(argv, os.environ) as job:
            while not job.wait_until_ended(_ENDING_S) and not result_path.is_file():
                pass  # once there is a result, mpirun has as long to end as one wait takes
        if not result_path.is_file():
            raise CoarseError("the emulated run ended without a result; what its ranks printed says why")
        found = json.loads(result_path.read_text())
    return EmulatedResult(
        order=order,
        iterations=tuple(WorkerIteration(**row) for row in found["iterations"]),
        num_transfers=found["num_transfers"],
        num_overrun=found["num_overrun"],
        worst_late_s=found["worst_late_s"],
    )
