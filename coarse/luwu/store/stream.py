# Pure: no MPI, threads, clock or environment.
"""Which packets of a stream are which chunk of which unit, and where they lie: both ends number them alike.

Each chunk begins a packet of its own. Where packets are not told their size, a chunk is one packet.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from coarse.luwu.store.layout import PagedModel


class Span(NamedTuple):
    """A chunk in a stream."""

    order: int
    """How many chunks came before it in the stream."""
    message: int
    """How many units did."""
    unit: int
    chunk: int
    first: int
    """Its first packet."""
    end: int
    """The packet behind its last."""


class Ring(NamedTuple):
    """Device memory for a window of packets: each number has its place, which a later one takes over."""

    offset: int
    num_packets: int
    packet_bytes: int

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Packets [begin, end) as runs that lie in one piece."""
        edge = begin - begin % self.num_packets + self.num_packets
        return [(begin, end)] if end <= edge else [(begin, edge), (edge, end)]

    def at(self, packet: int) -> int:
        """Where a packet begins."""
        return self.offset + packet % self.num_packets * self.packet_bytes


class ChunkStream:
    """The units that were pulled, or pushed, one after the other."""

    def __init__(self, model: PagedModel, packet_elements: int | None = None) -> None:
        self.model = model
        self.packet_elements = packet_elements
        self._spans: deque[Span] = deque()
        self.num_messages = 0
        self._num_chunks = 0
        self.end = 0
        """The packet behind the last one."""

    def append(self, unit: int) -> tuple[Span, ...]:
        """A unit comes next: its chunks."""
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
        """Of a chunk."""
        return 1 if self.packet_elements is None else -(-self.model.chunk_elements // self.packet_elements)

    def below(self, end: int) -> Iterator[Span]:
        """The oldest chunks all of whose packets are below `end`, which are forgotten."""
        while self._spans and self._spans[0].end <= end:
            yield self._spans.popleft()

    def forget(self, end: int) -> None:
        """The chunks all of whose packets are below `end` are of no use any more."""
        for _ in self.below(end):
            pass

    def at(self, order: int) -> Span:
        """The chunk before which so many came, of those that were not forgotten."""
        return self._spans[order - self._spans[0].order]

    def overlapping(self, begin: int, end: int) -> list[Span]:
        """The chunks that have packets in [begin, end)."""
        return [span for span in self._spans if span.first < end and begin < span.end]
