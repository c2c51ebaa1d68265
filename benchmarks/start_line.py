"""Where workers wait for one another without using the cores that somebody else is being measured on.

A barrier of MPI spins, which would slow whoever still works. Here a worker sleeps between looks at a counter in memory
that all workers have mapped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.shared_mapping import map_together

if TYPE_CHECKING:
    from mpi4py import MPI

SLOT_NUMBERS = 8
"""64-bit numbers per worker: a cache line, so that no two workers write the same one."""

_ARRIVED, _AWAKE = 0, 1
_SHORTEST_NAP_S, _LONGEST_NAP_S, _NAP_GROWTH = 20e-6, 1e-3, 1.5


class StartLine:
    """Barriers for workers of one machine."""

    def __init__(
        self,
        slots: np.ndarray,  # (num_workers, SLOT_NUMBERS) int64, mapped by all workers, zero at first
        worker: int,
        *,
        timeout_s: float = 300.0,
    ) -> None:
        self._slots = slots
        self._worker = worker
        self._timeout_s = timeout_s
        self._num_passed = 0

    def wait(self) -> None:
        """Return once all workers have called this; sleeps meanwhile."""
        self._num_passed += 1
        nap_s = _SHORTEST_NAP_S

        def nap() -> None:
            nonlocal nap_s
            time.sleep(nap_s)
            nap_s = min(nap_s * _NAP_GROWTH, _LONGEST_NAP_S)

        self._meet(_ARRIVED, nap)

    def start_together(self) -> None:
        """As `wait`, then spin for the last moment, so that all workers leave within microseconds."""
        self.wait()
        self._meet(_AWAKE, os.sched_yield)

    def _meet(self, column: int, pause: Callable[[], None]) -> None:
        self._slots[self._worker, column] = self._num_passed
        give_up_s = time.monotonic() + self._timeout_s
        while self._slots[:, column].min() < self._num_passed:
            if time.monotonic() > give_up_s:
                missing = np.flatnonzero(self._slots[:, column] < self._num_passed).tolist()
                raise TimeoutError(
                    f"worker {self._worker} waited {self._timeout_s:g} s at a benchmark's barrier for workers {missing}"
                )
            pause()


def open_start_line(workers: MPI.Intracomm) -> StartLine:
    """A start line for all ranks of `workers`, which must share a machine."""
    mapping = map_together(workers, workers.size * SLOT_NUMBERS * 8)
    slots = mapping.view(np.int64).reshape(workers.size, SLOT_NUMBERS)
    return StartLine(slots, workers.rank)
