"""A device's near-memory adder in emulated time: one thing after the other, at the machine's rate."""

import heapq
from typing import Generic, TypeVar

from coarse.emulation.pace import Pace

T = TypeVar("T")


class Adder(Generic[T]):
    """Work that is charged, and handed back once the wall clock has come to its end."""

    def __init__(self, pace: Pace, bytes_per_s: float) -> None:
        self._pace = pace
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._due: list[tuple[float, int, T]] = []
        self._num_given = 0

    def give(self, work: T, nbytes: int, begin_s: float) -> None:
        """Adding `nbytes` may begin at an emulated time."""
        self._free_s = max(self._free_s, begin_s) + nbytes / self._bytes_per_s
        self.hold(work, self._free_s)

    def hold(self, work: T, until_s: float) -> None:
        """Something that takes no adding, but is not due before an emulated time."""
        self._num_given += 1
        heapq.heappush(self._due, (until_s, self._num_given, work))

    def take_due(self) -> tuple[float, T] | None:
        """The first work that has ended, with the emulated time of its end."""
        if self._due and self._due[0][0] <= self._pace.now_s():
            due_s, _, work = heapq.heappop(self._due)
            return due_s, work
        return None

    def wall_s_until_next(self) -> float | None:
        """Wall seconds until `take_due` returns something; None where nothing was given."""
        return max(0.0, self._pace.wall_s_until(self._due[0][0])) if self._due else None
