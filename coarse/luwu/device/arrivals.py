# Pure: no MPI, threads, clock or environment.
"""Chunks that are pushed to an optimizer node: on their way, complete from all children, and added."""

from collections import deque
from collections.abc import Iterator

from coarse.luwu.store.stream import Span


class Arrivals:
    """Chunks of one model's stream of pushes; packets may overtake the requests of workers for a push."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._num_pushes = [0] * num_clients
        self._askers: dict[int, int] = {}
        """Push -> number of workers that have asked for it."""
        self._complete_end = 0
        """Packet below which all children's packets are there."""
        self._arriving: deque[Span] = deque()
        """Chunks that are not there from all workers."""
        self._adding: deque[Span] = deque()
        """Chunks that are there from all, in order, until those before them and they themselves were added."""
        self._added: set[tuple[int, int]] = set()
        self._spans: dict[tuple[int, int], Span] = {}
        """(Push, chunk) -> its packets, until they were added."""

    def on_push(self, client: int, spans: tuple[Span, ...]) -> None:
        """Note that a worker has asked for its next push; `spans` are its chunks, if it is the first to ask."""
        push = self._num_pushes[client]
        self._num_pushes[client] += 1
        self._askers[push] = self._askers.get(push, 0) + 1
        self._arriving += spans
        self._spans.update({(span.message, span.chunk): span for span in spans})

    def on_complete(self, end: int) -> None:
        """Note that all children's packets below `end` are there."""
        self._complete_end = end

    def take_full(self) -> Iterator[Span]:
        """Yield chunks, in order, that are there from all, of pushes that all have asked for."""
        while self._arriving and self._arriving[0].end <= self._complete_end:
            if self._askers[self._arriving[0].message] < self._num_clients:
                return
            span = self._arriving.popleft()
            self._adding.append(span)
            yield span

    def span(self, push: int, chunk: int) -> Span:
        """Return the packets of a chunk that was not added."""
        return self._spans[push, chunk]

    def on_added(self, push: int, chunk: int) -> Iterator[Span]:
        """Note that a chunk was added; yield the added chunks, in order, before which all were added."""
        self._added.add((push, chunk))
        while self._adding and (self._adding[0].message, self._adding[0].chunk) in self._added:
            span = self._adding.popleft()
            self._added.discard((span.message, span.chunk))
            del self._spans[span.message, span.chunk]
            yield span

    def forget(self, push: int) -> None:
        """Forget a push of which all chunks were added."""
        del self._askers[push]
