# Pure: no MPI, threads, clock or environment.
"""Pool memory that several hosts have mapped, and the operations by which others see a user's store.

CXL 2.0 keeps a pool coherent within a host alone. Bytes that a host stores lie in its caches until they are flushed,
and bytes that it has loaded stay there, stale, until they are invalidated (cMPI, arXiv 2510.05476). A cache moves whole
lines of 64 bytes, so two hosts never write into one line.
"""

from typing import Protocol

import numpy as np

from coarse.protocol.units import LINE_BYTES


def whole_lines(nbytes: int) -> int:
    """Return the bytes of the lines that hold `nbytes` from the beginning of a line on."""
    return -(-nbytes // LINE_BYTES) * LINE_BYTES


class CacheLines(Protocol):
    """Operation that empties caches of a range of addresses."""

    def flush(self, lines: np.ndarray) -> None:
        """Write the host's cached lines of (n,) uint8 back to memory, and keep none of them; then return."""
        ...


class CoherentLines:
    """Caches that the hardware keeps coherent, between hosts too, so that no flush is needed."""

    def flush(self, lines: np.ndarray) -> None:
        """Do nothing."""


class Pool(Protocol):
    """Pool as its users call it.

    Offsets are bytes from its beginning; words lie at multiples of 8.
    """

    def load(self, offset: int, into: np.ndarray) -> None:
        """Copy (n,) uint8 from the pool, as this host's caches show them."""
        ...

    def load_word(self, offset: int) -> int:
        """Return 8 bytes, read at once."""
        ...

    def store(self, offset: int, data: np.ndarray) -> None:
        """Copy (n,) uint8 into the pool; other hosts see them after `flush`."""
        ...

    def store_word(self, offset: int, value: int) -> None:
        """Write 8 bytes at once; other hosts see them after `flush`."""
        ...

    def flush(self, offset: int, nbytes: int) -> None:
        """Have other hosts that invalidate see the stored bytes; done when this returns."""
        ...

    def invalidate(self, offset: int, nbytes: int) -> None:
        """Have this host's next loads see the bytes that others flushed before."""
        ...

    def close(self) -> None:
        """Close the pool for this user, which stores nothing more."""
        ...


class MappedPool:
    """Pool in a mapping that all hosts have of it."""

    def __init__(self, mapped: np.ndarray, lines: CacheLines) -> None:
        """Map the pool.

        `mapped` is (n,) uint8 from a page's beginning. `lines` empties this host's caches.
        """
        self._bytes = mapped
        self._words = mapped[: len(mapped) // 8 * 8].view(np.uint64)
        self._lines = lines

    def load(self, offset: int, into: np.ndarray) -> None:
        """Copy bytes from the mapping."""
        into[:] = self._bytes[offset : offset + len(into)]

    def load_word(self, offset: int) -> int:
        """Return 8 bytes of the mapping."""
        return int(self._words[offset // 8])

    def store(self, offset: int, data: np.ndarray) -> None:
        """Copy bytes into the mapping."""
        self._bytes[offset : offset + len(data)] = data

    def store_word(self, offset: int, value: int) -> None:
        """Write 8 bytes into the mapping."""
        self._words[offset // 8] = value

    def flush(self, offset: int, nbytes: int) -> None:
        """Flush this host's caches of a range."""
        self._lines.flush(self._bytes[offset : offset + nbytes])

    def invalidate(self, offset: int, nbytes: int) -> None:
        """Flush a range, too: the same instruction drops lines that are clean."""
        self._lines.flush(self._bytes[offset : offset + nbytes])

    def close(self) -> None:
        """Do nothing: stores that were not flushed are for the coherence checker to find."""
