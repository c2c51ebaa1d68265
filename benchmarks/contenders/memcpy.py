"""The yardstick: copying the same bytes once, by one worker while all others sleep."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads import Workload


class Memcpy:
    """Worker 0 copies; the others have nothing to do and go on to sleep at the next barrier."""

    name = "memcpy"
    sums = False

    def __init__(self, worker: int) -> None:
        self._copies = worker == 0
        self._source = self._target = np.empty(0, dtype=np.float32)

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """A target of the same bytes, touched so that its pages exist."""
        if self._copies:
            self._source, self._target = host, np.ones_like(host)
        return workload.views(host)

    def run(self) -> None:
        """Copy the worker's own memory into the target."""
        if self._copies:
            np.copyto(self._target, self._source)

    def close(self) -> None:
        """Free the target."""
        self._source = self._target = np.empty(0, dtype=np.float32)
