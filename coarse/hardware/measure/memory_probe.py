"""Probe of a memory device by one process: latency by dependent loads, rates of streams, flush costs.

[Note: cold lines] Latency is that of the device only if no cache answers. So the chase visits one line of each 256
bytes, in an order that no prefetcher guesses, after all lines have been removed from the caches; and it visits none
twice before they are removed again. Streams run over a range several times as large as the caches.
"""

from collections.abc import Callable

import numpy as np

from coarse.hardware.measure.native import Native
from coarse.protocol.clock import Clock
from coarse.protocol.units import LINE_BYTES

LOAD, STORE, COPY, STORE_FLUSHED, LOAD_FLUSHED = range(5)
"""Kinds of streams."""
SLOT_BYTES = 256
"""Bytes in which the chase visits one line: with a line come its neighbours, up to two lines further."""
_MOST_LINES = 1 << 22
_HOPS = 1024
"""Loads between two readings of the clock."""
_BLOCK_BYTES = 1 << 20
_DIRTY_BYTES = 32 << 10
"""Bytes of lines that are written and then flushed one by one; a first-level cache holds them."""
_DIRTY_ROUNDS = 16
_SEED = 22
_VALUE = 0x0101010101010101


def visits(num_slots: int, seed: int) -> np.ndarray:  # (min(num_slots, _MOST_LINES),) int64
    """Return slots in a random order, none twice."""
    return np.random.default_rng(seed).permutation(num_slots)[:_MOST_LINES]


def lay_cycle(memory: np.ndarray, order: np.ndarray) -> None:
    """Write into each slot of a range the offset of the next one, and into the last that of the first."""
    words = memory.view(np.int64)  # (n,) int64
    words[order * (SLOT_BYTES // 8)] = np.roll(order, -1) * SLOT_BYTES


class MemoryProbe:
    """Probe of a range of bytes that this process has mapped."""

    def __init__(self, memory: np.ndarray, clock: Clock, native: Native) -> None:
        """Take memory for the probe: (n,) uint8 of whole pages, whose bytes are overwritten."""
        self._memory = memory
        self._clock = clock
        self._native = native
        self._part = memory
        self._at = 0
        self._num_lines = self._num_left = self._place = 0

    def enter(self, index: int, count: int) -> None:
        """Choose one of so many equal parts of the range for streams, and have every page of it mapped."""
        whole = len(self._memory) // count // (2 * LINE_BYTES) * 2 * LINE_BYTES
        self._part = self._memory[index * whole : (index + 1) * whole]
        self._at = 0
        self._part[::4096] = 0

    def lay(self) -> int:
        """Prepare the chase, which streams destroy, and return the number of lines that it visits.

        See [Note: cold lines].
        """
        order = visits(len(self._memory) // SLOT_BYTES, _SEED)
        lay_cycle(self._memory, order)
        self._num_lines, self._place = len(order), int(order[0]) * SLOT_BYTES
        self._num_left = 0
        return self._num_lines

    def latency_s(self, most_s: float) -> float:
        """Return the seconds of a load that waits for the one before.

        It is the mean over so many as take `most_s` or are there.
        """
        if self._num_left < min(self._num_lines, 2 * _HOPS):
            self._evict_all()
            self._num_left = self._num_lines
        hops = 0
        began_s = self._clock.now_s()
        while True:
            chunk = min(_HOPS, self._num_left)
            self._place = self._native.chase(self._memory, self._place, chunk)
            hops += chunk
            self._num_left -= chunk
            ended_s = self._clock.now_s()
            if ended_s - began_s >= most_s or not self._num_left:
                return max(ended_s - began_s, 1e-9) / hops

    def stream_bytes_per_s(self, kind: int, least_s: float) -> float:
        """Return bytes per second that are loaded, stored or copied in this part of the range, for `least_s`."""
        length = len(self._part) // 2 if kind == COPY else len(self._part)
        act = self._action(kind)
        done = 0
        began_s = self._clock.now_s()
        while True:
            if self._at >= length:
                self._at = 0
            end = min(self._at + _BLOCK_BYTES, length)
            act(self._at, end)
            done += end - self._at
            self._at = end
            seconds = self._clock.now_s() - began_s
            if seconds >= least_s:
                return done / max(seconds, 1e-9)

    def flush_s(self) -> float:
        """Return the seconds until a written line is in memory: flushed and fenced, one after the other."""
        dirty = self._part[:_DIRTY_BYTES]
        seconds = 0.0
        for _ in range(_DIRTY_ROUNDS):
            self._native.store(dirty, _VALUE)
            began_s = self._clock.now_s()
            self._native.flush_each(dirty)
            seconds += self._clock.now_s() - began_s
        return max(seconds, 1e-9) / (_DIRTY_ROUNDS * (len(dirty) // LINE_BYTES))

    def _action(self, kind: int) -> Callable[[int, int], None]:
        native, part = self._native, self._part
        half = len(part) // 2

        def load_flushed(begin: int, end: int) -> None:
            native.evict(part[begin:end])
            native.load(part[begin:end])

        return {
            LOAD: lambda begin, end: native.load(part[begin:end]),
            STORE: lambda begin, end: native.store(part[begin:end], _VALUE),
            COPY: lambda begin, end: np.copyto(part[half + begin : half + end], part[begin:end]),
            STORE_FLUSHED: lambda begin, end: native.store_flushed(part[begin:end], _VALUE),
            LOAD_FLUSHED: load_flushed,
        }[kind]

    def _evict_all(self) -> None:
        if self._native.evicting is not None:
            self._native.evict(self._memory)
