"""Memory that a devdax character device maps: CXL or persistent memory that the kernel does not manage.

Such a device is neither read nor allocated, only mapped, in whole units of its alignment, and it keeps what was
written when a job ends. A job locks it (flock), which the kernel undoes with the last process that maps it.
"""

import fcntl
import os
import stat
from pathlib import Path

from coarse.errors import CapacityError, ConfigError
from coarse.storage.region import MemoryFile, PageSource

_SYS = Path("/sys")
_PROCESSES = Path("/proc")


class DaxSource(PageSource):
    """Pages that are all there: nothing is left to be made real."""

    def __init__(self, path: str) -> None:
        self.name = path

    def room_bytes(self) -> int:
        """More than any device has."""
        return 1 << 62

    def take(self, descriptor: int, offset: int, nbytes: int) -> None:
        """Nothing: the device has no fallocate, and needs none."""


def open_dax(path: str, wanted_bytes: int | None) -> MemoryFile:
    """The device, locked for this job, with `wanted_bytes` in whole units of its alignment (all of it, if None).

    Raises:
        ConfigError: it is no devdax device, in another mode, not permitted, or somebody uses it.
        CapacityError: it is smaller than what is wanted.
    """
    folder = _sys_folder(path)
    size_bytes, align_bytes = size_and_align(path)
    if wanted_bytes is not None and wanted_bytes > size_bytes:
        raise CapacityError(
            f"{wanted_bytes} bytes are wanted but the device has {size_bytes}; lower device_capacity_bytes, or leave "
            "it out for all that each device has"
        )
    capacity_bytes = -(-(wanted_bytes or size_bytes) // align_bytes) * align_bytes  # as a mapping must be
    descriptor = _opened(path, folder)
    try:
        _lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return MemoryFile(descriptor=descriptor, capacity_bytes=capacity_bytes, source=DaxSource(path))


def size_and_align(path: str) -> tuple[int, int]:
    """Bytes of a devdax device, and of the units in which it is mapped; ConfigError where it is none."""
    folder = _sys_folder(path)
    size_bytes, align_bytes = (int((folder / name).read_text()) for name in ("size", "align"))
    return size_bytes, align_bytes


def dax_devices() -> list[str]:
    """The names of the machine's dax devices, in whatever mode they are."""
    folder = _SYS / "bus" / "dax" / "devices"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def device_number(path: str) -> str | None:
    """`major:minor` of a character device, None of any other file; OSError where there is none."""
    status = os.stat(path)
    if not stat.S_ISCHR(status.st_mode):
        return None
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _sys_folder(path: str) -> Path:
    """What the kernel says of a device, a folder below /sys."""
    known = f"dax devices here: {', '.join(dax_devices()) or 'none'}; `daxctl list` shows them"
    try:
        number = device_number(path)
    except OSError as error:
        raise ConfigError(f"there is no such device ({error.strerror}); {known}") from None
    folder = _SYS / "dev" / "char" / str(number)
    if number is None or (folder / "subsystem").resolve().name != "dax":
        raise ConfigError(f"this is no devdax device; {known}; a folder of files is named by folder:")
    return folder


def _opened(path: str, folder: Path) -> int:
    driver = (folder / "driver").resolve().name
    if driver == "kmem":
        node = (folder / "target_node").read_text().strip()
        raise ConfigError(
            f"the kernel uses this device as memory of NUMA node {node}; name 'numa:{node}', or take it back by "
            f"daxctl reconfigure-device --mode=devdax --force {folder.resolve().name}"
        )
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"the device cannot be opened ({error.strerror}); give the job's user read and write access to it, and a "
            "container the device (docker run --device)"
        ) from None


def _lock(descriptor: int) -> None:
    """Have the device for this job alone; the lock ends with the last mapping of this open file."""
    users = _users(os.fstat(descriptor))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_locked = True
    else:
        is_locked = False
    if users or is_locked:
        who = f"process {', '.join(map(str, users))}" if users else "another process"
        raise ConfigError(
            f"{who} uses the device; name another one, or wait for that job's end (fuser -v names it)"
        )


def _users(status: os.stat_result) -> list[int]:
    """Processes that have mapped the file, as far as this user may see; not this one."""
    mark = f" {os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino} "
    users = []
    for maps in _PROCESSES.glob("[0-9]*/maps"):
        try:
            is_user = mark in maps.read_text()
        except OSError:  # ended meanwhile, or another user's
            continue
        if is_user and int(maps.parent.name) != os.getpid():
            users.append(int(maps.parent.name))
    return sorted(users)
