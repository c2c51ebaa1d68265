# Pure: no MPI, threads, clock or environment.
"""Manifest of a checkpoint, to and from bytes.

The file is JSON in one canonical form with its own checksum, so that a change of any byte shows.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from coarse.errors import CheckpointError, SnapshotError
from coarse.protocol.dtypes import DType
from coarse.snapshots.files.pieces import TensorPiece

MANIFEST_FILE = "manifest.json"
PART_FILE = re.compile(r"part-\d{4,9}\.safetensors")
FORMAT = "coarse-checkpoint"
FORMAT_VERSION = 1

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DTYPES = {dtype.label: dtype for dtype in DType}


@dataclass(frozen=True, kw_only=True)
class PieceEntry:
    """Place in a tensor of the elements that a part holds under `stored_name`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    numel: int

    @property
    def is_whole(self) -> bool:
        """True if the piece is all of its tensor."""
        return self.numel == prod(self.shape)

    @property
    def stored_name(self) -> str:
        """Name of the tensor in the part file; a piece's has its run of elements."""
        return (
            self.name if self.is_whole else f"{self.name}[{self.first}:{self.first + self.numel}]"
        )

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in the part file; a run of elements is flat."""
        return self.shape if self.is_whole else (self.numel,)


def entry_of(piece: TensorPiece) -> PieceEntry:
    """Return the entry of a piece that is about to be written."""
    return PieceEntry(
        name=piece.name,
        dtype=piece.dtype.label,
        shape=piece.shape,
        first=piece.first,
        numel=piece.numel,
    )


@dataclass(frozen=True, kw_only=True)
class PartEntry:
    """Written part: its file, length, hash and content."""

    file: str
    nbytes: int
    sha256: str
    pieces: tuple[PieceEntry, ...]

    def to_json(self) -> str:
        """Return text for the way from the device that wrote the part to the rank that commits it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PartEntry":
        """Return the entry of a text that `to_json` gave."""
        return _part_from(json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Whole checkpoint without its bytes; checked when it is made."""

    step: int
    metadata: dict[str, Any]
    parts: tuple[PartEntry, ...]

    def __post_init__(self) -> None:
        _int(self.step)
        _check_files(self.parts)
        check_cover(piece for part in self.parts for piece in part.pieces)

    def encode(self) -> bytes:
        """Return the bytes of the manifest file."""
        body = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "step": self.step,
            "metadata": self.metadata,
            "parts": [asdict(part) for part in self.parts],
        }
        return _encode({**body, "sha256": hashlib.sha256(_encode(body)).hexdigest()})


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise SnapshotError unless JSON can hold it: string keys, no arrays; tuples become lists."""
    try:
        _check_keys(metadata, "metadata")
        json.dumps(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(
            f"a snapshot's metadata must be what JSON can hold: {error}; "
            "give numbers, text, lists and dicts with string keys, and arrays as tensors"
        ) from error


def decode_manifest(raw: bytes, path: str) -> Manifest:
    """Return the manifest in `raw`, the content of the file at `path`.

    Raises:
        CheckpointError: it is none, was changed, or does not cover every tensor once.
    """
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: wanted a {FORMAT} manifest, got {len(raw)} bytes that are no JSON ({error}); "
            "take an older checkpoint"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: wanted the manifest of a {FORMAT}, got a file of another kind; "
            "give the folder that coarse.snapshot() wrote, or take an older checkpoint"
        )
    if document.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: wanted format version {FORMAT_VERSION}, got {document.get('version')!r}; "
            "read it with the release of coarse that wrote it"
        )
    digest = document.pop("sha256", None)
    wanted = hashlib.sha256(_encode(document)).hexdigest()
    if digest != wanted or raw != _encode({**document, "sha256": digest}):
        raise CheckpointError(
            f"{path}: wanted the bytes that were written (sha256 {digest}), got others (sha256 "
            f"{wanted}): the file has changed since; take an older checkpoint"
        )
    try:
        return Manifest(
            step=document["step"],
            metadata=_dict(document["metadata"]),
            parts=tuple(_part_from(part) for part in document["parts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: wanted a step, metadata and parts that cover every tensor once, got "
            f"{error!r}; the program that wrote it is at fault: take an older checkpoint"
        ) from error


def check_cover(pieces: Iterable[PieceEntry]) -> None:
    """Raise ValueError unless the pieces of each tensor agree and cover its elements once."""
    by_name: dict[str, list[PieceEntry]] = {}
    for piece in pieces:
        by_name.setdefault(piece.name, []).append(piece)
    for name, of_name in by_name.items():
        kinds = {(piece.dtype, piece.shape) for piece in of_name}
        if len(kinds) > 1:
            found = " and ".join(f"{dtype}{list(shape)}" for dtype, shape in sorted(kinds))
            raise ValueError(f"pieces of {name!r} disagree: {found}")
        covered = 0
        for piece in sorted(of_name, key=lambda piece: (piece.first, piece.numel)):
            if piece.first != covered:
                what = "are missing" if piece.first > covered else "came twice"
                low, high = sorted((covered, piece.first))
                raise ValueError(f"elements [{low}, {high}) of {name!r} {what}")
            covered += piece.numel
        if covered != prod(of_name[0].shape):
            raise ValueError(f"elements from {covered} on of {name!r} are missing")


def check_names(pieces: Iterable[PieceEntry], file: str) -> None:
    """Raise ValueError unless the part file can hold all pieces, each under its own name."""
    seen = {"__metadata__"}  # safetensors keeps that name for itself
    for piece in pieces:
        piece.stored_name.encode()
        if piece.stored_name in seen:
            raise ValueError(f"{file} cannot hold {piece.stored_name!r}: that name is taken")
        seen.add(piece.stored_name)


def _check_files(parts: tuple[PartEntry, ...]) -> None:
    if not parts:
        raise ValueError("no parts: every writer gives one, if only an empty one")
    files = [part.file for part in parts]
    if len(set(files)) < len(files):
        raise ValueError(f"a part file is named twice in {files}")
    for part in parts:
        check_names(part.pieces, part.file)


def _check_keys(value: object, where: str) -> None:
    """Raise TypeError for keys that are no strings, which JSON would turn into strings silently."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: keys must be strings, got {key!r}")
            _check_keys(inner, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_keys(inner, f"{where}[{index}]")


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode() + b"\n"


def _part_from(document: dict[str, Any]) -> PartEntry:
    return PartEntry(
        file=_matching(PART_FILE, document["file"]),
        nbytes=_int(document["nbytes"]),
        sha256=_matching(_SHA256, document["sha256"]),
        pieces=tuple(_piece_from(piece) for piece in document["pieces"]),
    )


def _piece_from(document: dict[str, Any]) -> PieceEntry:
    if document["dtype"] not in _DTYPES:
        raise ValueError(f"unknown dtype {document['dtype']!r}; known: {sorted(_DTYPES)}")
    return PieceEntry(
        name=_matching(re.compile(".*", re.DOTALL), document["name"]),
        dtype=document["dtype"],
        shape=tuple(_int(extent) for extent in document["shape"]),
        first=_int(document["first"]),
        numel=_int(document["numel"]),
    )


def _int(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"wanted a whole number from 0 on, got {value!r}")
    return value


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"wanted an object, got {value!r}")
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"wanted text like {pattern.pattern}, got {value!r}")
    return value
