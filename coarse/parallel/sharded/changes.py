# Pure: no MPI, threads, clock or environment.
"""Which units' shards have changed on this worker since they were last looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Mark(NamedTuple):
    """What identifies a shard's values: equal marks mean equal values.

    Versions alone don't, since an edit through `.data` leaves them as they are; the checksum alone nearly does, and
    fails by a chance of 2^-33. A mark that differs where the values are equal costs a gather, and nothing else.
    """

    versions: tuple[int, ...]
    """Counters of in-place writes and addresses of the shard's tensors."""
    checksum: int
    """64 bits of the shard's bytes that depend on their order."""


class ChangeWatch:
    """The marks of all units, one root forward after the other."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def look(self, marks: Sequence[Mark]) -> np.ndarray:
        """(U,) uint8 for U units: 1 where a mark is new or differs from the one of the last look."""
        known = self._marks if len(self._marks) == len(marks) else [None] * len(marks)
        self._marks = list(marks)
        return np.array([mark != before for mark, before in zip(marks, known, strict=True)], np.uint8)
