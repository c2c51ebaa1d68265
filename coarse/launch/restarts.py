"""Restarts of a job when any of its processes dies, over states that its workers have committed."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from coarse.errors import StorageError
from coarse.launch.disk_copies import DiskCopies
from coarse.launch.handing import DescriptorServer
from coarse.launch.in_thread import InThread
from coarse.launch.mpirun import JobEnd, tell
from coarse.launch.rank_exits import exit_status, how_ended
from coarse.launch.state_memory import HeldMemory
from coarse.launch.warm.ranks import WarmRanks, needs_of
from coarse.protocol.clock import WallClock
from coarse.protocol.endurance import Endurance
from coarse.protocol.place import MemoryPlace

Attempt = Callable[[Mapping[str, str], str | None, Callable[[], None]], JobEnd]
"""Function that runs the job once with further variables, until none of its processes is left. Ranks are forked at a
socket (None: new interpreters)."""
_LOOK_S = 0.5
COPY_EACH_S = 60.0
"""Seconds between two writes of states to disk."""
_HASH_SEED = "0"


class _Warming(InThread):
    """Thread that has ranks' libraries imported beside the job, once each worker has committed."""

    def __init__(self, memory: HeldMemory, environ: Mapping[str, str], preload: Sequence[str] | None) -> None:
        super().__init__("coarse-warming")
        self._memory = memory
        self._ranks = None if preload is None else WarmRanks(environ, preload)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        if self._ranks is not None:
            self._ranks.close()

    def _run(self) -> None:
        """Start once there is a first commit, and look after ranks from then on."""
        has_started = False
        while self._ranks is not None and not self._stopped.wait(_LOOK_S):
            if has_started:
                self._ranks.look()
            elif (layout := self._memory.layout_of_worker_0()) is not None:
                self._ranks.start(needs_of(layout))
                has_started = True

    def socket_path(self) -> str | None:
        """Return the socket where ranks are forked, None if there is none yet."""
        return None if self._ranks is None else self._ranks.socket_path()

    def end_ranks(self) -> None:
        """Return when no forked rank of the last start is left."""
        if self._ranks is not None:
            self._ranks.end_ranks()


@contextmanager
def _reached_here(memory: HeldMemory) -> Iterator[Mapping[str, str]]:
    """Yield variables by which ranks of this host open slots as files of this process."""
    address = f"@coarse-states-{secrets.token_hex(8)}"
    with DescriptorServer(address, memory):
        yield {"COARSE_STATE_MEMORY": memory.told, "COARSE_STATE_FILES": address}


def run_with_restarts(
    attempt: Attempt,
    places: Sequence[MemoryPlace],
    endures: Endurance,
    environ: Mapping[str, str],
    *,
    reach: Callable[[HeldMemory], AbstractContextManager[Mapping[str, str]]] = _reached_here,
    outlives_nodes: bool = True,
) -> int:
    """Run a job, start it again if it dies, and return its status.

    `places` are the places of each worker's states (see HeldMemory). Within `reach` ranks reach them by its variables.
    With `outlives_nodes` states of workers stay if their node is lost; else the newest copy on disk is gone on from.

    It is not started again if a signal to this launcher ended it, if a script raised, or ended with a status of its
    own, before the first commit, nor if it raises the same again at the same step. After the first commit a process
    imports the modules that ranks have imported, and later ranks are forked from it.

    Raises:
        ConfigError: the folder for copies cannot be made, or has those of another run.
    """
    told = {"PYTHONHASHSEED": environ.get("PYTHONHASHSEED", _HASH_SEED)}
    copies = _copies_of(endures.keep)
    with HeldMemory(places) as memory, reach(memory) as variables:
        told |= variables
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
            lost = None if outlives_nodes else NodeLoss(memory, copies or _copies_of(endures.resume), len(places))
            ended, why = _until_it_ends(attempt, memory, warming, endures.restarts, told, lost)
        written = _write_last(copies, memory) if copies is not None and ended.status else ""
    for text in (ended.said, why, written):
        if text:
            tell(text)
    was_preempted = bool(written) and ended.status == exit_status(-signal.SIGTERM) and ended.was_asked
    return endures.preempted_status if was_preempted else ended.status


def _copies_of(folder: str | None) -> DiskCopies | None:
    return None if folder is None else DiskCopies(Path(folder))


class NodeLoss:
    """Loss of nodes, with whose memory their workers' states are gone."""

    def __init__(self, memory: HeldMemory, copies: DiskCopies | None, num_workers: int) -> None:
        self._memory, self._copies, self._num_workers = memory, copies, num_workers

    def on_lost(self, ended: JobEnd) -> str:
        """Have memory hold the newest copy on disk, and return the message about it.

        The message is "" if nothing had been committed.

        Raises:
            StorageError: there is no whole copy.
        """
        with self._memory.lock:
            newest = max(self._memory.versions())
            for node in ended.lost_nodes:
                self._memory.files.lose(f"{node}/")
            if self._copies is None or not newest:
                self._memory.lose(ended.lost_workers)
                if not newest:
                    return ""
                raise StorageError(
                    "the states of its workers were lost with it, and there is no copy on disk; give --keep DIR, or "
                    'have a pool that outlives nodes ([faults] place = "pool")'
                )
            self._memory.lose(range(self._num_workers))
            version, wrong = self._copies.read(self._memory, self._num_workers)
        passed_over = "".join(f"; passed over: {text}" for text in wrong)
        again = f", and {newest - version} committed later are made again" if newest > version else ""
        return f"; the job goes on from version {version} of {self._copies.folder}{again}{passed_over}"


def _until_it_ends(
    attempt: Attempt, memory: HeldMemory, warming: _Warming, most: int, told: dict[str, str], loss: NodeLoss | None
) -> tuple[JobEnd, str]:
    """Start the job again and again; return its last end, and why it is the last."""
    clock = WallClock()
    before: tuple[object, ...] | None = None
    for restarts in range(most + 1):
        ended = attempt({**told, "COARSE_RESTARTS": str(restarts)}, warming.socket_path(), warming.end_ranks)
        if not ended.status or ended.was_asked:
            return ended, ""
        versions, cause = memory.progress(), _cause(ended)
        if ended.failure is not None and ended.failure.is_own:
            now = (versions, ended.failure.error, ended.failure.status)
            if not min(versions):
                return ended, f"{cause} before the first commit; the job ends"
            if now == before and ended.failure.error != 0:
                return ended, f"{cause}, again at the same step; the job ends"
            before = now
        if restarts < most and ended.lost_nodes and loss is not None:
            try:
                cause += loss.on_lost(ended)
            except StorageError as error:
                return replace(ended, status=1), f"{cause}; {error}"
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
    """Write the states that workers have committed last; return the message about it."""
    try:
        version = copies.write(memory)
    except OSError as error:
        return f"the states could not be written to {copies.folder} ({error}); the copy before stays"
    return f"version {version} of the states is in {copies.folder}" if version else ""


class _Copying(InThread):
    """Thread that writes committed states to disk each minute, beside the job."""

    def __init__(self, copies: DiskCopies, memory: HeldMemory) -> None:
        super().__init__("coarse-copying")
        self._copies, self._memory = copies, memory

    def _run(self) -> None:
        while not self._stopped.wait(COPY_EACH_S):
            try:
                self._copies.write(self._memory)
            except OSError as error:
                tell(f"the states could not be written to {self._copies.folder} ({error}); training goes on")


def _cause(ended: JobEnd) -> str:
    failure = ended.failure
    if ended.lost_nodes:
        return f"{' and '.join(ended.lost_nodes)} {'was' if len(ended.lost_nodes) == 1 else 'were'} lost"
    if failure is None:
        return f"mpirun {how_ended(ended.status if ended.status < 128 else 128 - ended.status)}"
    if failure.error is not None:
        return f"MPI rank {failure.rank} raised an error"
    return f"MPI rank {failure.rank} {how_ended(failure.status)}"
