"""What a contender must offer, and the pattern by which its sums are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from benchmarks.workloads import DTYPE, Workload

_PATTERN_NUMEL = 251
"""A prime, so that an exchanged block is noticed; values stay small enough for exact float32 sums."""


class Contender(Protocol):
    """One way to replace each worker's tensors by their sum over the workers."""

    name: str
    sums: bool
    """False for a yardstick that only moves the bytes."""

    def prepare(self, workload: Workload, host: np.ndarray) -> list[np.ndarray]:
        """Get ready and return the tensors to fill, which later hold the sums.

        `host` is (numel,) float32 in this worker's own memory, shared by contenders that work there.
        """
        ...

    def run(self) -> None:
        """One operation; returns when this worker may read the sums."""
        ...

    def close(self) -> None:
        """Let go of what the last `prepare` made."""
        ...


def fill_pattern(tensors: Sequence[np.ndarray], worker: int) -> None:
    """Give each worker different small whole numbers."""
    for index, tensor in enumerate(tensors):
        tensor[...] = (_pattern(tensor.size, index) * (worker + 1)).reshape(tensor.shape)


def wrong_tensors(tensors: Sequence[np.ndarray], num_workers: int) -> list[int]:
    """Which tensors aren't the sum of what `fill_pattern` gave to workers 0 to num_workers - 1."""
    factor = sum(range(1, num_workers + 1))
    return [
        index
        for index, tensor in enumerate(tensors)
        if not np.array_equal(tensor.reshape(-1), _pattern(tensor.size, index) * factor)
    ]


def _pattern(numel: int, index: int) -> np.ndarray:  # (numel,) float32
    return np.resize(np.roll(np.arange(1, _PATTERN_NUMEL + 1, dtype=DTYPE), index), numel)
