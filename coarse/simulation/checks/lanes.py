"""Messages on their way between endpoints, on a virtual clock.

[Note: lanes] Messages of a lane stay in order; between lanes any order is possible. Records and
ring chunks between the same endpoints are two lanes, since live they take different ways, and every
reduce is a lane of its own, since a device may do its work in any order.
"""

import enum
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from coarse.protocol.clock import VirtualClock

M = TypeVar("M")

DelayOf = Callable[[int, int, int], float]
"""(source endpoint, destination endpoint, bytes) -> seconds; a reduce's source is its destination."""


class LaneKind(enum.Enum):
    """Kinds of messages that travel in a lane."""

    RECORD = "record"
    CHUNK = "chunk"
    FOLD = "reduce"


class Lane(NamedTuple):
    """Lane of messages; see [Note: lanes]. `number` tells reduces apart."""

    kind: LaneKind
    source: int
    destination: int
    number: int = 0


class Lanes(Generic[M]):
    """Lanes that hold a message, each message with the time at which it is due."""

    def __init__(self, clock: VirtualClock, delay_s: DelayOf) -> None:
        self._clock = clock
        self._delay_s = delay_s
        self._waiting: dict[Lane, deque[tuple[float, int, M]]] = {}
        self._num_posted = 0

    def post(self, lane: Lane, message: M, nbytes: int) -> None:
        """Send a message; a reduce gets a lane of its own."""
        self._num_posted += 1
        if lane.kind is LaneKind.FOLD:
            lane = lane._replace(number=self._num_posted)
        due_s = self._clock.now_s() + self._delay_s(lane.source, lane.destination, nbytes)
        waiting = self._waiting.setdefault(lane, deque())
        if waiting:
            due_s = max(due_s, waiting[-1][0])
        waiting.append((due_s, self._num_posted, message))

    def choices(self) -> tuple[Lane, ...]:
        """Return the lanes whose first message may be next, the longest posted first."""
        return tuple(sorted(self._waiting, key=lambda lane: self._waiting[lane][0][1]))

    def first_due(self) -> Lane | None:
        """Return the lane whose first message is due first; None if nothing is on its way."""
        return min(self._waiting, key=lambda lane: self._waiting[lane][0][:2], default=None)

    def take(self, lane: Lane) -> M:
        """Remove and return the first message of a lane.

        The clock is then at its time at least.
        """
        waiting = self._waiting[lane]
        due_s, _, message = waiting.popleft()
        if not waiting:
            del self._waiting[lane]
        self._clock.advance_to(max(due_s, self._clock.now_s()))
        return message
