"""A job that is started again when any of its processes dies, over states that its workers have committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coarse.launch.departures import how_ended
from coarse.launch.mpirun import JobEnd, tell
from coarse.launch.state_memory import HeldMemory
from coarse.protocol.clock import WallClock

Attempt = Callable[[Mapping[str, str]], JobEnd]
"""Runs the job once with further variables, until none of its processes is left."""
_HASH_SEED = "0"


def run_with_restarts(attempt: Attempt, num_workers: int, most: int, environ: Mapping[str, str]) -> int:
    """Run a job, start it again at most so many times, and return its status.

    It is not started again where a signal to this launcher ended it, where a script raised, or ended with a status of
    its own, before the first commit, nor where it raises the same again at the same step.
    """
    clock = WallClock()
    told = {"PYTHONHASHSEED": environ.get("PYTHONHASHSEED", _HASH_SEED)}
    before: tuple[object, ...] | None = None
    with HeldMemory(num_workers) as memory:
        for restarts in range(most + 1):
            ended = attempt({**told, "COARSE_RESTARTS": str(restarts), "COARSE_STATE_MEMORY": memory.told})
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
