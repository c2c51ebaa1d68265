"""Files of one folder: locked, checked for room, accessed past the kernel's cache where that works.

Every operation goes through a Disk, so that tests can fail each, end the process at each, and lose power between two.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from coarse.errors import CapacityError, StorageError
from coarse.luwu.store.commit import MANIFEST, RECORDS, Commit, Manifest, decode_manifest, newest_first
from coarse.luwu.store.layout import BLOCK_BYTES
from coarse.protocol import override
from coarse.storage.folder import file_system_type
from coarse.storage.room import available_bytes

SLOTS, SUMS, _LOCK = "slots", "sums", "lock"
_REMOTE = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs",
    "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone",
})  # fmt: skip
"""File systems whose disks are another machine's."""


class Disk:
    """Files of the operating system; each method is one operation that may raise OSError."""

    def make_folder(self, path: Path) -> None:
        """Make the folder and its parents, where they are not there yet."""
        path.mkdir(parents=True, exist_ok=True)

    def open(self, path: Path, *, is_direct: bool = False) -> int:
        """Return a descriptor of a file, which is made where it is not there yet."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_DIRECT if is_direct else 0), 0o666)

    def close(self, descriptor: int) -> None:
        """Close a descriptor, and with it the lock that it may have."""
        os.close(descriptor)

    def lock(self, descriptor: int, holder: str) -> str | None:
        """Lock a file for this process alone, and write `holder` into it.

        Return None, or the text of the holder where another process has the lock.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise
            return os.pread(descriptor, 1000, 0).decode(errors="replace") or "another process"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        return None

    def kind(self, path: Path) -> str:
        """Return the type of a folder's file system."""
        return file_system_type(str(path))

    def allocated_bytes(self, descriptor: int) -> int:
        """Return the bytes of the disk that a file takes."""
        return os.fstat(descriptor).st_blocks * 512

    def allocate(self, descriptor: int, nbytes: int) -> None:
        """Set bytes aside for a file."""
        os.posix_fallocate(descriptor, 0, nbytes)

    def read(self, descriptor: int, buffer: np.ndarray, offset: int) -> int:
        """Fill (n,) uint8 from a place of a file; return the number of bytes that came."""
        return os.preadv(descriptor, [buffer], offset)  # type: ignore[list-item]

    def write(self, descriptor: int, buffer: np.ndarray, offset: int) -> int:
        """Write (n,) uint8 to a place of a file; return the number of bytes that went."""
        return os.pwritev(descriptor, [buffer], offset)  # type: ignore[list-item]

    def sync(self, descriptor: int) -> None:
        """Return once all that was written to a file is on the disk."""
        os.fdatasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, atomically; a file that has the name goes."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def sync_folder(self, path: Path) -> None:
        """Return once a folder's names are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def content(self, path: Path) -> bytes | None:
        """Return the content of a small file; None where there is none."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def free_bytes(self, path: Path) -> int:
        """Return the bytes of room that is left for this user."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class MemoryDisk(Disk):
    """Files in memory alone, gone with the process: states that no disk keeps."""

    def __init__(self) -> None:
        self._contents: dict[str, int] = {}

    @override
    def make_folder(self, path: Path) -> None:
        ...

    @override
    def open(self, path: Path, *, is_direct: bool = False) -> int:
        if is_direct:
            raise OSError(errno.EINVAL, "memory is not direct")
        return self._contents.setdefault(str(path), os.memfd_create("coarse-paged", os.MFD_CLOEXEC))

    @override
    def kind(self, path: Path) -> str:
        return "memory"

    @override
    def rename(self, source: Path, target: Path) -> None:
        ...

    @override
    def sync_folder(self, path: Path) -> None:
        ...

    def content(self, path: Path) -> bytes | None:
        """Return None: memory begins anew each time."""
        return None

    @override
    def free_bytes(self, path: Path) -> int:
        return available_bytes()


def aligned(nbytes: int) -> np.ndarray:
    """Return (nbytes,) uint8, zeros, for direct access: it begins at a block, and takes whole ones."""
    return np.frombuffer(mmap.mmap(-1, -(-max(nbytes, 1) // BLOCK_BYTES) * BLOCK_BYTES), np.uint8)[:nbytes]


class PagedFolder:
    """Folder that is this process's until it is closed."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        """Make the folder where it is not there, and lock it.

        Raises:
            StorageError: it cannot be made, is another machine's, or another job has it.
        """
        self.path = path
        self.disk = disk or Disk()
        self.is_direct = False
        """True if reads and writes go past the kernel's cache."""
        self._files: dict[str, int] = {}
        try:
            with self._told("made and locked"):
                self.disk.make_folder(path)
                if (kind := self.disk.kind(path)) in _REMOTE:
                    raise StorageError(
                        f"{path} is of a {kind} file system, whose disk is another machine's: it keeps neither locks "
                        "nor the order of writes; name a folder on a disk of this host"
                    )
                self._files[_LOCK] = self.disk.open(path / _LOCK)
                holder = f"process {os.getpid()} of {os.uname().nodename}"
                if (other := self.disk.lock(self._files[_LOCK], holder)) is not None:
                    raise StorageError(
                        f"{path} is in use by {other}; wait until it has ended, or name another folder"
                    )
        except BaseException:
            self.close()
            raise

    # --- what it holds

    def manifest(self) -> Manifest | None:
        """Return the manifest of the folder; None where it is new.

        Raises:
            StorageError: the manifest is torn.
        """
        with self._told("read"):
            raw = self.disk.content(self.path / MANIFEST)
        return None if raw is None else decode_manifest(raw, str(self.path / MANIFEST))

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the folder's manifest, for good."""
        with self._told("written to"):
            self._write_file(MANIFEST, manifest.encode())

    def commits(self) -> list[Commit]:
        """Return the records that are whole, the newest first."""
        with self._told("read"):
            copies = [self.disk.content(self.path / name) for name in RECORDS]
        return newest_first([raw for raw in copies if raw is not None])

    def void_newer(self, commit: Commit | None) -> None:
        """Make void all records that are newer than one, or all; return once that is on the disk."""
        for newer in self.commits():
            if commit is None or newer.sequence > commit.sequence:
                with self._told("written to"):
                    descriptor = self._record_file(newer)
                    self._write_all(descriptor, np.zeros(BLOCK_BYTES, np.uint8), 0)
                    self.disk.sync(descriptor)

    def write_commit(self, commit: Commit) -> None:
        """Make a step the current one; return once that is on the disk."""
        with self._told("written to"):
            raw = np.frombuffer(commit.encode(), np.uint8)
            descriptor = self._record_file(commit)
            self._write_all(descriptor, raw, 0)
            self.disk.sync(descriptor)

    def _record_file(self, commit: Commit) -> int:
        descriptor = self._files.get(commit.file)
        if descriptor is None:
            descriptor = self._files[commit.file] = self.disk.open(self.path / commit.file)
            self.disk.sync_folder(self.path)
        return descriptor

    def _write_file(self, name: str, content: bytes) -> None:
        descriptor = self.disk.open(self.path / f"{name}.new")
        try:
            self._write_all(descriptor, np.frombuffer(content, np.uint8), 0)
            self.disk.sync(descriptor)
        finally:
            self.disk.close(descriptor)
        self.disk.rename(self.path / f"{name}.new", self.path / name)
        self.disk.sync_folder(self.path)

    # --- slots and sums

    def open_files(self, nbytes: int, sum_nbytes: int) -> None:
        """Make files for all slots, and for sums of gradients where `sum_nbytes` is not 0, with room for all.

        Raises:
            CapacityError: the disk has less room.
            StorageError: it cannot be written to.
        """
        for name, wanted in ((SLOTS, nbytes), (SUMS, sum_nbytes)):
            if wanted:
                self._open_file(name, wanted)
        with self._told("synced"):
            self.disk.sync_folder(self.path)

    def _open_file(self, name: str, nbytes: int) -> None:
        path = self.path / name
        with self._told("written to"):
            try:
                descriptor = self.disk.open(path, is_direct=True)
                self.is_direct = True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                descriptor = self.disk.open(path)
                self.is_direct = False
            self._files[name] = descriptor
            has_nbytes = self.disk.allocated_bytes(descriptor)
            if nbytes > has_nbytes:
                free = self.disk.free_bytes(self.path)
                if nbytes - has_nbytes > free:
                    raise self._full(name, nbytes, free)
            try:
                self.disk.allocate(descriptor, nbytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                raise self._full(name, nbytes, self.disk.free_bytes(self.path)) from error

    def _full(self, name: str, nbytes: int, free_bytes: int) -> CapacityError:
        return CapacityError(
            f"{self.path} needs {nbytes} bytes for {name} and its disk has {free_bytes} left; make room, or name more "
            "folders on other disks"
        )

    def read(self, name: str, buffer: np.ndarray, offset: int) -> None:
        """Fill (n,) uint8, aligned as `aligned` does, from a place of a file.

        Raises:
            StorageError: the file cannot be read.
        """
        with self._told("read", offset):
            done = 0
            while done < len(buffer):
                came = self.disk.read(self._files[name], buffer[done:], offset + done)
                if not came:
                    raise OSError(errno.EIO, "the file ends before")
                done += came

    def write(self, name: str, buffer: np.ndarray, offset: int) -> None:
        """Write (n,) uint8, aligned as `aligned` does, to a place of a file.

        Raises:
            StorageError: the file cannot be written to.
        """
        with self._told("written to", offset):
            self._write_all(self._files[name], buffer, offset)

    def _write_all(self, descriptor: int, buffer: np.ndarray, offset: int) -> None:
        done = 0
        while done < len(buffer):
            done += self.disk.write(descriptor, buffer[done:], offset + done)

    def corrupt(self, name: str, offset: int) -> StorageError:
        """Return the error of bytes that are not those that were written there."""
        return StorageError(
            f"{self.path / name} at byte {offset}: wanted the bytes that were written, got others: something else "
            "writes there, or the disk loses data; go on from the last committed step, on another disk"
        )

    def sync(self) -> None:
        """Return once all that was written to slots is on the disk."""
        if SLOTS in self._files:
            with self._told("synced"):
                self.disk.sync(self._files[SLOTS])

    def close(self) -> None:
        """Close the files, and release the lock at last."""
        lock = self._files.pop(_LOCK, None)
        for descriptor in self._files.values():
            self.disk.close(descriptor)
        self._files.clear()
        if lock is not None:
            self.disk.close(lock)

    @contextlib.contextmanager
    def _told(self, what: str, offset: int | None = None) -> Iterator[None]:
        """Raise StorageError, with the folder's name, in place of the operating system's errors."""
        try:
            yield
        except (StorageError, CapacityError):
            raise
        except OSError as error:
            at = "" if offset is None else f" at byte {offset}"
            raise StorageError(
                f"{self.path} cannot be {what}{at}: {error.strerror or error}; let the job's user write to a folder on "
                "a sound disk of this host"
            ) from error


def require_fitting(manifests: Sequence[Manifest | None], wanted: Sequence[Manifest], paths: Sequence[Path]) -> None:
    """Raise StorageError unless all folders of an optimizer node hold the states that it resumes with."""
    for found, want, path in zip(manifests, wanted, paths, strict=True):
        if found is None:
            raise StorageError(
                f"{path} holds no optimizer states, and resume=True was given; name the folders of the run that is to "
                "go on, in their order, or leave resume out"
            )
        if found.digest != want.digest or found.optimizer != want.optimizer:
            raise StorageError(
                f"{path} holds another model's states ({found.optimizer}, model {found.digest[:8]}), and this one is "
                f"{want.optimizer}, model {want.digest[:8]}: names, shapes, frozen parameters, units, dtype and the "
                "number of devices have to be equal; name the folders of this model"
            )
        places = (found.device, found.num_devices, found.folder, found.num_folders)
        if places != (want.device, want.num_devices, want.folder, want.num_folders):
            raise StorageError(
                f"{path} is folder {found.folder} of {found.num_folders} of optimizer node {found.device} of "
                f"{found.num_devices}, and is named as folder {want.folder} of {want.num_folders} of node "
                f"{want.device} of {want.num_devices}; name the same folders in the same order"
            )
        if found.kernel != want.kernel:
            raise StorageError(
                f"{path} was written by the kernel {found.kernel}, and this is {want.kernel}: further steps would have "
                "other bits; pass other_kernel=True to go on nevertheless"
            )
    if len({found.run for found in manifests if found is not None}) > 1:
        raise StorageError(f"{[str(path) for path in paths]} are of several runs; name the folders of one")
