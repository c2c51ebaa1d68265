"""A disk in memory, which can lose power: what was not synced may be lost, in any order, and torn within a sector."""

import errno
import random
from pathlib import Path

import numpy as np

from coarse.luwu.store.folder import Disk

SECTOR_BYTES = 512


class PowerLost(BaseException):
    """The machine is off."""


class MemoryDisk(Disk):
    """Files by their path. Names and contents have what programs see, and what is on the disk for good."""

    def __init__(self, stop_at: int | None = None) -> None:
        """`stop_at`: the operation (from 0) at which the power is lost, before it has any effect."""
        self.stop_at = stop_at
        self.log: list[tuple[str, str]] = []
        self.files: dict[str, bytearray] = {}
        self.synced: dict[str, bytes] = {}
        self._unsynced: dict[str, list[tuple[int, bytes]]] = {}
        self._names: list[tuple[str, str]] = []
        """Renames that no sync of a folder has followed."""
        self._new: set[str] = set()
        """Files that were made since."""
        self._open: dict[int, str] = {}
        self.locks: dict[str, str] = {}
        self.is_full_beyond = 1 << 60
        self.is_direct = True

    def after_power_loss(self, seed: int) -> "MemoryDisk":
        """The disk when the machine is on again: of what was not synced some parts are there and some are not."""
        rng = random.Random(seed)
        found = MemoryDisk()
        for path in sorted(self.files.keys() | self.synced.keys()):
            if path in self._new and rng.random() < 0.5:
                continue
            content = bytearray(self.synced.get(path, b""))
            kept = [write for write in self._unsynced.get(path, []) if rng.random() < 0.5]
            rng.shuffle(kept)
            for offset, data in kept:
                end = len(data)
                if rng.random() < 0.5:
                    end = rng.randrange(len(data) + 1) // SECTOR_BYTES * SECTOR_BYTES
                content.extend(bytes(max(0, offset + end - len(content))))
                content[offset : offset + end] = data[:end]
            found.files[path] = content
            found.synced[path] = bytes(content)
        for source, target in self._names:
            if rng.random() < 0.5 and source in found.files:
                found.files[target] = found.files.pop(source)
                found.synced[target] = found.synced.pop(source)
        return found

    def after_kill(self) -> "MemoryDisk":
        """The disk as others see it when the process is gone."""
        found = MemoryDisk()
        found.files = {path: bytearray(content) for path, content in self.files.items()}
        found.synced = {path: bytes(content) for path, content in self.files.items()}
        return found

    def _do(self, name: str, path: Path | str) -> None:
        if self.stop_at is not None and len(self.log) >= self.stop_at:
            raise PowerLost
        self.log.append((name, Path(path).name))

    def make_folder(self, path):
        self._do("make_folder", path)

    def kind(self, path):
        return "ext4"

    def open(self, path, *, is_direct=False):
        if is_direct and not self.is_direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        self._do("open", path)
        if str(path) not in self.files:
            self._new.add(str(path))
        self.files.setdefault(str(path), bytearray())
        self._unsynced.setdefault(str(path), [])
        descriptor = 1000 + len(self.log)
        self._open[descriptor] = str(path)
        return descriptor

    def close(self, descriptor):
        self.locks.pop(self._open.pop(descriptor), None)

    def lock(self, descriptor, holder):
        path = self._open[descriptor]
        if path in self.locks:
            return self.locks[path]
        self.locks[path] = holder
        return None

    def allocated_bytes(self, descriptor):
        return len(self.files[self._open[descriptor]])

    def allocate(self, descriptor, nbytes):
        self._do("allocate", self._open[descriptor])
        if nbytes > self.is_full_beyond:
            raise OSError(errno.ENOSPC, "No space left on device")
        content = self.files[self._open[descriptor]]
        content.extend(bytes(max(0, nbytes - len(content))))

    def read(self, descriptor, buffer, offset):
        content = self.files[self._open[descriptor]]
        data = content[offset : offset + len(buffer)]
        buffer[: len(data)] = np.frombuffer(bytes(data), np.uint8)
        return len(data)

    def write(self, descriptor, buffer, offset):
        path = self._open[descriptor]
        self._do("write", path)
        content = self.files[path]
        data = buffer.tobytes()
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
        self._unsynced[path].append((offset, data))
        return len(data)

    def sync(self, descriptor):
        path = self._open[descriptor]
        self._do("sync", path)
        self.synced[path] = bytes(self.files[path])
        self._unsynced[path] = []

    def rename(self, source, target):
        self._do("rename", target)
        self._names.append((str(source), str(target)))
        for held in (self.files, self.synced, self._unsynced):
            if str(source) in held:
                held[str(target)] = held.pop(str(source))

    def sync_folder(self, path):
        self._do("sync_folder", path)
        self._names.clear()
        self._new = {name for name in self._new if Path(name).parent != path}
        for name, content in self.files.items():
            self.synced.setdefault(name, bytes(content) if not self._unsynced.get(name) else b"")

    def content(self, path):
        found = self.files.get(str(path))
        return None if found is None else bytes(found)

    def free_bytes(self, path):
        return self.is_full_beyond
