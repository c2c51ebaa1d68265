"""A checked pool within one process: users of several hosts, and a pool that forgets to flush."""

import sys
from pathlib import Path

import numpy as np

from coarse.pool.shared.coherence_checker import HostCache, PoolUser, ShadowedPool, cache_bytes
from coarse.pool.shared.line_history import History, history_bytes
from coarse.pool.shared.memory import Pool
from coarse.protocol.clock import VirtualClock

NAMES = ("device 0", "device 1", "device 2", "device 3")


class CheckedPools:
    """The memory of one pool and the caches of its users' hosts."""

    def __init__(self, data_bytes: int, hosts: tuple[int, ...] = (0, 1)) -> None:
        self.clock = VirtualClock()
        self.memory = np.zeros(data_bytes, np.uint8)
        """What stands in the memory, whatever the caches hold."""
        self._hosts = hosts
        self._history = np.zeros(history_bytes(data_bytes), np.uint8)
        self._caches = {host: np.zeros(cache_bytes(data_bytes), np.uint8) for host in hosts}

    def user(self, number: int, evicts: np.random.Generator | None = None) -> ShadowedPool:
        """The pool as one process sees it."""
        history = History(self._history, len(self.memory))
        cache = HostCache(self._caches[self._hosts[number]], len(self.memory))
        user = PoolUser(number, self._hosts, NAMES[: len(self._hosts)])
        return ShadowedPool(self.memory, history, cache, user, self.clock, evicts)


class Forgetful:
    """A pool without those flushes and invalidates that one line of a file asks for."""

    def __init__(self, pool: Pool, path: Path, line: int) -> None:
        self._pool = pool
        self._skipped = (str(path), line)

    def __getattr__(self, name: str) -> object:
        frame = sys._getframe(1)
        if name in ("flush", "invalidate") and (frame.f_code.co_filename, frame.f_lineno) == self._skipped:
            return lambda offset, nbytes: None
        return getattr(self._pool, name)
