"""Device memory: bytes that every rank of a node has mapped.

The backing is a memory file without a name (memfd): it never had a path, so nothing is left behind when the ranks end
or are killed. The file is as long as the address range that it may ever use, and sparse; `reserve` makes a range real,
after asking whether the machine has room, so that touching a region never ends in SIGBUS. A partition table may put
another file behind it (`device_file.py`).

[Note: mapping] Batch systems limit a process's address space, and every rank of a node maps every device's file, which
is as long as the machine's memory. So a rank maps the first GiB, and twice as much whenever a view reaches further.
Older mappings stay, for views of them live on: the same bytes may stand at several addresses.
"""

import mmap
import os
import resource
from dataclasses import dataclass

import numpy as np

from coarse.errors import CapacityError
from coarse.gpu.interface import GpuOffer
from coarse.storage.room import available_bytes, binding_limit

_HEADROOM_BYTES = 64 * 1024 * 1024
"""Bytes that `reserve` leaves to the rest of the machine."""
_EXTENT_BYTES = 256 * 1024
"""Bytes that `reserve` makes real at a time, if there is room: asking the machine takes longer than a small region's
use."""
_FIRST_MAPPING_BYTES = 1 << 30
"""Bytes of the first mapping: a whole number of pages of every kind, huge ones and devdax's too."""
_MAP_NORESERVE = 0x4000
"""Flag of <asm-generic/mman-common.h>; the module mmap does not name it. Without it, a file system of huge pages sets
aside the whole mapping at once."""


class PageSource:
    """Source of pages for `reserve`: here the machine's memory, on any of its NUMA nodes."""

    name: str = "the machine"
    page_bytes: int = 4096

    def room_bytes(self) -> int:
        """Return the bytes that may still be made real; not above 0 where there are none."""
        return available_bytes() - _HEADROOM_BYTES

    def take(self, descriptor: int, offset: int, nbytes: int) -> None:
        """Make a range of the file real.

        Raises:
            OSError: the kernel has no pages for it.
        """
        os.posix_fallocate(descriptor, offset, nbytes)


class FilledSource(PageSource):
    """Pages that are all there, such as those of a devdax device: none is left to be made real."""

    def __init__(self, name: str) -> None:
        self.name = name

    def room_bytes(self) -> int:
        """Return more bytes than any device has."""
        return 1 << 62

    def take(self, descriptor: int, offset: int, nbytes: int) -> None:
        """Do nothing: a devdax device and famfs have no fallocate, and need none."""


class DeviceMemory:
    """Bytes of one device as this process sees them."""

    def __init__(
        self, descriptor: int, capacity_bytes: int, source: PageSource | None = None, begin_bytes: int = 0
    ) -> None:
        """Map as much of the file as is used; without a `source` its pages are the machine's memory.

        [Note: mapping] has the details. The device's first byte is the file's at `begin_bytes`, above 0 only where all
        pages are there.

        Raises:
            CapacityError: this process may not map so much.
        """
        self._descriptor = descriptor
        self.capacity_bytes = capacity_bytes
        self._begin_bytes = begin_bytes
        self._source = source or PageSource()
        self._bytes = np.empty(0, np.uint8)
        """Newest mapping: the device's first bytes, as far as they have been used."""
        self._mappings: list[tuple[int, int]] = []
        """(Address, length) of each mapping; older ones live as long as their views."""
        self._map(1)
        self._is_real = np.zeros(-(-capacity_bytes // self._source.page_bytes), np.bool_)
        """True for each page that `reserve` has made real; the array costs nothing where that is never called."""

    @property
    def descriptor(self) -> int:
        """File descriptor, to be passed to the other ranks of the node."""
        return self._descriptor

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """Return the bytes [offset, offset + nbytes); the mapping lives as long as any view of it.

        Raises:
            CapacityError: this process may not map so much.
        """
        mapped = self._bytes  # another thread may put a newer mapping there, even a shorter one than this thread's
        if offset + nbytes > len(mapped):
            mapped = self._map(offset + nbytes)
        return mapped[offset : offset + nbytes]

    def is_at(self, address: int, offset: int) -> bool:
        """Return whether an address of this process is that of the byte at `offset`, in any of the mappings."""
        return any(address == begin + offset for begin, _ in self._mappings)

    def has(self, address: int) -> bool:
        """Return whether an address of this process lies in any of the mappings."""
        return any(begin <= address < begin + nbytes for begin, nbytes in self._mappings)

    def _map(self, end: int) -> np.ndarray:
        """Map the device's bytes from its beginning to `end` at least, anew; see [Note: mapping]."""
        if end > self.capacity_bytes:
            raise ValueError(f"a device of {self.capacity_bytes} bytes has no byte {end - 1}")
        wanted = max(_FIRST_MAPPING_BYTES, 2 * len(self._bytes), -(-end // _FIRST_MAPPING_BYTES) * _FIRST_MAPPING_BYTES)
        nbytes = min(wanted, self.capacity_bytes)
        try:
            mapping = mmap.mmap(
                self._descriptor, nbytes, mmap.MAP_SHARED | _MAP_NORESERVE, offset=self._begin_bytes
            )
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            why = f"its address space is limited to {limit} bytes (ulimit -v)" if limit >= 0 else str(error.strerror)
            raise CapacityError(
                f"this process cannot map {nbytes} bytes of a memory device of {self.capacity_bytes}: {why}; raise "
                "that limit, or lower device_capacity_bytes"
            ) from None
        mapping.madvise(mmap.MADV_DONTFORK)
        mapped = np.frombuffer(mapping, np.uint8)
        self._mappings.append((mapped.__array_interface__["data"][0], nbytes))
        self._bytes = mapped
        return mapped

    def reserve(self, offset: int, nbytes: int) -> str:
        """Make a range real; return the reason why not, or an empty string.

        A real range stays so, and costs no more.
        """
        pages = self._pages(offset, nbytes)
        if pages.all():
            return ""
        wanted_bytes = min(nbytes, self._unreal_bytes(pages))
        room = max(self._source.room_bytes(), 0)
        if wanted_bytes > room:
            return f"{self._source.name} has {room} bytes of memory left of the {wanted_bytes} wanted{_limit_said()}"
        extent_bytes = max(nbytes, min(_EXTENT_BYTES, self.capacity_bytes - offset))
        extent = self._pages(offset, extent_bytes)
        if self._unreal_bytes(extent) <= room // 2:
            nbytes, pages = extent_bytes, extent
        try:
            self.view(offset, nbytes)  # a region that its own device cannot see is of no use
        except CapacityError as refused:
            return str(refused)
        try:
            self._source.take(self._descriptor, offset, nbytes)
        except OSError as error:
            return f"the kernel refused {nbytes} bytes of {self._source.name} ({error.strerror})"
        pages[:] = True
        return ""

    def _pages(self, offset: int, nbytes: int) -> np.ndarray:
        """Return for each page of a range whether it is real, to be read and written."""
        page_bytes = self._source.page_bytes
        return self._is_real[offset // page_bytes : -(-(offset + nbytes) // page_bytes)]

    def _unreal_bytes(self, pages: np.ndarray) -> int:
        return (len(pages) - int(np.count_nonzero(pages))) * self._source.page_bytes

    def close(self) -> None:
        """Give up the descriptor; views and the bytes below them stay."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class MemoryFile:
    """File that all ranks of a node map as one device's memory."""

    descriptor: int
    capacity_bytes: int
    source: PageSource
    """Source of pages of the device that owns it."""
    begin_bytes: int = 0
    """Offset in the file at which the device begins."""
    align_bytes: int = PageSource.page_bytes
    """Unit of the length of a mapping."""
    gpu: GpuOffer | None = None
    """Offer of the GPU's bytes, for a device whose keys' regions are on a GPU."""


def create_memory_file(name: str, nbytes: int) -> int:
    """Return the descriptor of a new sparse memory file."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    return descriptor


def check_capacity(
    wanted_bytes: int, num_devices: int, name: str = "this machine", room_bytes: int | None = None
) -> None:
    """Refuse devices that together are larger than the room of this machine, or of another source.

    Raises:
        CapacityError: they do not fit.
    """
    room = available_bytes() if room_bytes is None else max(room_bytes, 0)
    if wanted_bytes * num_devices > room:
        raise CapacityError(
            f"{num_devices} memory devices of {wanted_bytes} bytes do not fit: {name} has {room} "
            f"bytes of memory left{_limit_said()}; lower device_capacity_bytes, or leave it out to grow as needed"
        )


def _limit_said() -> str:
    """Return what a message adds where a control group, such as a job's of Slurm, leaves less than the machine."""
    limit = binding_limit()
    return "" if limit is None else f" ({limit}; raise that by --mem of Slurm, or by --memory of docker run)"
