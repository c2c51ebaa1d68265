# Pure: no MPI, threads, clock or environment.
"""Commit record, which makes a step's states the current ones, and a folder's manifest, as bytes.

[Note: commit] A step is committed once every chunk of it lies in its slot, every file of every folder was synced, every
optimizer node has said so, and then one record was written and synced at the first of them. There are two copies of the
record, written in turn: what a crash tears is the newer one, and then the older one, whose slots nothing was written to
since, counts. So a training may also go back by one step, where others that it works with have not committed the newest
one; the record of that step is made void first, for its slots are written to next.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from coarse.errors import StorageError

RECORDS = ("commit-0", "commit-1")
MANIFEST = "manifest.json"
FORMAT = "coarse-paged"
FORMAT_VERSION = 1
_MOST_HEAD_BYTES = 256


class UnitVersion(NamedTuple):
    """Version of a unit that counts."""

    slot: int
    version: int
    """Step that wrote it; 0: none yet but its first values."""
    steps: tuple[int, ...]
    """Number of steps that each tensor has had; those in which no worker had a gradient for it do not count."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Content of a commit record."""

    sequence: int
    """Number of records that came before it."""
    run: str
    """Name that tells a training from others of the same model."""
    step: int
    units: tuple[UnitVersion, ...]
    workers: tuple[bytes, ...]
    """Own state of each worker: generators, schedulers, the optimizer's settings."""

    @property
    def file(self) -> str:
        """File name of the copy that it is to be."""
        return RECORDS[self.sequence % len(RECORDS)]

    def encode(self) -> bytes:
        """Return the bytes of the copy."""
        text = json.dumps({
            "sequence": self.sequence,
            "run": self.run,
            "step": self.step,
            "units": self.units,
            "workers": [len(state) for state in self.workers],
        }).encode()  # fmt: skip
        body = b"".join([len(text).to_bytes(8, "little"), text, *self.workers])
        head = {"format": FORMAT, "version": FORMAT_VERSION, "nbytes": len(body), "crc32": zlib.crc32(body)}
        return json.dumps(head).encode() + b"\n" + body


def decode_commit(raw: bytes) -> Commit | None:
    """Return the record in a copy; None where it is torn."""
    head, _, body = raw.partition(b"\n")
    try:
        said = json.loads(head[:_MOST_HEAD_BYTES])
        is_whole = said["format"] == FORMAT and said["nbytes"] <= len(body)
        body = body[: said["nbytes"]]
        if not is_whole or zlib.crc32(body) != said["crc32"] or said["version"] != FORMAT_VERSION:
            return None
        length = int.from_bytes(body[:8], "little")
        fields = json.loads(body[8 : 8 + length])
        workers, at = [], 8 + length
        for nbytes in fields["workers"]:
            workers.append(body[at : at + nbytes])
            at += nbytes
        units = tuple(UnitVersion(slot, version, tuple(steps)) for slot, version, steps in fields["units"])
        return Commit(
            sequence=fields["sequence"], run=fields["run"], step=fields["step"], units=units, workers=tuple(workers),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def newest_first(copies: Sequence[bytes]) -> list[Commit]:
    """Return the records that are whole, the newest first."""
    found = [commit for raw in copies if (commit := decode_commit(raw)) is not None]
    return sorted(found, key=lambda commit: -commit.sequence)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a folder: a part of one model's states, of one training."""

    run: str
    digest: str
    """Digest of the PagedModel."""
    device: int
    num_devices: int
    folder: int
    """Place of this folder among those of its optimizer node."""
    num_folders: int
    optimizer: str
    """Name of the optimizer."""
    kernel: str
    """Kernel that computes its steps, with all that its bits depend on."""
    checksum: str
    owner: str
    """Owner, for people: user, host and job."""

    def encode(self) -> bytes:
        """Return the bytes of the manifest file."""
        body = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        return json.dumps({**body, "crc32": zlib.crc32(_canonical(body))}, indent=1).encode() + b"\n"


def decode_manifest(raw: bytes, path: str) -> Manifest:
    """Return the manifest in `raw`, the content of the file at `path`.

    Raises:
        StorageError: it is none, or was changed.
    """
    try:
        document = json.loads(raw)
        is_ours = isinstance(document, dict) and document.get("format") == FORMAT
    except (ValueError, RecursionError):
        is_ours = False
    if not is_ours:
        raise StorageError(f"{path}: wanted the manifest of optimizer states, got another file; name an empty folder")
    said = document.pop("crc32", None)
    if said != zlib.crc32(_canonical(document)) or document.pop("version", None) != FORMAT_VERSION:
        raise StorageError(
            f"{path}: the manifest was changed, or is of another release; use the release that wrote it, or name an "
            "empty folder"
        )
    del document["format"]
    try:
        return Manifest(**document)
    except TypeError as error:
        raise StorageError(f"{path}: the manifest lacks something ({error}); name an empty folder") from None


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()
