"""Committed steps that workers' folders hold, and the newest that all of them have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import coarse
from coarse.errors import CoarseError, StorageError
from coarse.luwu.store.folder import PagedFolder
from coarse.session import is_initialized
from coarse.torch.groups.objects import allgather_object


def group_folder(worker: str, group: int) -> str:
    """Return the name of a folder, within each of the storage's, for a group that was added later."""
    return f"{worker}/group-{group}"


class KeptSteps:
    """Committed steps of a worker's folders; each parameter group that was added later has its own folder.

    Each of a worker's folders, and each worker, commits for itself, one after the other. A crash between two commits
    leaves them a step apart, and no more: a step's gradients are sums over workers that have committed the one before.
    """

    def __init__(self, storage: Sequence[str | os.PathLike[str]], worker: str) -> None:
        """Read the committed steps of a worker's folders.

        Raises:
            StorageError: a folder is in use, torn or unreadable.
        """
        self._path = Path(storage[0]) / worker
        self.groups: list[int] = []
        """Numbers of the groups that were added, and committed."""
        self.steps = _steps_in(self._path)
        for path in sorted(self._path.glob("group-*")):
            found = _steps_in(path)
            if found:
                self.groups.append(int(path.name.removeprefix("group-")))
                self.steps &= found

    def void(self) -> None:
        """Make void all committed steps of the folders."""
        for path in (self._path, *self._path.glob("group-*")):
            if (path / "node-0").is_dir():
                with closing(PagedFolder(path / "node-0")) as folder:
                    folder.void_newer(None)


def newest_of_all(
    storage: Sequence[str | os.PathLike[str]], worker: str, *, is_needed: bool
) -> tuple[int | None, list[int]]:
    """Return the newest step that all workers have, and the groups added on this one; all workers call it.

    Where it is not needed, it is None if no worker has made a step: then commits of first values by some workers are
    made void.

    Raises:
        StorageError: on all workers, where one's folders cannot be resumed from, or there is no such step.
    """
    own, error = None, ""
    try:
        own = KeptSteps(storage, worker)
        if not own.steps and is_needed:
            error = f"{Path(storage[0]) / worker} holds no committed step, and resume=True was given"
    except CoarseError as refused:
        error = str(refused)
    said: list[dict[str, object]] = [{"steps": sorted(own.steps) if own is not None else [], "error": error}]
    if is_initialized() and coarse.size() > 1:
        said = allgather_object(said[0])
    remedy = "name the folders of the run that is to go on, in their order, or leave resume out"
    for rank, one in enumerate(said):
        if one["error"]:
            raise StorageError(f"rank {rank}: {one['error']}; {remedy}")
    assert own is not None
    steps: list[set[int]] = [set(one["steps"]) for one in said]  # type: ignore[call-overload]
    common = set.intersection(*steps)
    if common:
        return max(common), own.groups
    if not is_needed and set.union(*steps) <= {0}:
        own.void()
        return None, []
    kept = "; ".join(f"rank {rank} has {sorted(of_rank)}" for rank, of_rank in enumerate(steps))
    raise StorageError(f"there is no step that all workers have committed: {kept}; {remedy}")


def _steps_in(path: Path) -> set[int]:
    """Return the steps of the run that an optimizer node's folder holds."""
    if not (path / "node-0").is_dir():
        return set()
    with closing(PagedFolder(path / "node-0")) as folder:
        manifest = folder.manifest()
        return {one.step for one in folder.commits() if manifest is not None and one.run == manifest.run}
