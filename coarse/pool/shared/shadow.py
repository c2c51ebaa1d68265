"""The sanitizer of pools: caches that show no store before its flush, and no store of others before an invalidate.

Real caches often write back or forget a line by themselves, so a program that lacks a flush mostly works. Here a host's
cache does so never, or, on demand, at every chance (`evicts`), and each use is held against the pool's history.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coarse.errors import CoherenceError
from coarse.pool.shared.history import MOST_USERS, History, Written
from coarse.protocol.clock import Clock
from coarse.protocol.units import LINE_BYTES

LATE_S = 5.0
"""From then on a store that is not flushed, or was not asked for, is one too many, whoever knows of it."""
_ABSENT, _CLEAN, _DIRTY = 0, 1, 2
_OWN_FOLDER = str(Path(__file__).parent)


def cache_bytes(data_bytes: int) -> int:
    """Bytes of one host's cache of so much data."""
    return data_bytes + data_bytes // LINE_BYTES * 5


class HostCache:
    """What the caches of a host hold of the pool; its processes share it."""

    def __init__(self, memory: np.ndarray, data_bytes: int) -> None:
        """`memory` is (cache_bytes(data_bytes),) uint8, of zeros at first."""
        num_lines = data_bytes // LINE_BYTES
        self.data = memory[:data_bytes]
        self.seen = memory[data_bytes : data_bytes + 4 * num_lines].view(np.uint32)
        """(l,) the line's version when it was fetched."""
        self.state = memory[data_bytes + 4 * num_lines : cache_bytes(data_bytes)]
        """(l,) absent, clean or dirty."""


@dataclass(frozen=True)
class PoolUser:
    """A process that uses a checked pool."""

    number: int
    hosts: Sequence[int]
    """By user its host."""
    names: Sequence[str]
    """By user what errors call it."""


class ShadowedPool:
    """See Pool: one user's view, through its host's cache."""

    def __init__(
        self,
        memory: np.ndarray,
        history: History,
        cache: HostCache,
        user: PoolUser,
        clock: Clock,
        evicts: np.random.Generator | None = None,
    ) -> None:
        """`memory` is the pool's data, (n,) uint8; with `evicts` each store writes some lines back at once."""
        self._lines = memory.reshape(-1, LINE_BYTES)
        self._history = history
        self._cache = cache
        self._cached_lines = cache.data.reshape(-1, LINE_BYTES)
        self._user = user
        self._host_of = np.array([-1, *user.hosts], np.int64)
        """By user from 1 its host, as lines name users."""
        self._clock = clock
        self._evicts = evicts
        self._knows = np.zeros(MOST_USERS, np.uint32)
        """By user how far this one has seen what it flushed. See [Note: who knows of a store]."""
        self._knows[user.number] = 1

    # --- what users call

    def load(self, offset: int, into: np.ndarray) -> None:
        """See Pool."""
        self._fetch(_touched(offset, len(into)))
        into[:] = self._cache.data[offset : offset + len(into)]

    def load_word(self, offset: int) -> int:
        """See Pool."""
        self._fetch(_touched(offset, 8))
        return int(self._cache.data[offset : offset + 8].view(np.uint64)[0])

    def store(self, offset: int, data: np.ndarray) -> None:
        """See Pool."""
        lines = _touched(offset, len(data))
        self._refuse_two_writers(lines)
        self._fill(lines)
        self._cache.data[offset : offset + len(data)] = data
        self._note_stores(lines)

    def store_word(self, offset: int, value: int) -> None:
        """See Pool."""
        self.store(offset, np.array([value], np.uint64).view(np.uint8))

    def flush(self, offset: int, nbytes: int) -> None:
        """See Pool."""
        lines = _touched(offset, nbytes)
        self._write_back(lines.start + np.flatnonzero(self._cache.state[lines] == _DIRTY))
        self._cache.state[lines] = _ABSENT

    def invalidate(self, offset: int, nbytes: int) -> None:
        """See Pool: as the instructions of x86-64 and ARM do it, what is dirty is written back."""
        self.flush(offset, nbytes)

    def close(self) -> None:
        """See Pool.

        Raises:
            CoherenceError: stores of this user were never flushed.
        """
        left = np.flatnonzero(self._history.lines["stored_by"] == self._user.number + 1)
        if len(left):
            sites = sorted({self._history.stored(int(line)).site for line in left})
            where = f"{len(left)} lines of the pool, from byte {left[0] * LINE_BYTES} on,"
            raise CoherenceError(
                f"{self._names(self._user.number)}: {where} have stores at {', '.join(sites)} that were "
                "never flushed; call flush after the store"
            )

    # --- the cache

    def _fetch(self, lines: slice) -> None:
        """Have lines in the cache, and refuse to read what this user should know to be old."""
        self._refuse_unflushed(lines)
        self._refuse_stale(lines)
        self._fill(lines)

    def _fill(self, lines: slice) -> None:
        absent = lines.start + np.flatnonzero(self._cache.state[lines] == _ABSENT)
        if not len(absent):
            return
        records = self._history.lines
        self._cache.seen[absent] = records["version"][absent]
        known = records["clock"][absent].max(axis=0)
        self._cached_lines[absent] = self._lines[absent]
        self._cache.state[absent] = _CLEAN
        np.maximum(self._knows, known, out=self._knows)

    def _note_stores(self, lines: slice) -> None:
        records = self._history.lines[lines]
        self._cache.state[lines] = _DIRTY
        first = np.flatnonzero(records["stored_by"] == 0)
        records["store_clock"][first] = self._knows[self._user.number]
        records["stored_s"][first] = self._clock.now_s()
        records["stored_at"][first] = self._history.slot(self._user.number, _site())
        records["stored_by"][first] = self._user.number + 1  # last: whoever sees it sees the rest
        if self._evicts is not None:
            at_once = lines.start + np.flatnonzero(self._evicts.random(lines.stop - lines.start) < 0.5)
            self._write_back(at_once)
            self._cache.state[at_once] = _ABSENT

    def _write_back(self, dirty: np.ndarray) -> None:
        """Lines, by number, into memory; whoever fetches one knows what this user knows."""
        if not len(dirty):
            return
        records = self._history.lines
        overwritten = dirty[records["version"][dirty] != self._cache.seen[dirty]]
        if len(overwritten):
            raise self._lost_update(int(overwritten[0]))
        self._lines[dirty] = self._cached_lines[dirty]
        records["stored_by"][dirty] = 0  # before the clock, by which a reader would know of a store not flushed
        records["clock"][dirty] = self._knows
        records["written_by"][dirty] = self._user.number + 1
        records["written_at"][dirty] = records["stored_at"][dirty]
        records["written_s"][dirty] = self._clock.now_s()
        records["version"][dirty] += 1
        self._cache.seen[dirty] = records["version"][dirty]
        self._knows[self._user.number] += 1

    # --- what is refused

    def _refuse_unflushed(self, lines: slice) -> None:
        records = self._history.lines[lines]
        by = records["stored_by"].astype(np.int64)
        foreign = (by > 0) & (self._host_of[by] != self._host)
        if foreign.any():
            known = records["store_clock"] <= self._knows[by - 1]
            late = self._clock.now_s() - records["stored_s"] > LATE_S
            wrong = np.flatnonzero(foreign & (known | late))
            if len(wrong):
                line = lines.start + int(wrong[0])
                raise self._error(line, self._history.stored(line), "has not flushed", "call flush after that store")

    def _refuse_stale(self, lines: slice) -> None:
        records = self._history.lines[lines]
        stale = (self._cache.state[lines] == _CLEAN) & (records["version"] != self._cache.seen[lines])
        if stale.any():
            by = records["written_by"].astype(np.int64)
            clocks = np.take_along_axis(records["clock"], np.maximum(by - 1, 0)[:, None], axis=1)[:, 0]
            known = clocks <= self._knows[by - 1]
            late = self._clock.now_s() - records["written_s"] > LATE_S
            wrong = np.flatnonzero(stale & (known | late))
            if len(wrong):
                line = lines.start + int(wrong[0])
                what = "has flushed since this host fetched it"
                raise self._error(line, self._history.written(line), what, "call invalidate before this load")

    def _refuse_two_writers(self, lines: slice) -> None:
        by = self._history.lines["stored_by"][lines].astype(np.int64)
        foreign = np.flatnonzero((by > 0) & (self._host_of[by] != self._host))
        if len(foreign):
            line = lines.start + int(foreign[0])
            raise self._error(line, self._history.stored(line), "has not flushed", "have one host write into a line")

    def _lost_update(self, line: int) -> CoherenceError:
        what = "has flushed since this host fetched it, and would lose now"
        return self._error(line, self._history.written(line), what, "call invalidate before storing into it")

    def _error(self, line: int, other: Written, what: str, remedy: str) -> CoherenceError:
        return CoherenceError(
            f"{self._names(self._user.number)} at {_site()}: byte {line * LINE_BYTES} of the pool and the 63 after it "
            f"have a store at {other.site} that {self._names(other.user)} {what}; {remedy}"
        )

    def _names(self, user: int) -> str:
        return self._user.names[user]

    @property
    def _host(self) -> int:
        return self._user.hosts[self._user.number]


def _touched(offset: int, nbytes: int) -> slice:
    """The numbers of the lines that a range of bytes touches."""
    return slice(offset // LINE_BYTES, -(-(offset + nbytes) // LINE_BYTES))


def _site() -> str:
    """File and line of whoever called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
