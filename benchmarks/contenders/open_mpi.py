"""MPI_Allreduce in place, over the same buckets."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from benchmarks.workloads import Workload


class OpenMpi:
    """Allreduce with MPI.IN_PLACE, one call per bucket."""

    name = "Open MPI"
    sums = True

    def __init__(self, workers: MPI.Intracomm) -> None:
        self._workers = workers
        self._buckets: list[np.ndarray] = []

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """Buckets are views of the worker's own memory."""
        self._buckets = [host[bucket] for bucket in workload.buckets]
        return workload.views(host)

    def run(self) -> None:
        """Reduce each bucket."""
        for bucket in self._buckets:
            self._workers.Allreduce(MPI.IN_PLACE, bucket, MPI.SUM)

    def close(self) -> None:
        """Drop the views."""
        self._buckets = []
