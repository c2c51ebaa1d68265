# Pure: no MPI, threads, clock or environment.
"""Sums that wait for their turn at a device."""

import heapq
from typing import Protocol

from coarse.proxy.device import ReduceWork


class Work(Protocol):
    """Order of sums, which says when it is a sum's turn.

    Another driver than the live one gives a service its own.
    """

    def give(self, work: ReduceWork) -> None:
        """Take a sum that the device is to add."""
        ...

    def take(self) -> ReduceWork | None:
        """Return the next sum; None if none is due."""
        ...

    def wall_s_until_next(self) -> float | None:
        """Return the wall seconds until `take` may have something, as far as that is known."""
        ...


class UrgentFirst:
    """Order with the most urgent sum first, once the device's core is free; of equal ones the oldest."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, ReduceWork]] = []
        self._num_given = 0

    def give(self, work: ReduceWork) -> None:
        """Queue a sum."""
        self._num_given += 1
        heapq.heappush(self._waiting, (-work.priority, self._num_given, work))

    def take(self) -> ReduceWork | None:
        """Return the most urgent sum, or None."""
        return heapq.heappop(self._waiting)[2] if self._waiting else None

    def wall_s_until_next(self) -> float | None:
        """Return None: the service takes what there is before it sleeps."""
        return None
