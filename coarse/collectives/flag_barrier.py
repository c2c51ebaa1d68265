"""How the members of one node wait for each other: a count per member in memory that all have mapped.

[Note: counts, not MPI barriers] Members of a node share memory, so a member says that it has come by storing its
count, and another sees it by loading: no message, no system call, one cache line for each. A barrier of MPI would be
polled as well, by all, and would wait for a dead member inside MPI. All members pass the same points in the same order,
so that one rising number says for all points which of them a member has passed. x86-64 shows stores in the order in
which they were made: who sees the count sees the bytes written before it.
"""

from collections.abc import Sequence

import numpy as np

TICK_BYTES = 64
"""A cache line for each member."""


class FlagBarrier:
    """The counts of a node's members, as one of them sees them."""

    def __init__(self, rows: np.ndarray, position: int, workers: Sequence[int]) -> None:
        """`rows` is (L, 8) int64, zeros at first; `workers` are the members' ranks among workers."""
        self._counts = rows[:, 0]
        self._position = position
        self._workers = tuple(workers)
        self.passed = 0
        """Points that this member has passed."""

    def tick(self) -> int:
        """Pass a point, after all that was read and written before; its number."""
        self.passed += 1
        self._counts[self._position] = self.passed
        return self.passed

    def all_passed(self, point: int) -> "AllPassed":
        """What is over once all members have passed a point."""
        return AllPassed(self._counts, point, self._workers)


class AllPassed:
    """Waits for the members of a node; see Awaited."""

    def __init__(self, counts: np.ndarray, point: int, workers: tuple[int, ...]) -> None:
        self._counts = counts
        self._point = point
        self._workers = workers

    def is_over(self) -> bool:
        """See Awaited."""
        return bool((self._counts >= self._point).all())

    def missing(self) -> tuple[int, ...]:
        """See Awaited."""
        return tuple(w for w, count in zip(self._workers, self._counts, strict=True) if count < self._point)
