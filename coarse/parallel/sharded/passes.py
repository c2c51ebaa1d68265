# Pure: no MPI, threads, clock or environment.
"""Passes of a model: forwards that overtook a backward, and units whose shards have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Passes:
    """Forwards of one model that may still have a backward.

    [Note: overtaken forwards] A backward uses the parameters that its forward had gathered, and so may take them from
    kept copies. Not if another forward came between: a script may have changed frozen parameters for it, to evaluate
    averaged or merged weights, and changed them back. Then the backward finds out anew what has changed. A step of the
    optimizer ends all that: autograd refuses a backward through parameters that were changed since.
    """

    def __init__(self) -> None:
        self._num_pending = 0
        self._is_overtaken = False
        self._task: int | None = None

    def on_forward(self, *, is_training: bool) -> None:
        """Note the begin of a forward; `is_training` if a backward may follow."""
        self._is_overtaken |= self._num_pending > 0
        self._num_pending += is_training

    def on_step(self) -> None:
        """Note that trainable parameters have changed."""
        self._num_pending = 0
        self._is_overtaken = False

    def on_backward(self, task: int) -> bool:
        """Note that a backward, numbered `task`, has reached a unit.

        Return whether it has to find out what has changed.
        """
        if task == self._task:
            return False
        self._task = task
        was_overtaken = self._is_overtaken
        self._num_pending = max(0, self._num_pending - 1)
        self._is_overtaken &= self._num_pending > 0
        return was_overtaken


class Mark(NamedTuple):
    """Mark of a shard's values: equal marks mean equal values.

    Versions alone don't, since an edit through `.data` leaves them as they are; the checksum alone nearly does, and
    fails by a chance of 2^-33. A mark that differs though the values are equal costs a gather, and nothing else.
    """

    versions: tuple[int, ...]
    """Counters of in-place writes and addresses of the shard's tensors."""
    checksum: int
    """Checksum of the shard's bytes, 64 bits that depend on their order."""


class ChangeWatch:
    """Marks of all units, one root forward after the other."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def look(self, marks: Sequence[Mark]) -> np.ndarray:
        """Return (U,) uint8 for U units: 1 if a mark is new or differs from the one of the last look."""
        known = self._marks if len(self._marks) == len(marks) else [None] * len(marks)
        self._marks = list(marks)
        return np.array([mark != before for mark, before in zip(marks, known, strict=True)], np.uint8)
