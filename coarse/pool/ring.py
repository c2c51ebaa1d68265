"""Stream of messages from one device to another by a pool: a ring with one writer and one reader.

The writer flushes the bytes that it has stored before it stores its progress, and flushes that; the reader invalidates
the writer's progress before it loads it, and the bytes written before it loads those. Tail, head and the messages'
beginnings have separate lines, so that no line has two writers.

[Note: whole lines] A message takes whole lines and is written as far as there is room, so one of any length passes.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coarse.errors import CoherenceError
from coarse.pool.shared.memory import Pool, whole_lines
from coarse.protocol.units import LINE_BYTES

_MAGIC = 0xC0A25E01
_TAIL, _HEAD, _DATA = 0, LINE_BYTES, 2 * LINE_BYTES


def ring_place_bytes(ring_bytes: int) -> int:
    """Return the bytes of the pool that a ring of `ring_bytes` takes."""
    return _DATA + ring_bytes


@dataclass(frozen=True)
class RingPlace:
    """Place and length of a ring in a pool; both are multiples of a line."""

    offset: int
    ring_bytes: int

    def pieces(self, at: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yield (offset in the pool, bytes) of a range of the stream, in one piece or in two."""
        begin = at % self.ring_bytes
        first = min(nbytes, self.ring_bytes - begin)
        yield self.offset + _DATA + begin, first
        if nbytes > first:
            yield self.offset + _DATA, nbytes - first

    @property
    def tail(self) -> int:
        """Offset of the writer's word: the number of bytes that it has written since its start."""
        return self.offset + _TAIL

    @property
    def head(self) -> int:
        """Offset of the reader's word: the number of bytes that it has read since its start."""
        return self.offset + _HEAD


class RingWriter:
    """End of a ring that sends."""

    def __init__(self, pool: Pool, place: RingPlace) -> None:
        """Set the writer's word to 0; the reader must not have begun, as both ends set their word first."""
        self._pool = pool
        self._place = place
        self._waiting: deque[np.ndarray] = deque()
        self._written = 0
        """Number of written bytes of the first part that waits."""
        self._tail = 0
        self._room = place.ring_bytes
        self._num_sent = 0
        pool.store_word(place.tail, 0)
        pool.flush(place.tail, 8)

    def send(self, tag: int, payload: np.ndarray) -> None:
        """Send (n,) uint8, which must not change until it is written; see `advance`."""
        beginning = np.zeros(LINE_BYTES, np.uint8)
        beginning[:24].view(np.uint64)[:] = (_MAGIC << 32 | tag, payload.nbytes, self._num_sent)
        self._num_sent += 1
        self._waiting.append(beginning)
        if payload.nbytes:
            self._waiting.append(payload)
        self.advance()

    @property
    def has_unwritten(self) -> bool:
        """True if messages, or parts of one, wait for room."""
        return bool(self._waiting)

    def advance(self) -> None:
        """Write as much of the waiting messages as there is room for."""
        begin = self._tail
        while self._waiting and self._has_room():
            part = self._waiting[0]
            nbytes = min(part.nbytes - self._written, self._room)
            for offset, piece in self._place.pieces(self._tail, nbytes):
                self._pool.store(offset, part[self._written : self._written + piece])
                self._written += piece
            self._tail += whole_lines(nbytes)
            self._room -= whole_lines(nbytes)
            if self._written == part.nbytes:
                self._waiting.popleft()
                self._written = 0
        if self._tail != begin:
            for offset, piece in self._place.pieces(begin, self._tail - begin):
                self._pool.flush(offset, piece)
            self._pool.store_word(self._place.tail, self._tail)
            self._pool.flush(self._place.tail, 8)

    def _has_room(self) -> bool:
        """Return whether a line is free; the reader's word is loaded only where none is known to be."""
        if not self._room:
            self._pool.invalidate(self._place.head, 8)
            self._room = self._place.ring_bytes - (self._tail - self._pool.load_word(self._place.head))
        return self._room > 0


class RingReader:
    """End of a ring that receives."""

    def __init__(self, pool: Pool, place: RingPlace, name: str) -> None:
        """Set the reader's word to 0; `name` tells in errors who sends the messages."""
        self._pool = pool
        self._place = place
        self._name = name
        self._head = 0
        self._tag = 0
        self._payload: np.ndarray | None = None
        """Payload of the message of which a part has come."""
        self._filled = 0
        self._num_received = 0
        pool.store_word(place.head, 0)
        pool.flush(place.head, 8)

    @property
    def is_within_message(self) -> bool:
        """True if a part of a message has come."""
        return self._payload is not None

    def take(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (tag, bytes) of all messages that have come whole.

        Raises:
            CoherenceError: the bytes in the ring are no message of this job.
        """
        self._pool.invalidate(self._place.tail, 8)
        tail = self._pool.load_word(self._place.tail)
        if tail == self._head:
            return
        for offset, piece in self._place.pieces(self._head, tail - self._head):
            self._pool.invalidate(offset, piece)
        come = []
        while self._head < tail:
            if self._payload is None:
                self._begin()
            else:
                self._fill(min(tail - self._head, len(self._payload) - self._filled))
            if self._payload is not None and self._filled == len(self._payload):
                come.append((self._tag, self._payload))
                self._payload = None
        self._pool.store_word(self._place.head, self._head)
        self._pool.flush(self._place.head, 8)
        yield from come

    def _begin(self) -> None:
        beginning = np.empty(LINE_BYTES, np.uint8)
        for offset, piece in self._place.pieces(self._head, LINE_BYTES):
            self._pool.load(offset, beginning[:piece])
        mark, nbytes, number = (int(word) for word in beginning[:24].view(np.uint64))
        if mark >> 32 != _MAGIC or number != self._num_received:
            raise CoherenceError(
                f"{self._name}: its message {self._num_received} to this one does not begin where it should in the "
                'pool; if its hosts\' caches are not coherent, set coherence = "software" in [pool], and let nothing '
                "else write into it"
            )
        self._head += LINE_BYTES
        self._num_received += 1
        self._tag, self._filled = mark & 0xFFFFFFFF, 0
        self._payload = np.empty(nbytes, np.uint8)

    def _fill(self, nbytes: int) -> None:
        assert self._payload is not None
        for offset, piece in self._place.pieces(self._head, nbytes):
            self._pool.load(offset, self._payload[self._filled : self._filled + piece])
            self._filled += piece
        self._head += whole_lines(nbytes)
