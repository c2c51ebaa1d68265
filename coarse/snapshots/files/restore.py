"""Checkpoints read back: every byte is checked before any is used."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coarse.errors import CheckpointError
from coarse.protocol.dtypes import DType
from coarse.snapshots.files.checkpoint import replaced_folder
from coarse.snapshots.files.filesystem import MISSING_SAFETENSORS, FileSystem
from coarse.snapshots.files.manifest import MANIFEST_FILE, Manifest, PartEntry, decode_manifest
from coarse.snapshots.files.pieces import StoredTensor, TensorPiece

_DTYPES = {dtype.label: dtype for dtype in DType}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Content of a snapshot."""

    step: int
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_checkpoint(folder: Path, fs: FileSystem | None = None) -> Checkpoint:
    """Return the checkpoint in `folder`, with its tensors joined from the pieces of all writers."""
    fs = fs or FileSystem()
    found = find_checkpoint(folder, fs)
    manifest = read_manifest(found, fs)
    tensors: dict[str, StoredTensor] = {}
    for part in manifest.parts:
        for piece in read_part(found, part, fs):
            _join(tensors, piece)
    return Checkpoint(step=manifest.step, metadata=manifest.metadata, tensors=tensors)


def find_checkpoint(folder: Path, fs: FileSystem | None = None) -> Path:
    """Return the folder that holds the checkpoint: after a crash it may be the replaced one's.

    [Note: checkpoint files] has the details.
    """
    fs = fs or FileSystem()
    folder = folder.resolve()
    for place in (folder, replaced_folder(folder)):
        if MANIFEST_FILE in _names(place, fs):
            return place
    names = sorted(_names(folder, fs))
    found = f"a folder with {', '.join(names[:3])}" if names else "nothing"
    raise CheckpointError(
        f"{folder / MANIFEST_FILE}: wanted a checkpoint's manifest, got {found}; give the folder "
        "that coarse.snapshot() wrote: one without a manifest was never complete"
    )


def read_manifest(folder: Path, fs: FileSystem | None = None) -> Manifest:
    """Return the manifest in a folder that `find_checkpoint` gave."""
    path = folder / MANIFEST_FILE
    return decode_manifest(_content(path, "a checkpoint's manifest", fs or FileSystem()), str(path))


def read_part(folder: Path, part: PartEntry, fs: FileSystem | None = None) -> list[TensorPiece]:
    """Return the pieces in one part of the checkpoint, in separate writable memory."""
    path = folder / part.file
    raw = _content(path, f"{part.nbytes} bytes", fs or FileSystem())
    if len(raw) != part.nbytes:
        raise CheckpointError(
            f"{path}: wanted {part.nbytes} bytes, got {len(raw)}: the file is torn or another's; "
            "copy it again from where it was whole, or take an older checkpoint"
        )
    digest = hashlib.sha256(raw).hexdigest()
    if digest != part.sha256:
        raise CheckpointError(
            f"{path}: wanted content with sha256 {part.sha256}, got {digest}: the file has changed "
            "since it was written; copy it again from where it was whole, or take an older "
            "checkpoint"
        )
    return _pieces(path, part, raw)


def _pieces(path: Path, part: PartEntry, raw: bytes) -> list[TensorPiece]:
    try:
        import safetensors
    except ImportError as error:
        raise CheckpointError(MISSING_SAFETENSORS.format(error=error)) from error
    try:
        deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize
        stored = dict(deserialize(raw))
        return [
            TensorPiece(
                name=entry.name,
                dtype=_DTYPES[entry.dtype],
                shape=entry.shape,
                data=_array(stored[entry.stored_name], entry.stored_shape, _DTYPES[entry.dtype]),
                first=entry.first,
            )
            for entry in part.pieces
        ]
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: wanted the {len(part.pieces)} pieces that the manifest lists, got a file "
            f"that differs ({error!r}); the program that wrote it is at fault: take an older "
            "checkpoint"
        ) from error


def _array(stored: dict[str, Any], shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if tuple(stored["shape"]) != shape:
        raise ValueError(f"shape {stored['shape']} where the manifest has {list(shape)}")
    return np.frombuffer(stored["data"], dtype.storage).reshape(shape)


def _join(tensors: dict[str, StoredTensor], piece: TensorPiece) -> None:
    if piece.is_whole:
        tensors[piece.name] = StoredTensor(dtype=piece.dtype, array=piece.data)
        return
    if piece.name not in tensors:
        array = np.empty(piece.shape, piece.dtype.storage)
        tensors[piece.name] = StoredTensor(dtype=piece.dtype, array=array)
    flat = tensors[piece.name].array.reshape(-1)
    flat[piece.first : piece.first + piece.numel] = piece.data


def _names(folder: Path, fs: FileSystem) -> frozenset[str]:
    try:
        return fs.list_folder(folder) or frozenset()
    except OSError as error:
        raise CheckpointError(
            f"{folder}: wanted the folder of a checkpoint, got {error!r}; give the folder that "
            "coarse.snapshot() wrote"
        ) from error


def _content(path: Path, wanted: str, fs: FileSystem) -> bytes:
    try:
        return fs.read(path)
    except OSError as error:
        raise CheckpointError(
            f"{path}: wanted {wanted}, got {error!r}; copy the file back from where the checkpoint "
            "is whole, or take an older checkpoint"
        ) from error
