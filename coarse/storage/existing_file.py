"""Memory in an existing file, such as one of famfs: mapped as it is, never made, resized or removed.

famfs gives files of memory that several hosts share over CXL: allocated when they are made, never grown or shrunk
afterwards, without fallocate. A file of any other file system is used in the same way, and its holes are filled first:
a mapping of a hole takes a page when it is touched, and where there is none the process dies of SIGBUS.
"""

import mmap
import os
import stat
from collections.abc import Sequence

from coarse.errors import CapacityError, ConfigError
from coarse.protocol.partition import RankPlace
from coarse.protocol.place import ExistingFile, overlap
from coarse.storage.claim import capacity_in, claim, claimed_range
from coarse.storage.folder import FolderSource, file_system_type
from coarse.storage.region import FilledSource, MemoryFile

# fmt: off
SHARED_TYPES = frozenset({
    "famfs", "fuse.famfs", "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "virtiofs",
    "9p", "gfs2", "ocfs2", "fuse.glusterfs",
})
# fmt: on
"""File systems on which one path of two hosts is one file."""


def open_existing(
    path: str, wanted_bytes: int | None, offset_bytes: int = 0, nbytes: int | None = None, *, claims: bool = True
) -> MemoryFile:
    """Open the file from a byte on, locked for this job, with `wanted_bytes` in whole pages.

    Without `wanted_bytes` it has `nbytes`, or all. Without `claims` it is not locked: another rank of the job does
    that.

    Raises:
        ConfigError: it is no such file, not permitted, cannot be mapped, or in use.
        CapacityError: it is too short, or has holes that its file system has no room to fill.
    """
    descriptor = _opened(path)
    try:
        page_bytes = _page_bytes(path, descriptor)
        claimed = claimed_range("file", os.fstat(descriptor).st_size, page_bytes, offset_bytes, nbytes)
        capacity_bytes = capacity_in(claimed, page_bytes, wanted_bytes, "file")
        _require_mappable(descriptor, page_bytes, offset_bytes)
        if claims:
            claim(descriptor, claimed, "file")
        _fill_holes(path, descriptor, range(offset_bytes, offset_bytes + capacity_bytes))
    except BaseException:
        os.close(descriptor)
        raise
    return MemoryFile(
        descriptor=descriptor,
        capacity_bytes=capacity_bytes,
        source=FilledSource(path),
        begin_bytes=offset_bytes,
        align_bytes=page_bytes,
    )


def refuse_overlap_elsewhere(place: ExistingFile, elsewhere: Sequence[RankPlace]) -> None:
    """Raise ConfigError where a device of another host has bytes of the same file.

    It does so if hosts share the file system.
    """
    try:
        kind = file_system_type(place.path)
    except OSError:
        return  # an absent file is refused when it is opened
    if kind not in SHARED_TYPES:
        return
    for other in elsewhere:
        if isinstance(other.memory, ExistingFile) and overlap(place, other.memory):
            raise ConfigError(
                f"rank {other.rank} on {other.node} has bytes of it too ('{other.memory}'), and hosts share files of "
                f"{kind}; give each bytes of its own (memory_offset_bytes, memory_bytes), or a file of its own"
            )


def _opened(path: str) -> int:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(
            f"there is no such file ({error.strerror}); make it as long as the device shall be (fallocate -l 64G PATH, "
            "on famfs: famfs creat -s 64G PATH), for coarse neither makes nor grows it"
        ) from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"this is a folder; name a file in it, or 'folder:{path}' for a file without a name there")
    if stat.S_ISCHR(mode):
        raise ConfigError(f"this is a character device; name it 'dax:{path}' if it is a devdax device")
    if not stat.S_ISREG(mode):
        raise ConfigError("this is no regular file; name one that can be mapped")
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"the file cannot be opened for reading and writing ({error.strerror}); give the job's user both, on a "
            "file system that is mounted for writing"
        ) from None


def _page_bytes(path: str, descriptor: int) -> int:
    """Return the unit of offset and length of a mapping of the file."""
    is_huge = file_system_type(path) == "hugetlbfs"
    return os.fstatvfs(descriptor).f_bsize if is_huge else mmap.ALLOCATIONGRANULARITY


def _require_mappable(descriptor: int, page_bytes: int, offset_bytes: int) -> None:
    try:
        mmap.mmap(descriptor, page_bytes, mmap.MAP_SHARED, offset=offset_bytes).close()
    except OSError as error:
        raise ConfigError(
            f"the file cannot be mapped ({error.strerror}); name one on a file system whose files can be shared by mmap"
        ) from None


def _fill_holes(path: str, descriptor: int, used: range) -> None:
    """Fill holes with pages for all bytes that are used; the file keeps its length and content."""
    status = os.fstat(descriptor)
    if status.st_blocks * 512 >= status.st_size:  # st_blocks counts units of 512 bytes, see stat(2)
        return
    holes = holes_of(descriptor, used)
    hole_bytes = sum(map(len, holes))
    kind = file_system_type(path)
    if kind in ("tmpfs", "ramfs"):  # these take the machine's memory until the out-of-memory killer comes
        room_bytes = max(0, FolderSource(path, descriptor).room_bytes())
        if hole_bytes > room_bytes:
            raise _unfilled(hole_bytes, kind, f"{room_bytes} bytes are left")
    for hole in holes:
        try:
            os.posix_fallocate(descriptor, hole.start, len(hole))
        except OSError as error:
            raise _unfilled(hole_bytes, kind, error.strerror or str(error)) from None


def holes_of(descriptor: int, used: range) -> list[range]:
    """Return the parts of a range that have no pages yet.

    They include parts that the file system does not tell from such ones.
    """
    holes, at = [], used.start
    while at < used.stop:
        hole = min(os.lseek(descriptor, at, os.SEEK_HOLE), used.stop)
        if hole == used.stop:
            break
        try:
            at = min(os.lseek(descriptor, hole, os.SEEK_DATA), used.stop)
        except OSError:  # ENXIO: there is no data behind it
            at = used.stop
        holes.append(range(hole, at))
    return holes


def _unfilled(hole_bytes: int, kind: str, why: str) -> CapacityError:
    return CapacityError(
        f"{hole_bytes} bytes of the file are holes, and {kind or 'its file system'} cannot fill them ({why}); make "
        "room there, name a file that has all its bytes, or lower device_capacity_bytes"
    )
