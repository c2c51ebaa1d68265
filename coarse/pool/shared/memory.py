# Pure: no MPI, threads, clock or environment.
"""A pool: memory that the devices of several hosts have mapped, and what a user does so that the others see a store.

CXL 2.0 keeps a pool coherent within a host alone. What a host stores lies in its caches until it is flushed, and what
it has loaded stays there, stale, until it is invalidated (cMPI, arXiv 2510.05476). A cache moves whole lines of 64
bytes, so two hosts never write into one line.
"""

from typing import Protocol

import numpy as np

from coarse.protocol.units import LINE_BYTES


def whole_lines(nbytes: int) -> int:
    """Bytes of the lines that hold `nbytes` from the beginning of a line on."""
    return -(-nbytes // LINE_BYTES) * LINE_BYTES


class CacheLines(Protocol):
    """What empties caches of a range of addresses."""

    def flush(self, lines: np.ndarray) -> None:
        """Write what the host's caches have of (n,) uint8 back to memory, and keep none of it; then go on."""
        ...


class CoherentLines:
    """Caches that the hardware keeps coherent, between hosts too: there is nothing to do."""

    def flush(self, lines: np.ndarray) -> None:
        """Nothing."""


class Pool(Protocol):
    """What users of a pool call. Offsets are bytes from its beginning; words lie at multiples of 8."""

    def load(self, offset: int, into: np.ndarray) -> None:
        """Copy (n,) uint8 from the pool, as this host's caches show them."""
        ...

    def load_word(self, offset: int) -> int:
        """8 bytes, read at once."""
        ...

    def store(self, offset: int, data: np.ndarray) -> None:
        """Copy (n,) uint8 into the pool; other hosts see them after `flush`."""
        ...

    def store_word(self, offset: int, value: int) -> None:
        """8 bytes, written at once; other hosts see them after `flush`."""
        ...

    def flush(self, offset: int, nbytes: int) -> None:
        """Have other hosts that invalidate see what was stored; done when this returns."""
        ...

    def invalidate(self, offset: int, nbytes: int) -> None:
        """Have this host's next loads see what others flushed before."""
        ...

    def close(self) -> None:
        """Say that this user stores nothing more."""
        ...


class MappedPool:
    """A pool in a mapping that all hosts have of it."""

    def __init__(self, mapped: np.ndarray, lines: CacheLines) -> None:
        """`mapped` is (n,) uint8 from a page's beginning; `lines` empties this host's caches."""
        self._bytes = mapped
        self._words = mapped[: len(mapped) // 8 * 8].view(np.uint64)
        self._lines = lines

    def load(self, offset: int, into: np.ndarray) -> None:
        """See Pool."""
        into[:] = self._bytes[offset : offset + len(into)]

    def load_word(self, offset: int) -> int:
        """See Pool."""
        return int(self._words[offset // 8])

    def store(self, offset: int, data: np.ndarray) -> None:
        """See Pool."""
        self._bytes[offset : offset + len(data)] = data

    def store_word(self, offset: int, value: int) -> None:
        """See Pool."""
        self._words[offset // 8] = value

    def flush(self, offset: int, nbytes: int) -> None:
        """See Pool."""
        self._lines.flush(self._bytes[offset : offset + nbytes])

    def invalidate(self, offset: int, nbytes: int) -> None:
        """See Pool: lines that are clean are dropped by the same instruction."""
        self._lines.flush(self._bytes[offset : offset + nbytes])

    def close(self) -> None:
        """Nothing: what was stored and not flushed is the sanitizer's to find."""
