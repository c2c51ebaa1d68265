"""Copies on disk of states that workers have committed, for lost machines and preempted jobs.

[Note: old or new] A copy is written into a folder of its own, whose files and name are synced; then the folder gets the
name by which it counts, and older ones are removed. So at any moment the newest folder of such a name is whole. Slots
are copied aside in memory first, if it has room, so that workers do not wait for the disk.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from coarse.errors import ConfigError, StorageError
from coarse.launch.state_memory import HeldMemory
from coarse.storage.region import create_memory_file
from coarse.storage.room import available_bytes
from coarse.storage.state_file import read_version

_NAME = re.compile(r"version-(\d{10})")
_WRITING: Final = "writing"
_CHUNK_BYTES: Final = 1 << 24
_HEADROOM_BYTES: Final = 1 << 28


class DiskCopies:
    """Folder with copies of a job's states."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0
        """Version of the newest copy that was written or read."""

    def make(self) -> None:
        """Make the folder if it is missing.

        Raises:
            ConfigError: it cannot be made, or has copies that were not gone on from.
        """
        if self.version == 0 and (found := self._found()):
            raise ConfigError(
                f"--keep {self.folder} has {found[0].name} of another run; go on from it by --resume, or name "
                "an empty folder"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--keep {self.folder} cannot be made ({error.strerror}); name another folder") from None

    def write(self, memory: HeldMemory) -> int:
        """Write the newest version that all workers have, if it is not there yet.

        Return its number, 0 for none.

        Raises:
            OSError: the disk is full, or cannot be written; the copy before stays.
        """
        with memory.lock:
            return self._write(memory)

    def _write(self, memory: HeldMemory) -> int:
        version = min(memory.versions())
        if version <= self.version:
            return self.version
        unfinished = self.folder / _WRITING
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(mode=0o700)
            with ExitStack() as opened:
                with _held(memory, version) as descriptors:
                    if descriptors is None:  # workers have gone on meanwhile
                        return self.version
                    if has_room := _has_room(descriptors):
                        descriptors = [_aside(descriptor, opened) for descriptor in descriptors]
                    else:
                        _write_all(descriptors, unfinished)
                if has_room:
                    _write_all(descriptors, unfinished)
            _require_whole(unfinished, version, len(memory.slots_of(version)))  # else the copy before stays
            for path in unfinished.iterdir():
                _sync(path)
            _sync(unfinished)
            unfinished.replace(self.folder / f"version-{version:010d}")
            self.version = version
            _sync(self.folder)
        except StorageError:  # a slot's bytes have changed, which whoever goes on from them is told
            shutil.rmtree(unfinished, ignore_errors=True)
            return self.version
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        for older in self._found()[1:]:
            shutil.rmtree(older, ignore_errors=True)
        return version

    def read(self, memory: HeldMemory, num_workers: int) -> tuple[int, list[str]]:
        """Put the newest whole copy into memory that holds nothing.

        Return its version, and the reasons why newer ones were passed over.

        Raises:
            StorageError: there is no whole copy.
        """
        wrong: list[str] = []
        for folder in self._found():
            try:
                version = int(_NAME.fullmatch(folder.name)[1])  # type: ignore[index]
                _require_whole(folder, version, num_workers)
            except (StorageError, OSError) as error:
                wrong.append(str(error))
                continue
            for worker in range(num_workers):
                memory.fill(worker, version, folder / f"worker-{worker}")
            self.version = version
            return version, wrong
        found = f": {'; '.join(wrong)}" if wrong else ", and no copy at all"
        raise StorageError(
            f"no whole copy of {num_workers} workers' states in {self.folder}{found}; begin without --resume"
        )

    def _found(self) -> list[Path]:
        """Return the folders of copies, the newest first."""
        paths = self.folder.iterdir() if self.folder.is_dir() else iter(())
        return sorted((path for path in paths if _NAME.fullmatch(path.name)), reverse=True)


@contextmanager
def _held(memory: HeldMemory, version: int) -> Iterator[list[int] | None]:
    """Yield descriptors of all workers' slots of a version, which are not written within the context.

    It is None if one has been written.
    """
    descriptors = memory.slots_of(version)
    with ExitStack() as opened:
        for descriptor in descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            opened.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield descriptors if all(memory.number_in(descriptor) == version for descriptor in descriptors) else None


def _has_room(descriptors: Sequence[int]) -> bool:
    """Return whether memory has room for one more version of all workers."""
    return sum(os.fstat(each).st_size for each in descriptors) + _HEADROOM_BYTES <= available_bytes()


def _aside(descriptor: int, opened: ExitStack) -> int:
    """Return a copy in memory, so that the slot's worker waits for memory alone and not for the disk."""
    copy = create_memory_file("coarse-copy", 0)
    opened.callback(os.close, copy)
    at = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, at):
        os.pwrite(copy, chunk, at)
        at += len(chunk)
    return copy


def _write_all(descriptors: Sequence[int], folder: Path) -> None:
    for worker, descriptor in enumerate(descriptors):
        _copy(descriptor, folder / f"worker-{worker}")


def _copy(descriptor: int, path: Path) -> None:
    with path.open("xb") as file:
        at = 0
        while chunk := os.pread(descriptor, _CHUNK_BYTES, at):
            file.write(chunk)
            at += len(chunk)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_whole(folder: Path, version: int, num_workers: int) -> None:
    """Raise StorageError if a copy of a version is torn, or of another number of workers."""
    names = {path.name for path in folder.iterdir()}
    if names != {f"worker-{worker}" for worker in range(num_workers)}:
        raise StorageError(f"{folder} has states of {len(names)} workers, and the job has {num_workers}")
    for worker in range(num_workers):
        path = folder / f"worker-{worker}"
        read_version(os.open(path, os.O_RDWR | os.O_CLOEXEC), str(path), version)

