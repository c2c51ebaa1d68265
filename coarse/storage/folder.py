"""Memory in an unnamed file on a file system of the user's choice: huge pages, a DAX mount, a tmpfs."""

import os
import tempfile
from pathlib import Path

from coarse.errors import ConfigError
from coarse.storage.region import MemoryFile, PageSource, check_capacity
from coarse.storage.room import total_bytes

_MOUNTS = Path("/proc/self/mountinfo")
_UNLIMITED_BYTES = 1 << 62


class FolderSource(PageSource):
    """Pages of the file system that an open file is on."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._type = file_system_type(path)
        self.descriptor = descriptor
        """Descriptor of the file."""
        self.name = f"{self._type or 'the file system'} at {path}"
        self.page_bytes = max(PageSource.page_bytes, os.fstatvfs(descriptor).f_bsize)

    def room_bytes(self) -> int:
        """Return the bytes that the file system has left.

        Where they are the machine's memory, the machine must have them left, too.
        """
        status = os.fstatvfs(self.descriptor)
        free_bytes = status.f_bavail * status.f_frsize if status.f_blocks else _UNLIMITED_BYTES
        return min(free_bytes, super().room_bytes()) if self._type in ("tmpfs", "ramfs") else free_bytes


def create_in_folder(path: str, wanted_bytes: int | None, num_sharers: int) -> MemoryFile:
    """Make a sparse file of `wanted_bytes` in whole pages (all that the file system has left, if None).

    Raises:
        ConfigError: the folder is absent, not permitted, or of a file system that cannot hold such a file.
        CapacityError: the file system has not enough for the `num_sharers` devices that want so much of it.
    """
    if not os.path.isdir(path):
        raise ConfigError("there is no such folder; make it, or name another")
    try:
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            source = FolderSource(path, os.dup(file.fileno()))
    except OSError as error:
        raise ConfigError(
            f"no file can be made there ({error.strerror}); let the job's user write to the folder, or name another"
        ) from None
    try:
        return MemoryFile(
            descriptor=source.descriptor,
            capacity_bytes=_grown(source, wanted_bytes, num_sharers),
            source=source,
        )
    except BaseException:
        os.close(source.descriptor)
        raise


def _grown(source: FolderSource, wanted_bytes: int | None, num_sharers: int) -> int:
    """Make the empty file as long as it may ever become; return its new length."""
    room_bytes = source.room_bytes()
    if wanted_bytes is not None:
        check_capacity(wanted_bytes, num_sharers, source.name, room_bytes)
    most_bytes = total_bytes() if room_bytes == _UNLIMITED_BYTES else room_bytes
    capacity_bytes = max(-(-(wanted_bytes or most_bytes) // source.page_bytes), 1) * source.page_bytes
    try:
        os.ftruncate(source.descriptor, capacity_bytes)
    except OSError as error:
        raise ConfigError(
            f"{source.name} holds no file of {capacity_bytes} bytes ({error.strerror}); set device_capacity_bytes to "
            "what it can hold"
        ) from None
    return capacity_bytes


def file_system_type(path: str) -> str:
    """Return a file system's type, such as "ext4", "tmpfs" or "hugetlbfs".

    It is empty where the kernel does not tell it.
    """
    return _mount_of(path)[0]


def is_memory_behind_caches(path: str) -> bool:
    """Return whether stores into files at a path stay in this host's caches until lines are flushed.

    They do on famfs, whose memory other hosts have mapped, and on file systems that are mounted with DAX.
    """
    kind, options = _mount_of(path)
    return kind in ("famfs", "fuse.famfs") or not {"dax", "dax=always"}.isdisjoint(options)


def _mount_of(path: str) -> tuple[str, list[str]]:
    """Return the type of the file system at a path, and its options.

    They are empty where the kernel does not tell them.
    """
    device = os.stat(path).st_dev
    mark = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == mark:
            kind, _, own = rest.split(maxsplit=2)
            return kind, [*fields.split()[5].split(","), *own.split(",")]
    return "", []
