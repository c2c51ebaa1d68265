"""File operations of checkpoints, in one place so that tests can fail each."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coarse.errors import SnapshotError
from coarse.protocol.distribution import how_to_install
from coarse.snapshots.files.manifest import entry_of
from coarse.snapshots.files.pieces import TensorPiece

MISSING_SAFETENSORS = (
    f"checkpoints need the package safetensors, 0.8 or newer ({{error}}); install it with: {how_to_install('snapshot')}"
)


def require_safetensors() -> None:
    """Raise SnapshotError where checkpoints cannot be written for want of a package."""
    try:
        from safetensors import TensorSpec  # noqa: F401
    except ImportError as error:
        raise SnapshotError(MISSING_SAFETENSORS.format(error=error)) from error


class FileSystem:
    """Files of the operating system; each method is one operation that may raise OSError."""

    def make_folder(self, path: Path) -> None:
        """Make the folder and its parents, where they are not there yet."""
        path.mkdir(parents=True, exist_ok=True)

    def list_folder(self, path: Path) -> frozenset[str] | None:
        """Return the names in a folder; None where there is no such folder."""
        try:
            return frozenset(os.listdir(path))
        except FileNotFoundError:
            return None

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, atomically; a file that has the name goes."""
        os.rename(source, target)

    def remove_file(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def sync(self, path: Path) -> None:
        """Return once the file's bytes, or the folder's names, are on the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def nbytes(self, path: Path) -> int:
        """Return the length of a file in bytes."""
        return os.stat(path).st_size

    def sha256(self, path: Path) -> str:
        """Return the checksum of a file's content, in hexadecimal."""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def read(self, path: Path) -> bytes:
        """Return the content of a file; a byte at most of one without a length (a device, say)."""
        with open(path, "rb") as file:
            return file.read(os.fstat(file.fileno()).st_size + 1)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file."""
        path.write_bytes(content)

    def write_tensors(self, path: Path, pieces: Sequence[TensorPiece]) -> None:
        """Write a safetensors file straight from the arrays' memory, without the GIL."""
        require_safetensors()
        from safetensors import SafetensorError, TensorSpec, serialize_file

        arrays = [np.ascontiguousarray(piece.data) for piece in pieces]
        specs = {}
        for piece, array in zip(pieces, arrays, strict=True):
            entry = entry_of(piece)
            specs[entry.stored_name] = TensorSpec(
                dtype=entry.dtype,
                shape=entry.stored_shape,
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
        path.touch()
        mode = path.stat().st_mode
        try:
            serialize_file(specs, path)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error
        path.chmod(mode)  # safetensors leaves files that their owner alone can read
