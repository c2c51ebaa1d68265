"""Coherence checker of pools: its caches show no store before a flush, and no other's before an invalidate.

Real caches often write back or forget a line by themselves, so a program that lacks a flush mostly works. Here a host's
cache does so never, or, on demand, at every chance (`evicts`), and each use is checked against the pool's history.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coarse.errors import CoherenceError
from coarse.pool.shared.line_history import MOST_USERS, History, Written
from coarse.protocol.clock import Clock
from coarse.protocol.units import LINE_BYTES

LATE_S = 5.0
"""Seconds after which a store that is not flushed, or was not asked for, is an error, known or not."""
_ABSENT, _CLEAN, _DIRTY = 0, 1, 2
_OWN_FOLDER = str(Path(__file__).parent)


def cache_bytes(data_bytes: int) -> int:
    """Return the bytes of one host's cache of so much data."""
    return data_bytes + data_bytes // LINE_BYTES * 5


class HostCache:
    """Lines of the pool in a host's caches, which its processes share."""

    def __init__(self, memory: np.ndarray, data_bytes: int) -> None:
        """Take `memory`, which is (cache_bytes(data_bytes),) uint8, of zeros at first."""
        num_lines = data_bytes // LINE_BYTES
        self.data = memory[:data_bytes]
        self.seen = memory[data_bytes : data_bytes + 4 * num_lines].view(np.uint32)
        """Version of each line when it was fetched, (l,)."""
        self.state = memory[data_bytes + 4 * num_lines : cache_bytes(data_bytes)]
        """State of each line, absent, clean or dirty, (l,)."""


@dataclass(frozen=True)
class PoolUser:
    """Process that uses a checked pool."""

    number: int
    hosts: Sequence[int]
    """Host of each user."""
    names: Sequence[str]
    """Name of each user in errors."""


class ShadowedPool:
    """View of one user of a checked pool, through its host's cache."""

    def __init__(
        self,
        memory: np.ndarray,
        history: History,
        cache: HostCache,
        user: PoolUser,
        clock: Clock,
        evicts: np.random.Generator | None = None,
    ) -> None:
        """Start with the pool's data `memory`, (n,) uint8.

        With `evicts` each store writes some lines back at once.
        """
        self._lines = memory.reshape(-1, LINE_BYTES)
        self._history = history
        self._cache = cache
        self._cached_lines = cache.data.reshape(-1, LINE_BYTES)
        self._user = user
        self._host_of = np.array([-1, *user.hosts], np.int64)
        """Host of each user, from 1, as lines number users."""
        self._clock = clock
        self._evicts = evicts
        self._knows = np.zeros(MOST_USERS, np.uint32)
        """Knowledge of each user's flushes that this one has seen; see [Note: who knows of a store]."""
        self._knows[user.number] = 1

    # --- what users call

    def load(self, offset: int, into: np.ndarray) -> None:
        """Copy bytes from this host's cache."""
        self._fetch(_touched(offset, len(into)))
        into[:] = self._cache.data[offset : offset + len(into)]

    def load_word(self, offset: int) -> int:
        """Return 8 bytes of this host's cache."""
        self._fetch(_touched(offset, 8))
        return int(self._cache.data[offset : offset + 8].view(np.uint64)[0])

    def store(self, offset: int, data: np.ndarray) -> None:
        """Copy bytes into this host's cache."""
        lines = _touched(offset, len(data))
        self._refuse_two_writers(lines)
        self._fill(lines)
        self._cache.data[offset : offset + len(data)] = data
        self._note_stores(lines)

    def store_word(self, offset: int, value: int) -> None:
        """Write 8 bytes into this host's cache."""
        self.store(offset, np.array([value], np.uint64).view(np.uint8))

    def flush(self, offset: int, nbytes: int) -> None:
        """Write the dirty lines of a range back, and drop all of its lines."""
        lines = _touched(offset, nbytes)
        self._write_back(lines.start + np.flatnonzero(self._cache.state[lines] == _DIRTY))
        self._cache.state[lines] = _ABSENT

    def invalidate(self, offset: int, nbytes: int) -> None:
        """Write back the dirty lines of a range, as the instructions of x86-64 and ARM do, and drop all."""
        self.flush(offset, nbytes)

    def close(self) -> None:
        """Check that all stores of this user were flushed.

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
        """Fetch lines into the cache, and refuse to read lines that this user should know to be old."""
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
        """Write lines, given by number, into memory; a user that fetches one knows what this user knows."""
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
    """Return the numbers of the lines that a range of bytes touches."""
    return slice(offset // LINE_BYTES, -(-(offset + nbytes) // LINE_BYTES))


def _site() -> str:
    """Return the file and line of the code that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
