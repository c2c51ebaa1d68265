"""Barrier between the members of one node: a count per member in memory that all have mapped.

[Note: counts, not MPI barriers] Members of a node share memory, so a member says that it has come by storing its
count, and another sees it by loading: no message, no system call, one cache line for each. A barrier of MPI would be
polled as well, by all, and would wait for a dead member inside MPI. All members pass the same points in the same order,
so that one rising number says for all points which of them a member has passed. x86-64 shows stores in the order in
which they were made: a member that sees the count sees the bytes written before it.
"""

from collections.abc import Sequence

import numpy as np

TICK_BYTES = 64
"""Bytes of one member's count: a cache line."""


class FlagBarrier:
    """Counts of a node's members from the view of one of them."""

    def __init__(self, rows: np.ndarray, position: int, workers: Sequence[int]) -> None:
        """Take the counts.

        `rows` is (L, 8) int64, zeros at first; `workers` are the members' ranks among workers.
        """
        self._counts = rows[:, 0]
        self._position = position
        self._workers = tuple(workers)
        self.passed = 0
        """Number of points that this member has passed."""

    def tick(self) -> int:
        """Pass a point, after all that was read and written before, and return its number."""
        self.passed += 1
        self._counts[self._position] = self.passed
        return self.passed

    def all_passed(self, point: int) -> "AllPassed":
        """Return an event that is over once all members have passed a point."""
        return AllPassed(self._counts, point, self._workers)


class AllPassed:
    """Event that is over once all members of a node have passed a point."""

    def __init__(self, counts: np.ndarray, point: int, workers: tuple[int, ...]) -> None:
        self._counts = counts
        self._point = point
        self._workers = workers

    def is_over(self) -> bool:
        """Return whether all members have passed the point."""
        return bool((self._counts >= self._point).all())

    def missing(self) -> tuple[int, ...]:
        """Return the workers that have not passed the point."""
        return tuple(w for w, count in zip(self._workers, self._counts, strict=True) if count < self._point)
