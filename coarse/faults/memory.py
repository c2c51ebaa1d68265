"""Memory of each worker's states across restarts: descriptors of `coarse run`, or a user's folder."""

import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from coarse.errors import ConfigError, StorageError
from coarse.protocol.clock import WallClock
from coarse.protocol.commits import NUM_SLOTS, Seen, slot_of
from coarse.protocol.config import FOLDER, Config
from coarse.storage.cache_lines import FlushedLines
from coarse.storage.folder import is_memory_behind_caches
from coarse.storage.state_file import StateFile, StoredVersion, read_version
from coarse.transport.handed import ask_for_slots
from coarse.transport.launcher import HANDED, told_to_this_job

_LOCK_S: Final = 10.0
"""Seconds that processes of an earlier job have to end before their files are said to be in use."""
_LOOK_S: Final = 0.05


Open = Callable[[int, int], int]
"""Function that returns a descriptor, which is the caller's to close, of a worker's slot of a number."""


def opened_at(paths: Sequence[Sequence[str]]) -> Open:
    """Return a function that opens slots by the paths of each worker's."""
    return lambda worker, place: os.open(paths[worker][place], os.O_RDWR | os.O_CLOEXEC)


def opened_in(folder: str) -> Open:
    """Return a function that opens slots in a folder, and makes those that are missing."""
    return lambda worker, place: os.open(_path_in(folder, worker, place), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def handed_at(path: str) -> Open:
    """Return a function that asks the launcher for slots, at a socket."""

    def handed(worker: int, place: int) -> int:
        descriptors = ask_for_slots(path, worker, NUM_SLOTS)
        for other, descriptor in enumerate(descriptors):
            if other != place:
                os.close(descriptor)
        return descriptors[place]

    return handed


class StateMemory:
    """Slots of a worker, of which there are two, and those of other workers that its node can read."""

    def __init__(self, opens: Open, worker: int, *, folder: str | None = None) -> None:
        """Open the worker's slots; `folder` is where they are files of the user's.

        Raises:
            StorageError: another job uses the worker's files.
        """
        self._opens, self._worker, self._folder = opens, worker, folder
        self._flush = FlushedLines().flush if folder is not None and is_memory_behind_caches(folder) else None
        self._lock: int | None = None
        if folder is not None:
            path = f"{folder}/worker-{worker}.lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _lock(self._lock, path)
        self._slots = [
            StateFile(opens(worker, place), self._named(worker, place), self._flush) for place in range(NUM_SLOTS)
        ]

    def close(self) -> None:
        """Release this process's hold of the slots."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        for slot in self._slots:
            slot.close()

    def _named(self, worker: int, slot: int) -> str:
        path = "" if self._folder is None else f" ({_path_in(self._folder, worker, slot)})"
        return f"slot {slot} of worker {worker}'s state memory{path}"

    def slot(self, version: int) -> StateFile:
        """Return the slot for a version of this worker's."""
        return self._slots[slot_of(version)]

    def reserve(self, data_bytes: int, layout_bytes: int) -> None:
        """Make room for two versions of these sizes.

        Raises:
            CapacityError: there is no such room.
        """
        for slot in self._slots:
            slot.reserve(data_bytes, layout_bytes)

    def found(self) -> tuple[Seen, dict[int, StoredVersion]]:
        """Return the versions seen in this worker's memory, and each that is whole by its number."""
        whole: dict[int, StoredVersion] = {}
        damaged = []
        for slot in self._slots:
            try:
                if (version := slot.read()) is not None:
                    whole[version.number] = version
            except StorageError:
                damaged.append(slot.number())
        return Seen(tuple(sorted(whole)), tuple(damaged)), whole

    def of_other(self, worker: int, version: int) -> StoredVersion:
        """Return a version of another worker's, which that worker has found to be whole."""
        place = slot_of(version)
        return read_version(self._opens(worker, place), self._named(worker, place), version, self._flush)


def state_memory(config: Config, environ: Mapping[str, str], worker: int, num_workers: int) -> StateMemory | None:
    """Return the memory of a worker's states, from the launcher or the configuration; None without one.

    Raises:
        ConfigError: a folder that is not the user's own, or that cannot be made.
        StorageError: a folder with files of another number of workers, or that another job uses.
    """
    if told := told_to_this_job(environ).get("COARSE_STATE_MEMORY"):
        if told.startswith(HANDED):
            return StateMemory(handed_at(told.removeprefix(HANDED)), worker)
        folder, _, numbers = told.rpartition("/")
        paths = [f"{folder}/{number}" for number in numbers.split(",")]
        return StateMemory(opened_at([paths[i : i + NUM_SLOTS] for i in range(0, len(paths), NUM_SLOTS)]), worker)
    if (stated := config.faults.memory) is None:
        return None
    folder = stated.removeprefix(FOLDER)
    _require_own(Path(folder), num_workers)
    return StateMemory(opened_in(folder), worker, folder=folder)


def _path_in(folder: str, worker: int, slot: int) -> str:
    return f"{folder}/worker-{worker}.{slot}"


def _require_own(folder: Path, num_workers: int) -> None:
    """Make the folder if it is missing; refuse one that others may write to, or of other workers.

    Raises:
        ConfigError: it cannot be made, or others may write to it.
        StorageError: it is of another number of workers.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"[faults] memory = {str(folder)!r} cannot be made ({error.strerror})") from None
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"[faults] memory = {str(folder)!r} is user {status.st_uid}'s and has mode "
            f"{stat.S_IMODE(status.st_mode):o}; name a folder of your own with mode 700, since a user who may "
            "write there may change the states"
        )
    others = sorted(
        path.name for path in folder.glob("worker-*.0")
        if not path.stem.removeprefix("worker-").isdecimal() or int(path.stem.removeprefix("worker-")) >= num_workers
    )  # fmt: skip
    if others:
        raise StorageError(
            f"[faults] memory = {str(folder)!r} has {others[0]}, and this job has {num_workers} workers; go on with as "
            "many workers as before, or name an empty folder"
        )


def _lock(descriptor: int, path: str) -> None:
    """Lock the files for this job, once processes of an earlier job have ended.

    Raises:
        StorageError: another job uses them.
    """
    clock = WallClock()
    until_s = clock.now_s() + _LOCK_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if clock.now_s() > until_s:
            raise StorageError(
                f"another job has had {path} in use for {_LOCK_S:g} s; end it, or name another folder in [faults]"
            )
        clock.sleep_s(_LOOK_S)
