# Pure: no MPI, threads, clock or environment.
"""Steps that a device's snapshot protocol asks of its driver, beside records."""

from typing import Any, NamedTuple

from coarse.snapshots.records import HeldEntry


class CopyEntry(NamedTuple):
    """Step that copies a region aside, between other work; answered by on_copied."""

    client: int
    snapshot: int
    key: int
    offset: int
    nbytes: int


class HurryCopies(NamedTuple):
    """Step that makes a client's copies before any other work, as it waits to overwrite."""

    client: int


class MakeFolder(NamedTuple):
    """Step that begins a checkpoint; answered by on_folder_made."""

    snapshot: int
    folder: str


class WritePart(NamedTuple):
    """Step that writes a client's share, copies and staged entries; answered by on_part_written."""

    client: int
    snapshot: int
    staging: str
    entries: tuple[HeldEntry, ...]


class CommitParts(NamedTuple):
    """Step that makes the parts a checkpoint; answered by on_committed."""

    snapshot: int
    staging: str
    folder: str
    step: int
    metadata: dict[str, Any]
    parts: tuple[str, ...]
    """Manifest entry of each part, as JSON."""


class DropCopies(NamedTuple):
    """Step that drops a client's copies, finished or not."""

    client: int


class DropFolder(NamedTuple):
    """Step that drops a checkpoint that was begun."""

    staging: str


SnapshotStep = (
    CopyEntry | HurryCopies | MakeFolder | WritePart | CommitParts | DropCopies | DropFolder
)
