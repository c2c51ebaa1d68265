# Pure: no MPI, threads, clock or environment.
"""Records of snapshots, from a worker's call to the checkpoint on disk (COARSE IV-A).

[Note: snapshot records] A worker tells its own device the tensors to hold (SnapshotBegin). Every device tells the
coordinator, which is the device of worker 0, the workers that have begun (SnapshotJoined). The coordinator makes the
folder and tells all devices (SnapshotFolder); each writes one part for each of its workers and reports it
(SnapshotPart). The coordinator commits them and says so to all devices, which say it to their workers (SnapshotEnded).
Any failure is told to the coordinator (SnapshotFailed), which ends the snapshot for everybody; so does the end of a
worker that has not joined it.
"""

import json
from typing import Any, NamedTuple

from coarse.protocol.codec import register_records


class SnapshotBegin(NamedTuple):
    """Fragment of the tensors that a client's device shall hold; all fragments together are JSON."""

    client: int
    snapshot: int
    is_last: bool
    text: str


class SnapshotJoined(NamedTuple):
    """Record of a client that has begun a snapshot; `what` is equal on all ranks, or they disagree."""

    client: int
    snapshot: int
    what: str


class SnapshotFolder(NamedTuple):
    """Record of the folder into which the parts of a snapshot are written."""

    snapshot: int
    staging: str


class SnapshotTouch(NamedTuple):
    """Request of the optimizer, which is about to overwrite these entries.

    The answer comes once that is safe.
    """

    client: int
    token: int
    keys: tuple[int, ...]


class SnapshotGrant(NamedTuple):
    """Answer that the entries may be overwritten."""

    device: int
    token: int


class SnapshotCopied(NamedTuple):
    """Record that all entries of a client are copied: no overwriting needs a grant any more."""

    snapshot: int


class SnapshotPart(NamedTuple):
    """Fragment of the manifest entry of the part that holds a client's share."""

    client: int
    snapshot: int
    is_last: bool
    text: str


class SnapshotFailed(NamedTuple):
    """Record for the coordinator that a snapshot cannot be completed, and the reason."""

    snapshot: int
    reason: str


class SnapshotEnded(NamedTuple):
    """Record of a snapshot that is on the disk, or has been given up for this reason."""

    snapshot: int
    reason: str


RECORDS: tuple[type, ...] = (
    SnapshotBegin, SnapshotJoined, SnapshotFolder, SnapshotTouch, SnapshotGrant, SnapshotCopied,
    SnapshotPart, SnapshotFailed, SnapshotEnded,
)  # fmt: skip
register_records("snapshots", RECORDS)


class HeldEntry(NamedTuple):
    """Tensor of a client's share, in the memory of its device."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    is_staged: bool
    """True if it will not be overwritten: it lies in memory that belongs to the snapshot."""


class Held(NamedTuple):
    """Request of a client to its device to hold and write tensors."""

    folder: str
    step: int
    metadata: dict[str, Any]
    what: str
    """Text that names the snapshot; see SnapshotJoined."""
    entries: tuple[HeldEntry, ...]
    staging_offset: int
    """Region of all staged entries, which the device frees at the end; -1: there are none."""

    def encode(self) -> str:
        """Return text for `fragments`."""
        return json.dumps(self)

    @classmethod
    def decode(cls, text: str) -> "Held":
        """Return the request that `encode` was given."""
        folder, step, metadata, what, entries, staging_offset = json.loads(text)
        found = tuple(
            HeldEntry(name, dtype, tuple(shape), offset, is_staged)
            for name, dtype, shape, offset, is_staged in entries
        )
        return cls(folder, step, metadata, what, found, staging_offset)
