# Pure: no MPI, threads, clock or environment.
"""The records of snapshots, from a worker's call to the checkpoint on disk (COARSE IV-A).

[Note: snapshot records] A worker tells its own device what to hold (SnapshotBegin). Every device
tells the coordinator, which is the device of worker 0, who has begun (SnapshotJoined). The
coordinator makes the folder and tells all devices (SnapshotFolder); each writes one part for each
of its workers and reports it (SnapshotPart). The coordinator commits them and says so to all
devices, which say it to their workers (SnapshotEnded). Whatever goes wrong anywhere is said to the
coordinator (SnapshotFailed), which ends the snapshot for everybody; so does the end of a worker that has not joined it.
"""

import json
from typing import Any, NamedTuple

from coarse.protocol.codec import register_records


class SnapshotBegin(NamedTuple):
    """A fragment of what a client's device shall hold; all fragments together are JSON."""

    client: int
    snapshot: int
    is_last: bool
    text: str


class SnapshotJoined(NamedTuple):
    """A client has begun a snapshot; `what` is the same text on all ranks, or they disagree."""

    client: int
    snapshot: int
    what: str


class SnapshotFolder(NamedTuple):
    """The folder into which the parts of a snapshot are written."""

    snapshot: int
    staging: str


class SnapshotTouch(NamedTuple):
    """The optimizer is about to overwrite these entries: answer once that is safe."""

    client: int
    token: int
    keys: tuple[int, ...]


class SnapshotGrant(NamedTuple):
    """The entries may be overwritten."""

    device: int
    token: int


class SnapshotCopied(NamedTuple):
    """All entries of a client are copied: no overwriting needs a grant any more."""

    snapshot: int


class SnapshotPart(NamedTuple):
    """A fragment of the manifest entry of the part that holds a client's share."""

    client: int
    snapshot: int
    is_last: bool
    text: str


class SnapshotFailed(NamedTuple):
    """To the coordinator: a snapshot cannot be completed, and why."""

    snapshot: int
    reason: str


class SnapshotEnded(NamedTuple):
    """A snapshot is on the disk, or has been given up for this reason."""

    snapshot: int
    reason: str


RECORDS: tuple[type, ...] = (
    SnapshotBegin, SnapshotJoined, SnapshotFolder, SnapshotTouch, SnapshotGrant, SnapshotCopied,
    SnapshotPart, SnapshotFailed, SnapshotEnded,
)  # fmt: skip
register_records("snapshots", RECORDS)


class HeldEntry(NamedTuple):
    """One tensor of a client's share, in the memory of its device."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    is_staged: bool
    """Nobody will overwrite it: it lies in memory that belongs to the snapshot."""


class Held(NamedTuple):
    """What a client asks its device to hold and write."""

    folder: str
    step: int
    metadata: dict[str, Any]
    what: str
    """See SnapshotJoined."""
    entries: tuple[HeldEntry, ...]
    staging_offset: int
    """The region of all staged entries, which the device frees at the end; -1: there are none."""

    def encode(self) -> str:
        """Text for `fragments`."""
        return json.dumps(self)

    @classmethod
    def decode(cls, text: str) -> "Held":
        """What `encode` was given."""
        folder, step, metadata, what, entries, staging_offset = json.loads(text)
        found = tuple(
            HeldEntry(name, dtype, tuple(shape), offset, is_staged)
            for name, dtype, shape, offset, is_staged in entries
        )
        return cls(folder, step, metadata, what, found, staging_offset)
