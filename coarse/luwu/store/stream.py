# Pure: no MPI, threads, clock or environment.
"""Numbering of a stream's packets by chunks of units, equal at both ends, and their places in memory.

Each chunk begins a packet of its own. Where packets are not told their size, a chunk is one packet.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from coarse.luwu.store.layout import PagedModel


class Span(NamedTuple):
    """Chunk in a stream."""

    order: int
    """Number of chunks that came before it in the stream."""
    message: int
    """Number of units that came before it in the stream."""
    unit: int
    chunk: int
    first: int
    """First packet of the chunk."""
    end: int
    """Packet behind its last."""


class Ring(NamedTuple):
    """Device memory for a window of packets: each number has its place, which a later one takes over."""

    offset: int
    num_packets: int
    packet_bytes: int

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return packets [begin, end) as runs that lie in one piece."""
        edge = begin - begin % self.num_packets + self.num_packets
        return [(begin, end)] if end <= edge else [(begin, edge), (edge, end)]

    def at(self, packet: int) -> int:
        """Return the offset of a packet."""
        return self.offset + packet % self.num_packets * self.packet_bytes


class ChunkStream:
    """Units that were pulled, or pushed, one after the other."""

    def __init__(self, model: PagedModel, packet_elements: int | None = None) -> None:
        self.model = model
        self.packet_elements = packet_elements
        self._spans: deque[Span] = deque()
        self.num_messages = 0
        self._num_chunks = 0
        self.end = 0
        """Packet behind the last one."""

    def append(self, unit: int) -> tuple[Span, ...]:
        """Append a unit; return its chunks."""
        spans = []
        for chunk, (begin, end) in enumerate(self.model.chunks(unit)):
            size = self.packet_elements or end - begin
            past = self.end + -(-(end - begin) // size)
            spans.append(Span(self._num_chunks, self.num_messages, unit, chunk, self.end, past))
            self._num_chunks += 1
            self.end = past
        self.num_messages += 1
        self._spans += spans
        return tuple(spans)

    @property
    def most_packets(self) -> int:
        """Most packets of a chunk."""
        return 1 if self.packet_elements is None else -(-self.model.chunk_elements // self.packet_elements)

    def below(self, end: int) -> Iterator[Span]:
        """Yield and forget the oldest chunks all of whose packets are below `end`."""
        while self._spans and self._spans[0].end <= end:
            yield self._spans.popleft()

    def forget(self, end: int) -> None:
        """Forget the chunks all of whose packets are below `end`."""
        for _ in self.below(end):
            pass

    def at(self, order: int) -> Span:
        """Return the chunk before which `order` others came, of those that were not forgotten."""
        return self._spans[order - self._spans[0].order]

    def overlapping(self, begin: int, end: int) -> list[Span]:
        """Return the chunks that have packets in [begin, end)."""
        return [span for span in self._spans if span.first < end and begin < span.end]
