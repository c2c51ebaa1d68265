# Pure: no MPI, threads, clock or environment.
"""What a device's snapshot protocol asks its driver to do, beside sending records."""

from typing import Any, NamedTuple

from coarse.snapshots.records import HeldEntry


class CopyEntry(NamedTuple):
    """Copy a region out of the way, between other work; answer by on_copied."""

    client: int
    snapshot: int
    key: int
    offset: int
    nbytes: int


class HurryCopies(NamedTuple):
    """This client waits to overwrite: make its copies before any other work."""

    client: int


class MakeFolder(NamedTuple):
    """Begin a checkpoint; answer by on_folder_made."""

    snapshot: int
    folder: str


class WritePart(NamedTuple):
    """Write a client's share, copies and staged entries; answer by on_part_written."""

    client: int
    snapshot: int
    staging: str
    entries: tuple[HeldEntry, ...]


class CommitParts(NamedTuple):
    """Make the parts a checkpoint; answer by on_committed."""

    snapshot: int
    staging: str
    folder: str
    step: int
    metadata: dict[str, Any]
    parts: tuple[str, ...]
    """The manifest entry of each, as JSON."""


class DropCopies(NamedTuple):
    """A client's copies, finished or not, are of no more use."""

    client: int


class DropFolder(NamedTuple):
    """A checkpoint that was begun is given up."""

    staging: str


SnapshotStep = (
    CopyEntry | HurryCopies | MakeFolder | WritePart | CommitParts | DropCopies | DropFolder
)
