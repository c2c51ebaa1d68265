"""Device memory: bytes that every rank of a node has mapped.

The backing is a memory file without a name (memfd): it never had a path, so nothing is left behind,
whatever kills the ranks. The file is as long as the address range that it may ever use, and sparse;
`reserve` makes a range real, after asking whether the machine has room, so that touching a
region never ends in SIGBUS.
"""

import mmap
import os
from pathlib import Path

import numpy as np

from coarse.errors import CapacityError

_HEADROOM_BYTES = 64 * 1024 * 1024
"""What `reserve` leaves to the rest of the machine."""
_PAGE_BYTES = 4096


class DeviceMemory:
    """One device's bytes as this process sees them."""

    def __init__(self, descriptor: int, capacity_bytes: int) -> None:
        self._descriptor = descriptor
        self.capacity_bytes = capacity_bytes
        mapping = mmap.mmap(descriptor, capacity_bytes, mmap.MAP_SHARED)
        mapping.madvise(mmap.MADV_DONTFORK)
        self._bytes = np.frombuffer(mapping, np.uint8)
        self._is_real = np.zeros(-(-capacity_bytes // _PAGE_BYTES), np.bool_)
        """For each page whether `reserve` has made it real; costs nothing where that is never called."""
        self.address: int = self._bytes.__array_interface__["data"][0]
        """Where the mapping begins in this process."""

    @property
    def descriptor(self) -> int:
        """The file descriptor, to be handed to the other ranks of the node."""
        return self._descriptor

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """The bytes [offset, offset + nbytes); the mapping lives as long as any view of it."""
        return self._bytes[offset : offset + nbytes]

    def reserve(self, offset: int, nbytes: int) -> str:
        """Make a range real; the reason why not, or an empty string. What is real stays so, and costs no more."""
        pages = self._is_real[offset // _PAGE_BYTES : -(-(offset + nbytes) // _PAGE_BYTES)]
        wanted_bytes = min(nbytes, (len(pages) - int(np.count_nonzero(pages))) * _PAGE_BYTES)
        room = available_bytes() - _HEADROOM_BYTES
        if wanted_bytes > max(room, 0):
            return f"the machine has {max(room, 0)} bytes of memory left of the {wanted_bytes} wanted"
        try:
            os.posix_fallocate(self._descriptor, offset, nbytes)
        except OSError as error:
            return f"the kernel refused {nbytes} bytes of shared memory ({error.strerror})"
        pages[:] = True
        return ""

    def close(self) -> None:
        """Give up the descriptor; views and the bytes below them stay."""
        os.close(self._descriptor)


def create_memory_file(name: str, nbytes: int) -> int:
    """The descriptor of a new sparse memory file."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    return descriptor


def check_capacity(wanted_bytes: int, num_devices: int) -> None:
    """Refuse devices that together are larger than what this machine has left."""
    room = available_bytes()
    if wanted_bytes * num_devices > room:
        raise CapacityError(
            f"{num_devices} memory devices of {wanted_bytes} bytes do not fit: this machine has {room} "
            "bytes of memory left; lower device_capacity_bytes, or leave it out to grow as needed"
        )


def available_bytes() -> int:
    """Bytes that may still be taken: what the kernel has left, or the control group's limit leaves."""
    return min(_kernel_bytes(), _group_v2_bytes(), _group_v1_bytes())


def total_bytes() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kernel_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return total_bytes()


def _group_v2_bytes() -> int:
    return _left_of_group(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "")


def _group_v1_bytes() -> int:
    folder = Path("/sys/fs/cgroup/memory")
    return _left_of_group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _left_of_group(folder: Path, limit_name: str, usage_name: str, prefix: str) -> int:
    """A control group's limit less what it uses; cached files count as left, for the kernel drops them on demand."""
    try:
        limit, usage = ((folder / name).read_text().strip() for name in (limit_name, usage_name))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return 1 << 62
    if limit == "max":
        return 1 << 62
    cached = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, int(limit) - int(usage) + cached)
