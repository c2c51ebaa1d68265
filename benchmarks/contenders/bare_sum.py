"""The floor: the same sum by as many processes as there are workers, with no record, shard or waiting in between.

Each worker adds its part of all workers' tensors where they lie in shared memory and writes the sum
back into all of them, as memory devices do. What coarse takes above this is its own cost.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from benchmarks.shared_mapping import map_together
from benchmarks.workloads import DTYPE, Workload

_BLOCK_ELEMENTS = 256 * 1024 // DTYPE.itemsize
"""As in coarse's sync cores: a block's sum is written back while it is in the cache."""


class BareSum:
    """Summing in place through shared memory."""

    name = "bare sum"
    sums = False
    """Workers start together but don't wait for one another, so a worker may not read the sums at once."""

    def __init__(self, workers: MPI.Intracomm) -> None:
        self._workers = workers
        self._regions: list[np.ndarray] = []

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """A region of shared memory for each worker."""
        mapping = map_together(self._workers, self._workers.size * workload.nbytes).view(DTYPE)
        self._regions = list(mapping.reshape(self._workers.size, workload.numel))
        return workload.views(self._regions[self._workers.rank])

    def run(self) -> None:
        """Add this worker's part of the elements."""
        sum_part(self._regions, self._workers.rank)

    def close(self) -> None:
        """Let go of the shared memory."""
        self._regions = []


def sum_part(regions: list[np.ndarray], part: int) -> None:
    """Replace one of p equal parts of p regions, (numel,) float32 each, by the regions' sum."""
    first, *others = regions
    end_of_part = (part + 1) * first.size // len(regions)
    for begin in range(part * first.size // len(regions), end_of_part, _BLOCK_ELEMENTS):
        end = min(begin + _BLOCK_ELEMENTS, end_of_part)
        total = first[begin:end]
        for other in others:
            np.add(total, other[begin:end], out=total)
        for other in others:
            other[begin:end] = total
