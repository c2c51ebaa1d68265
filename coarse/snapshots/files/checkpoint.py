"""Checkpoints on disk: written so that at any moment the old one or the new one is whole.

[Note: checkpoint files] A checkpoint is a folder with one `part-0000.safetensors` for each writer
and a `manifest.json`; it exists if its manifest does. All of it is written into a staging folder
beside it, `NAME.tmp-1a2b3c4d`: each file under a temporary name, synced, renamed, its folder
synced, the manifest last. Then the old folder becomes `.NAME.replaced`, the staging folder
becomes NAME, and the old one is removed. A crash between the two renames leaves only
`.NAME.replaced`, which readers take and the next writer puts back.
"""

import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coarse.errors import SnapshotError
from coarse.snapshots.files.filesystem import FileSystem
from coarse.snapshots.files.manifest import (
    FORMAT,
    MANIFEST_FILE,
    PART_FILE,
    Manifest,
    PartEntry,
    check_metadata,
    check_names,
    entry_of,
)
from coarse.snapshots.files.pieces import TensorPiece

_STAGING_TAIL = re.compile(r"\.tmp-[0-9a-f]{8}")
_UNFINISHED_FILE = re.compile(r"\.tmp.*|.*\.tmp")  # ours, and those that safetensors makes


def begin_checkpoint(folder: Path, fs: FileSystem | None = None) -> Path:
    """Return a new staging folder for a checkpoint that will be `folder`; one rank calls this.

    It repairs the state that a crash has left, and refuses to replace a folder that is no checkpoint.
    """
    fs = fs or FileSystem()
    folder = folder.resolve()
    with _failing_as_snapshot_error(folder):
        fs.make_folder(folder.parent)
        _put_right(folder, fs)
        _check_ours(folder, fs)
        staging = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(4)}")
        fs.make_folder(staging)
    return staging


def write_part(
    staging: Path, index: int, pieces: Sequence[TensorPiece], fs: FileSystem | None = None
) -> PartEntry:
    """Write part `index`, and return its entry; each writer has its own index.

    The part is on the disk when this returns.
    """
    fs = fs or FileSystem()
    final = staging / f"part-{index:04d}.safetensors"
    unfinished = final.with_name(final.name + ".tmp")
    entries = tuple(entry_of(piece) for piece in pieces)
    with _failing_as_snapshot_error(final):
        check_names(entries, final.name)
        fs.write_tensors(unfinished, pieces)
        fs.sync(unfinished)
        entry = PartEntry(
            file=final.name,
            nbytes=fs.nbytes(unfinished),
            sha256=fs.sha256(unfinished),
            pieces=entries,
        )
        fs.rename(unfinished, final)
        fs.sync(staging)
    return entry


def commit_checkpoint(
    staging: Path,
    folder: Path,
    *,
    step: int,
    metadata: Mapping[str, Any],
    parts: Sequence[PartEntry],
    fs: FileSystem | None = None,
) -> None:
    """Make the written parts the checkpoint `folder`; the rank that began it calls this once.

    Where it raises, the checkpoint that was there before is still read, unless the new one is.
    """
    fs = fs or FileSystem()
    folder = folder.resolve()
    with _failing_as_snapshot_error(folder), _discarding_on_failure(staging, fs):
        check_metadata(metadata)
        manifest = Manifest(step=step, metadata=dict(metadata), parts=tuple(parts))
        _check_visible(staging, manifest.parts, fs)
        _write_manifest(staging, manifest, fs)
        _exchange(staging, folder, fs)
    _remove_replaced(folder, fs)


def discard_checkpoint(staging: Path, fs: FileSystem | None = None) -> None:
    """Remove a staging folder that will not be committed, as far as that is possible."""
    with suppress(OSError):
        _remove_folder(staging, fs or FileSystem())


def write_checkpoint(
    folder: Path,
    *,
    step: int,
    metadata: Mapping[str, Any],
    parts: Sequence[Sequence[TensorPiece]],
    fs: FileSystem | None = None,
) -> None:
    """Write a whole checkpoint from one process, one part file for each of `parts`."""
    fs = fs or FileSystem()
    check_metadata(metadata)
    staging = begin_checkpoint(folder, fs)
    with _discarding_on_failure(staging, fs):
        entries = [write_part(staging, index, part, fs) for index, part in enumerate(parts)]
        commit_checkpoint(staging, folder, step=step, metadata=metadata, parts=entries, fs=fs)


def replaced_folder(folder: Path) -> Path:
    """Return the place of the old checkpoint while the new one takes its name."""
    return folder.with_name(f".{folder.name}.replaced")


@contextmanager
def _failing_as_snapshot_error(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SnapshotError(
            f"{target}: wanted to write a checkpoint, got {error!r}; free space or choose another "
            "folder, and take the snapshot again: a checkpoint that was complete before is unharmed"
        ) from error
    except ValueError as error:
        raise SnapshotError(
            f"{target}: wanted a step from 0 on and every tensor once and whole, got this: "
            f"{error}; give each element to one writer"
        ) from error


@contextmanager
def _discarding_on_failure(staging: Path, fs: FileSystem) -> Iterator[None]:
    try:
        yield
    except BaseException:
        discard_checkpoint(staging, fs)
        raise


def _check_visible(staging: Path, parts: Sequence[PartEntry], fs: FileSystem) -> None:
    names = fs.list_folder(staging) or frozenset()
    for part in parts:
        nbytes = fs.nbytes(staging / part.file) if part.file in names else None
        if nbytes != part.nbytes:
            found = "no such file" if nbytes is None else f"{nbytes} bytes"
            raise SnapshotError(
                f"{staging / part.file}: wanted the {part.nbytes} bytes that its writer wrote, "
                f"got {found}; give a folder on a file system that all nodes share"
            )


def _write_manifest(staging: Path, manifest: Manifest, fs: FileSystem) -> None:
    final = staging / MANIFEST_FILE
    unfinished = final.with_name(final.name + ".tmp")
    fs.write(unfinished, manifest.encode())
    fs.sync(unfinished)
    fs.rename(unfinished, final)
    fs.sync(staging)


def _exchange(staging: Path, folder: Path, fs: FileSystem) -> None:
    replaced = replaced_folder(folder)
    has_old = bool(fs.list_folder(folder))
    try:
        if has_old:
            fs.rename(folder, replaced)
        fs.rename(staging, folder)
    except OSError:
        if has_old:
            with suppress(OSError):  # refused where one of the two renames did happen
                fs.rename(replaced, folder)
        raise
    fs.sync(folder.parent)


def _remove_replaced(folder: Path, fs: FileSystem) -> None:
    try:
        _remove_folder(replaced_folder(folder), fs)
    except OSError as error:
        warnings.warn(
            f"{replaced_folder(folder)}: the checkpoint that {folder.name} replaces could not be "
            f"removed ({error!r}); the next snapshot tries again",
            RuntimeWarning,
            stacklevel=3,
        )


def _put_right(folder: Path, fs: FileSystem) -> None:
    """Bring back or remove the replaced checkpoint, and remove staging folders of dead runs."""
    replaced = replaced_folder(folder)
    is_lost = MANIFEST_FILE not in (fs.list_folder(folder) or ())
    if is_lost and MANIFEST_FILE in (fs.list_folder(replaced) or ()):
        _remove_folder(folder, fs)
        fs.rename(replaced, folder)
        fs.sync(folder.parent)
    _remove_folder(replaced, fs)
    for name in sorted(fs.list_folder(folder.parent) or ()):
        if name.startswith(folder.name) and _STAGING_TAIL.fullmatch(name[len(folder.name) :]):
            _remove_folder(folder.with_name(name), fs)


def _check_ours(folder: Path, fs: FileSystem) -> None:
    """Raise SnapshotError unless removing the folder would lose nothing but a checkpoint."""
    names = fs.list_folder(folder)
    foreign = sorted(name for name in names or () if not _is_ours(name))
    if not foreign and MANIFEST_FILE in (names or ()):
        is_checkpoint = FORMAT.encode() in fs.read(folder / MANIFEST_FILE)
        foreign = [] if is_checkpoint else [MANIFEST_FILE]
    if foreign:
        raise SnapshotError(
            f"{folder}: wanted a checkpoint to replace, or nothing, got a folder with "
            f"{foreign[0]!r}, which is none of a checkpoint's, in it; give a folder that holds nothing else, such as "
            f"{folder / 'checkpoint'}"
        )


def _is_ours(name: str) -> bool:
    return name == MANIFEST_FILE or bool(
        PART_FILE.fullmatch(name) or _UNFINISHED_FILE.fullmatch(name)
    )


def _remove_folder(folder: Path, fs: FileSystem) -> None:
    """Remove a folder of ours, its manifest first, so that the rest is no checkpoint."""
    names = fs.list_folder(folder)
    if names is None:
        return
    _check_ours(folder, fs)
    for name in sorted(names, key=lambda name: (name != MANIFEST_FILE, name)):
        fs.remove_file(folder / name)
    fs.remove_folder(folder)
