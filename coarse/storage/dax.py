"""Memory that a devdax character device maps: CXL or persistent memory not managed by the kernel.

Such a device is neither read nor allocated, only mapped, in whole units of its alignment, and it keeps the bytes
written when a job ends. A job locks it (`claim.py`).
"""

import os
import stat
from pathlib import Path

from coarse.errors import ConfigError
from coarse.storage.claim import capacity_in, claim, claimed_range
from coarse.storage.region import FilledSource, MemoryFile

_SYS = Path("/sys")


def open_dax(
    path: str, wanted_bytes: int | None, offset_bytes: int = 0, nbytes: int | None = None, *, claims: bool = True
) -> MemoryFile:
    """Open the device from a byte on, locked for this job, with `wanted_bytes` in whole units.

    Units are its alignment. Without `wanted_bytes` it has `nbytes`, or all to the end; without `claims` it is not
    locked.

    Raises:
        ConfigError: it is no devdax device, in another mode, not permitted, or in use.
        CapacityError: it is smaller than wanted.
    """
    folder = _sys_folder(path)
    size_bytes, align_bytes = size_and_align(path)
    claimed = claimed_range("device", size_bytes, align_bytes, offset_bytes, nbytes)
    capacity_bytes = capacity_in(claimed, align_bytes, wanted_bytes, "device")
    descriptor = _opened(path, folder)
    try:
        if claims:
            claim(descriptor, claimed, "device")
    except BaseException:
        os.close(descriptor)
        raise
    return MemoryFile(
        descriptor=descriptor,
        capacity_bytes=capacity_bytes,
        source=FilledSource(path),
        begin_bytes=offset_bytes,
        align_bytes=align_bytes,
    )


def size_and_align(path: str) -> tuple[int, int]:
    """Return the bytes of a devdax device, and of the units in which it is mapped.

    Raises:
        ConfigError: it is none.
    """
    folder = _sys_folder(path)
    size_bytes, align_bytes = (int((folder / name).read_text()) for name in ("size", "align"))
    return size_bytes, align_bytes


def dax_devices() -> list[str]:
    """Return the names of the machine's dax devices, in any mode."""
    folder = _SYS / "bus" / "dax" / "devices"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def device_number(path: str) -> str | None:
    """Return `major:minor` of a character device, None of any other file.

    Raises:
        OSError: there is no such file.
    """
    status = os.stat(path)
    if not stat.S_ISCHR(status.st_mode):
        return None
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _sys_folder(path: str) -> Path:
    """Return the kernel's folder of a device, below /sys."""
    known = f"dax devices here: {', '.join(dax_devices()) or 'none'}; `daxctl list` shows them"
    try:
        number = device_number(path)
    except OSError as error:
        raise ConfigError(f"there is no such device ({error.strerror}); {known}") from None
    folder = _SYS / "dev" / "char" / str(number)
    if number is None or (folder / "subsystem").resolve().name != "dax":
        raise ConfigError(
            f"this is no devdax device; {known}; an existing file is named by file:, a "
            "folder for files of coarse's own by folder:"
        )
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
