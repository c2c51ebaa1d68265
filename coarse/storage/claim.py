"""Bytes of a device or file that one memory device has for itself, and the check that no other has.

[Note: locks of ranges] Several memory devices may have bytes of one file, so each locks its range (an open file
description lock of fcntl(2)), and all together keep out a process that locks the whole file by flock(2). The kernel
undoes both with the last descriptor and mapping of that open file, so a device is locked as long as any rank of its job
lives. Locks are known on one host only, also where several hosts have the file.
"""

import fcntl
import os
import re
import struct
from pathlib import Path

from coarse.errors import CapacityError, ConfigError

_PROCESSES = Path("/proc")
_FLOCK = struct.Struct("hhqqi4x")
"""Layout of `struct flock` on x86-64: type, whence, start, length, process (0 for such a lock)."""
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) ", re.MULTILINE)


def claimed_range(noun: str, size_bytes: int, align_bytes: int, offset_bytes: int, nbytes: int | None) -> range:
    """Return a memory device's range of a device or file of `size_bytes`, in whole units of its alignment.

    Raises:
        ConfigError: it would begin between two units.
        CapacityError: there are not so many bytes.
    """
    if offset_bytes % align_bytes:
        raise ConfigError(
            f"memory_offset_bytes must be a multiple of the {noun}'s alignment, {align_bytes}, got {offset_bytes}; "
            f"write {offset_bytes // align_bytes * align_bytes} or {-(-offset_bytes // align_bytes) * align_bytes}"
        )
    end = size_bytes if nbytes is None else offset_bytes + nbytes
    if end > size_bytes:
        raise CapacityError(
            f"bytes {offset_bytes} to {end} are wanted but the {noun} has {size_bytes}; lower memory_offset_bytes or "
            "memory_bytes"
        )
    end -= end % align_bytes
    if end <= offset_bytes:
        raise CapacityError(
            f"the {noun} has {size_bytes} bytes, of which {max(0, size_bytes - offset_bytes)} come after "
            f"byte {offset_bytes} and {nbytes or 'all'} are asked for: no unit of {align_bytes}; name a longer one, or "
            "change memory_offset_bytes and memory_bytes"
        )
    return range(offset_bytes, end)


def capacity_in(claimed: range, align_bytes: int, wanted_bytes: int | None, noun: str) -> int:
    """Return the bytes of a memory device that wants so many, in whole units; all of them, if None.

    Raises:
        CapacityError: there are not so many.
    """
    if wanted_bytes is not None and wanted_bytes > len(claimed):
        raise CapacityError(
            f"{wanted_bytes} bytes are wanted but the {noun} has {len(claimed)}; lower device_capacity_bytes, or leave "
            "it out for all that each device has"
        )
    return -(-(wanted_bytes or len(claimed)) // align_bytes) * align_bytes  # as a mapping must be


def claim(descriptor: int, claimed: range, noun: str) -> None:
    """Lock bytes of an open file for this job alone; see [Note: locks of ranges].

    Raises:
        ConfigError: others have locked or mapped them, or they cannot be locked.
    """
    users = _users(os.fstat(descriptor), claimed)
    is_locked = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, claimed.start, len(claimed), 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as fcntl(2) has it
        is_locked = True
    except OSError as error:
        raise ConfigError(
            f"the {noun} cannot be locked ({error.strerror}), so that another job might use it too; have its file "
            "system mounted with locks, or name another"
        ) from None
    if users or is_locked:
        who = f"process {', '.join(map(str, users))}" if users else "another process"
        raise ConfigError(
            f"{who} uses the {noun}; name another one, or wait for that job's end (fuser -v names it)"
        )


def _users(status: os.stat_result, claimed: range) -> list[int]:
    """Return the processes that have mapped any of the bytes, as far as this user may see; not this one."""
    device, inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", str(status.st_ino)
    users = []
    for maps in _PROCESSES.glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # ended meanwhile, or another user's
            continue
        if f" {device} {inode} " not in text or int(maps.parent.name) == os.getpid():
            continue
        for first, last, begin, of_device, of_inode in _MAPPING.findall(text):
            start = int(begin, 16)
            end = start + int(last, 16) - int(first, 16)
            if (of_device, of_inode) == (device, inode) and start < claimed.stop and claimed.start < end:
                users.append(int(maps.parent.name))
                break
    return sorted(users)
