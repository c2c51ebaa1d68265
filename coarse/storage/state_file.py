"""Slot of a worker's state memory: a file that describes itself, and counts once its word says so.

[Note: a slot's bytes] A page of head, then the data, then the layout (text that gives the place of each part), then a
checksum of each MiB of data, 4 bytes each. The head's first 8 bytes are the word: the version's number in the upper
half, the checksum of number, head, layout and checksums in the lower; it is 0 while a version is written. Processors
write 8 aligned bytes at once and stores in order, so a process that maps the file after its writer died finds a whole
version or none. Where memory outlives the host, lines are flushed before the word is stored, and the word behind it.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from coarse.errors import CapacityError, StorageError
from coarse.protocol.units import MIB
from coarse.storage.checksums import CHECKSUMS, Checksum, best_checksum, checksum_named
from coarse.storage.room import available_bytes

BLOCK_BYTES: Final = MIB
_MAGIC: Final = b"coarse-state-1\0\0"
_HEAD = struct.Struct("<16sQQQ")
_HEAD_AT, _DATA_AT = 8, 4096
_HEADROOM_BYTES = 64 * MIB


class StoredVersion(NamedTuple):
    """Whole version as a slot has it."""

    number: int
    layout: bytes
    data: np.ndarray
    """Data, (n,) uint8, the slot's own memory."""
    sums: np.ndarray
    """Checksums, (blocks,) uint32: that of each MiB of `data`."""


def _nothing(_: np.ndarray) -> None:
    """Do nothing: the machine's own memory agrees with its caches."""


class StateFile:
    """Slot, mapped; its descriptor is closed with it."""

    def __init__(self, descriptor: int, where: str, flush: Callable[[np.ndarray], object] | None = None) -> None:
        """Take the descriptor of a slot.

        `where` names the slot for people. `flush` empties this host's caches of (n,) uint8, where stored bytes must
        reach memory to outlive the host.
        """
        self._descriptor = descriptor
        self._where = where
        self._flush = flush or _nothing
        self._bytes = np.empty(0, np.uint8)
        self._sizes = (0, 0)
        self._checksum: Checksum | None = None

    def close(self) -> None:
        """Give up the descriptor; views keep their bytes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- writing

    def reserve(self, data_bytes: int, layout_bytes: int) -> None:
        """Make room for a version of these sizes.

        Raises:
            CapacityError: the machine, or the file system, has not so much.
        """
        end = _DATA_AT + data_bytes + layout_bytes + 4 * num_blocks(data_bytes)
        needed = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        status = os.fstat(self._descriptor)
        has = status.st_size if self._flush is not _nothing else 0  # files of famfs are made with all their bytes
        more = needed - max(status.st_blocks * 512, has)
        if more > 0:
            room = max(available_bytes() - _HEADROOM_BYTES, 0) if status.st_nlink == 0 else more
            if more > room:
                raise CapacityError(self._no_room(needed, f"{room} bytes are left"))
            try:
                os.posix_fallocate(self._descriptor, 0, needed)
            except OSError as error:
                raise CapacityError(self._no_room(needed, str(error.strerror))) from None
        if needed > len(self._bytes):
            self._map(needed)

    def _no_room(self, needed: int, why: str) -> str:
        return (
            f"{self._where} takes {needed} bytes to keep the states of this worker, and {why}; free memory, place the "
            "states elsewhere ([faults] memory), or start without --restarts"
        )

    def begin(self, data_bytes: int, layout_bytes: int) -> np.ndarray:
        """Make the slot's version void, and return (data_bytes,) uint8 to be written."""
        self.reserve(data_bytes, layout_bytes)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # a copy of what is there may be under way
        self._word()[0] = 0
        self._flush(self._bytes[:8])
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._sizes = (data_bytes, layout_bytes)
        return self._bytes[_DATA_AT : _DATA_AT + data_bytes]

    @property
    def checksum(self) -> Checksum:
        """Checksum of each MiB of data, as `record` wants it."""
        if self._checksum is None:
            self._checksum = checksum_named(best_checksum())
        return self._checksum

    def record(self, number: int, layout: bytes, sums: np.ndarray) -> None:
        """Make the data written since `begin` count, as the version of a number from 1 to 2^32 - 1.

        Args:
            number: the version's number.
            layout: the layout's text.
            sums: (blocks,) uint32.
        """
        data_bytes, layout_bytes = self._sizes
        assert len(layout) == layout_bytes
        name = best_checksum().encode()
        head = _HEAD.pack(_MAGIC, data_bytes, layout_bytes, CHECKSUMS.index(name.decode()))
        end = _DATA_AT + data_bytes + layout_bytes
        self._bytes[_HEAD_AT : _HEAD_AT + len(head)] = np.frombuffer(head, np.uint8)
        self._bytes[end - layout_bytes : end] = np.frombuffer(layout, np.uint8)
        self._bytes[end : end + 4 * len(sums)] = sums.astype("<u4").view(np.uint8)
        self._flush(self._bytes[8 : end + 4 * len(sums)])
        self._word()[0] = number << 32 | self._sum_of_table(self.checksum, number, data_bytes, layout_bytes)
        self._flush(self._bytes[:8])

    # --- reading

    def number(self) -> int:
        """Return the number of the version that the word names; 0 where it names none."""
        self._map_all()
        self._flush(self._bytes)  # drops what another host has written since
        return int(self._word()[0]) >> 32 if len(self._bytes) else 0

    def read(self) -> StoredVersion | None:
        """Return the version that is there; None where there is none.

        Raises:
            StorageError: there is one, and its bytes have another checksum.
        """
        if not (number := self.number()):
            return None
        head = self._bytes[_HEAD_AT : _HEAD_AT + _HEAD.size].tobytes()
        magic, data_bytes, layout_bytes, kind = _HEAD.unpack(head)
        end = _DATA_AT + data_bytes + layout_bytes
        if magic != _MAGIC or kind >= len(CHECKSUMS) or end + 4 * num_blocks(data_bytes) > len(self._bytes):
            raise self._damage(number, "its head is not one")
        checksum = checksum_named(CHECKSUMS[kind])
        if self._sum_of_table(checksum, number, data_bytes, layout_bytes) != int(self._word()[0]) & 0xFFFFFFFF:
            raise self._damage(number, "its table has another checksum")
        data = self._bytes[_DATA_AT : _DATA_AT + data_bytes]
        sums = self._bytes[end : end + 4 * num_blocks(data_bytes)].view("<u4")
        for block, wanted in enumerate(sums):
            begin = block * BLOCK_BYTES
            if checksum(data[begin : begin + BLOCK_BYTES]) != wanted:
                raise self._damage(number, f"the MiB from byte {begin} of its data has another checksum")
        return StoredVersion(number, self._bytes[end - layout_bytes : end].tobytes(), data, sums)

    def _damage(self, number: int, why: str) -> StorageError:
        return StorageError(f"version {number} in {self._where} is damaged: {why}")

    def _sum_of_table(self, checksum: Checksum, number: int, data_bytes: int, layout_bytes: int) -> int:
        """Return the checksum of number, head, layout and checksums."""
        begin = _DATA_AT + data_bytes
        own = np.array([number], "<u8").view(np.uint8)
        head = self._bytes[_HEAD_AT : _HEAD_AT + _HEAD.size]
        table = self._bytes[begin : begin + layout_bytes + 4 * num_blocks(data_bytes)]
        return checksum(np.concatenate([own, head, table]))

    # --- mapping

    def _word(self) -> np.ndarray:
        return self._bytes[:8].view("<u8")

    def _map_all(self) -> None:
        nbytes = os.fstat(self._descriptor).st_size if self._descriptor >= 0 else 0
        if nbytes > len(self._bytes) and nbytes >= _DATA_AT:
            self._map(nbytes)

    def _map(self, nbytes: int) -> None:
        """Map the first bytes of the file, which has them."""
        try:
            mapping = mmap.mmap(self._descriptor, nbytes, mmap.MAP_SHARED)
        except OSError as error:
            raise CapacityError(f"{self._where}: this process cannot map {nbytes} bytes ({error.strerror})") from None
        mapping.madvise(mmap.MADV_DONTFORK)
        self._bytes = np.frombuffer(mapping, np.uint8)


def read_version(
    descriptor: int, where: str, number: int, flush: Callable[[np.ndarray], object] | None = None
) -> StoredVersion:
    """Return the version of a number from a slot that another process writes, and close its descriptor.

    Raises:
        StorageError: it has another one, or none, or its bytes have another checksum.
    """
    slot = StateFile(descriptor, where, flush)
    try:
        found = slot.read()
    finally:
        slot.close()
    if found is None or found.number != number:
        raise StorageError(f"{where} has {f'version {found.number}' if found else 'no version'}, not {number}")
    return found


class BlockSums:
    """Checksums of data that are written in order, each MiB's taken while caches have it."""

    def __init__(self, data: np.ndarray, checksum: Callable[[np.ndarray], int]) -> None:
        self._data, self._checksum = data, checksum
        self.sums = np.zeros(num_blocks(len(data)), np.uint32)
        """Checksums, (blocks,); right once all is written."""
        self._done = 0

    def written_to(self, end: int) -> None:
        """Note that all bytes before `end` are written."""
        while self._done < len(self.sums) and min((self._done + 1) * BLOCK_BYTES, len(self._data)) <= end:
            begin = self._done * BLOCK_BYTES
            self.sums[self._done] = self._checksum(self._data[begin : begin + BLOCK_BYTES])
            self._done += 1


def num_blocks(data_bytes: int) -> int:
    """Return the number of checksums of so many bytes."""
    return -(-data_bytes // BLOCK_BYTES)
