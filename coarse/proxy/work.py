# Pure: no MPI, threads, clock or environment.
"""Sums that wait for their turn at a device."""

import heapq
from typing import Protocol

from coarse.proxy.device import ReduceWork


class Work(Protocol):
    """Says when a sum's turn has come. Another driver than the live one gives a service its own."""

    def give(self, work: ReduceWork) -> None:
        """A sum that the device is to take."""
        ...

    def take(self) -> ReduceWork | None:
        """The sum whose turn it is; None where none has come."""
        ...

    def wall_s_until_next(self) -> float | None:
        """Wall seconds until `take` may have something, as far as that is known."""
        ...


class UrgentFirst:
    """The most urgent sum first, as soon as the device's core is free; of equal ones the oldest."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, ReduceWork]] = []
        self._num_given = 0

    def give(self, work: ReduceWork) -> None:
        """See Work."""
        self._num_given += 1
        heapq.heappush(self._waiting, (-work.priority, self._num_given, work))

    def take(self) -> ReduceWork | None:
        """See Work."""
        return heapq.heappop(self._waiting)[2] if self._waiting else None

    def wall_s_until_next(self) -> float | None:
        """See Work: the service takes what there is before it sleeps."""
        return None
