"""The rows of an emulated run, gathered from all workers."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from coarse.simulation.report import WorkerIteration, with_idle_times

_FIELDS = ("worker", "iteration", "begin_s", "forward_end_s", "backward_end_s", "end_s", "idle_s")


def gather_rows(comm: MPI.Comm, rows: Sequence[WorkerIteration]) -> list[WorkerIteration]:
    """All workers' rows on every worker, with what each waited for the slowest."""
    own = np.array([[getattr(row, name) for name in _FIELDS] for row in rows])
    everybody = np.empty((comm.Get_size(), *own.shape))
    comm.Allgather(own, everybody)
    return with_idle_times(_row(values) for values in everybody.reshape(-1, len(_FIELDS)).tolist())


def _row(values: Sequence[float]) -> WorkerIteration:
    worker, iteration, begin_s, forward_end_s, backward_end_s, end_s, idle_s = values
    return WorkerIteration(
        worker=int(worker),
        iteration=int(iteration),
        begin_s=begin_s,
        forward_end_s=forward_end_s,
        backward_end_s=backward_end_s,
        end_s=end_s,
        idle_s=idle_s,
    )
