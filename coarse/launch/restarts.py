"""A job that is started again when any of its processes dies, over states that its workers have committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from coarse.launch.departures import how_ended
from coarse.launch.mpirun import JobEnd, tell
from coarse.launch.state_memory import HeldMemory
from coarse.launch.warm.ranks import WarmRanks, needs_of
from coarse.protocol.clock import WallClock

Attempt = Callable[[Mapping[str, str], str | None, Callable[[], None]], JobEnd]
"""Runs the job once with further variables, by ranks that are forked at a socket (None: by new interpreters), until
none of its processes is left."""
_LOOK_S = 0.5
_HASH_SEED = "0"


def run_with_restarts(
    attempt: Attempt, num_workers: int, most: int, environ: Mapping[str, str], *, preload: Sequence[str] | None
) -> int:
    """Run a job, start it again at most so many times, and return its status.

    It is not started again where a signal to this launcher ended it, where a script raised, or ended with a status of
    its own, before the first commit, nor where it raises the same again at the same step.
    """
    clock = WallClock()
    told = {"PYTHONHASHSEED": environ.get("PYTHONHASHSEED", _HASH_SEED)}
    before: tuple[object, ...] | None = None
    with HeldMemory(num_workers) as memory, _Warming(memory, {**environ, **told}, preload) as warming:
        for restarts in range(most + 1):
            told_now = {**told, "COARSE_RESTARTS": str(restarts), "COARSE_STATE_MEMORY": memory.told}
            ended = attempt(told_now, warming.socket_path(), warming.end_ranks)
            if not ended.status or ended.was_asked:
                return _last(ended, "")
            versions = memory.versions()
            cause = _cause(ended)
            if ended.failure is not None and ended.failure.is_own:
                now = (versions, ended.failure.error, ended.failure.status)
                if not min(versions):
                    return _last(ended, f"{cause} before the first commit; the job ends")
                if now == before and ended.failure.error != 0:
                    return _last(ended, f"{cause}, again at the same step; the job ends")
                before = now
            if restarts == most:
                return _last(ended, f"{cause}, and the job was started again {most} times; it ends" if most else "")
            tell(f"{cause}; the job starts again, {restarts + 1} of {most}")
            told["COARSE_RESTARTED"] = f"{ended.noticed_s},{ended.ended_s},{clock.now_s()}"
    raise AssertionError


class _Warming:
    """Has ranks' libraries imported beside the job, once each worker has committed."""

    def __init__(self, memory: HeldMemory, environ: Mapping[str, str], preload: Sequence[str] | None) -> None:
        self._memory = memory
        self._ranks = None if preload is None else WarmRanks(environ, preload)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._ranks is not None:
            self._thread = threading.Thread(target=self._wait, name="coarse-warming", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._ranks is not None:
            self._ranks.close()

    def _wait(self) -> None:
        """Start once there is a first commit; in a thread."""
        while not self._stopped.wait(_LOOK_S):
            layout = self._memory.layout_of_worker_0()
            if layout is not None:
                assert self._ranks is not None
                self._ranks.start(needs_of(layout))
                return

    def socket_path(self) -> str | None:
        """Return where ranks are forked, None where nothing does that yet."""
        return None if self._ranks is None else self._ranks.socket_path()

    def end_ranks(self) -> None:
        """Return when no forked rank of the last start is left."""
        if self._ranks is not None:
            self._ranks.end_ranks()


def _cause(ended: JobEnd) -> str:
    failure = ended.failure
    if failure is None:
        return f"mpirun {how_ended(ended.status if ended.status < 128 else 128 - ended.status)}"
    if failure.error is not None:
        return f"MPI rank {failure.rank} raised an error"
    return f"MPI rank {failure.rank} {how_ended(failure.status)}"


def _last(ended: JobEnd, why: str) -> int:
    for text in (ended.said, why):
        if text:
            tell(text)
    return ended.status
