"""A job that is started again when any of its processes dies, over states that its workers have committed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self

from coarse.errors import StorageError
from coarse.launch.departures import exit_status, how_ended
from coarse.launch.disk_copies import DiskCopies
from coarse.launch.mpirun import JobEnd, tell
from coarse.launch.state_memory import HeldMemory
from coarse.launch.warm.ranks import WarmRanks, needs_of
from coarse.protocol.clock import WallClock
from coarse.protocol.endurance import Endurance
from coarse.protocol.place import MemoryPlace

Attempt = Callable[[Mapping[str, str], str | None, Callable[[], None]], JobEnd]
"""Runs the job once with further variables, by ranks that are forked at a socket (None: by new interpreters), until
none of its processes is left."""
_LOOK_S = 0.5
COPY_EACH_S = 60.0
"""How often states are written to disk."""
_HASH_SEED = "0"


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


def run_with_restarts(
    attempt: Attempt, places: Sequence[MemoryPlace], endures: Endurance, environ: Mapping[str, str]
) -> int:
    """Run a job, start it again where it dies, and return its status.

    `places`: by worker where its states are kept (see HeldMemory).

    It is not started again where a signal to this launcher ended it, where a script raised, or ended with a status of
    its own, before the first commit, nor where it raises the same again at the same step. After the first commit a
    process imports what ranks have imported, and later ranks are forked from it.

    Raises:
        ConfigError: the folder for copies cannot be made, or has those of another run.
    """
    told = {"PYTHONHASHSEED": environ.get("PYTHONHASHSEED", _HASH_SEED)}
    copies = None if endures.keep is None else DiskCopies(Path(endures.keep))
    with HeldMemory(places) as memory:
        if endures.resume is not None:
            source = DiskCopies(Path(endures.resume))
            if copies is not None and copies.folder.resolve() == source.folder.resolve():
                source = copies
            try:
                _resume(source, memory, len(places))
            except StorageError as error:
                tell(str(error))
                return 1
        if copies is not None:
            copies.make()
        with (
            _Warming(memory, {**environ, **told}, endures.further) as warming,
            nullcontext() if copies is None else _Copying(copies, memory),
        ):
            ended, why = _until_it_ends(attempt, memory, warming, endures.restarts, told)
        written = _write_last(copies, memory) if copies is not None and ended.status else ""
    for text in (ended.said, why, written):
        if text:
            tell(text)
    was_preempted = bool(written) and ended.status == exit_status(-signal.SIGTERM) and ended.was_asked
    return endures.preempted_status if was_preempted else ended.status


def _until_it_ends(
    attempt: Attempt, memory: HeldMemory, warming: _Warming, most: int, told: dict[str, str]
) -> tuple[JobEnd, str]:
    """Start the job again and again; its last end, and why it is the last."""
    clock = WallClock()
    before: tuple[object, ...] | None = None
    for restarts in range(most + 1):
        told_now = {**told, "COARSE_RESTARTS": str(restarts), "COARSE_STATE_MEMORY": memory.told}
        ended = attempt(told_now, warming.socket_path(), warming.end_ranks)
        if not ended.status or ended.was_asked:
            return ended, ""
        versions = memory.versions()
        cause = _cause(ended)
        if ended.failure is not None and ended.failure.is_own:
            now = (versions, ended.failure.error, ended.failure.status)
            if not min(versions):
                return ended, f"{cause} before the first commit; the job ends"
            if now == before and ended.failure.error != 0:
                return ended, f"{cause}, again at the same step; the job ends"
            before = now
        if restarts < most:
            anew = "" if min(versions) else "; nothing was committed, so that it begins anew"
            tell(f"{cause}; the job starts again, {restarts + 1} of {most}{anew}")
            told["COARSE_RESTARTED"] = f"{ended.noticed_s},{ended.ended_s},{clock.now_s()}"
    return ended, f"{cause}, and the job was started again {most} times; it ends" if most else ""


def _resume(copies: DiskCopies, memory: HeldMemory, num_workers: int) -> None:
    """Have memory hold the newest whole copy, and say which."""
    version, wrong = copies.read(memory, num_workers)
    for text in wrong:
        tell(f"passed over: {text}")
    tell(f"the job goes on from version {version} of {copies.folder}")


def _write_last(copies: DiskCopies, memory: HeldMemory) -> str:
    """Write what workers have committed last; what to tell of it."""
    try:
        version = copies.write(memory)
    except OSError as error:
        return f"the states could not be written to {copies.folder} ({error}); the copy before stays"
    return f"version {version} of the states is in {copies.folder}" if version else ""


class _Copying:
    """Writes what workers have committed to disk each minute, beside the job."""

    def __init__(self, copies: DiskCopies, memory: HeldMemory) -> None:
        self._copies, self._memory = copies, memory
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, name="coarse-copying", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._stopped.wait(COPY_EACH_S):
            try:
                self._copies.write(self._memory)
            except OSError as error:
                tell(f"the states could not be written to {self._copies.folder} ({error}); training goes on")


def _cause(ended: JobEnd) -> str:
    failure = ended.failure
    if failure is None:
        return f"mpirun {how_ended(ended.status if ended.status < 128 else 128 - ended.status)}"
    if failure.error is not None:
        return f"MPI rank {failure.rank} raised an error"
    return f"MPI rank {failure.rank} {how_ended(failure.status)}"
