"""Opening of a model's folders on an optimizer node, and the commit that training resumes from."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from coarse.errors import StorageError
from coarse.luwu.steps import OpenStore, StoreOpened
from coarse.luwu.store.commit import Commit, Manifest
from coarse.luwu.store.declaration import Declaration, on_disk, plan_all_reduce, plan_memory
from coarse.luwu.store.folder import Disk, MemoryDisk, PagedFolder, require_fitting
from coarse.luwu.store.held import HeldDisk
from coarse.luwu.store.layout import DiskLayout, step_bytes
from coarse.protocol.units import MIB
from coarse.storage.checksums import best_checksum
from coarse.storage.room import available_bytes
from coarse.transport.launcher import told_to_this_job


class OpenedFolders:
    """Folders of one model, locked and with room for all of it, until `close`."""

    def __init__(self, opening: OpenStore, node: int, num_devices_here: int) -> None:
        """Open, check and lock the folders of an optimizer node.

        Raises:
            StorageError: a folder is another model's or job's, torn, read-only or remote.
            CapacityError: a disk is too full, or the memory too small.
        """
        declaration = self.declaration = opening.declaration
        if declaration.is_all_reduce:
            self._open_none(opening, node)
            return
        memory_bytes = declaration.memory_bytes or available_bytes() // 2 // num_devices_here
        self.plan = plan_memory(declaration, node, opening.num_clients, memory_bytes, opening.num_below)
        paths = _paths(declaration, node)
        self.layout = DiskLayout(declaration.model, node, len(paths))
        self.folders: list[PagedFolder] = []
        self.resumed: Commit | None = None
        self.checksum = best_checksum()
        disk = Disk() if declaration.storage is not None else _memory_disk()
        with ExitStack() as opened:
            opened.callback(self.close)
            for path in paths:
                self.folders.append(PagedFolder(path, disk))
            found = [folder.manifest() for folder in self.folders]
            resumes = declaration.resume or (declaration.resume_if_there and self._holds_step(found, node, opening))
            if resumes:
                self._resume(found, node, paths, opening.resumed)
            else:
                self._require_new(found, paths)
            sums = on_disk(declaration.model, declaration.model.units_of(node), self.plan.in_memory)
            for place, folder in enumerate(self.folders):
                sum_bytes = self.layout.sum_file_bytes[place] if sums else 0
                folder.open_files(self.layout.file_bytes[place], sum_bytes)
                if not resumes:
                    folder.write_manifest(self._manifest(node, place))
            self.told = self._told(node, sums)
            opened.pop_all()

    def _open_none(self, opening: OpenStore, node: int) -> None:
        """Plan an all-reduce, which keeps nothing and has no folders."""
        self.plan = plan_all_reduce(self.declaration, node, opening.num_clients, opening.num_below)
        self.layout = DiskLayout(self.declaration.model, node, 1)
        self.folders, self.resumed, self.checksum = [], None, ""
        self.told = f"an all-reduce through memory device {self.declaration.nodes[node]}"

    def answer(self) -> StoreOpened:
        """Return the answer to the device's protocol."""
        return StoreOpened(self.resumed, self.plan, self.told)

    def _resume(
        self, found: Sequence[Manifest | None], node: int, paths: Sequence[Path], resumed: Commit | None
    ) -> None:
        declaration = self.declaration
        wanted = [self._manifest(node, place) for place in range(len(paths))]
        if declaration.other_kernel:
            wanted = [
                replace(want, kernel=has.kernel) if has is not None else want
                for want, has in zip(wanted, found, strict=True)
            ]
        require_fitting(found, wanted, paths)
        assert found[0] is not None
        self.checksum = found[0].checksum
        self.resumed = self._committed(found[0].run) if node == 0 else resumed
        if self.resumed is None or self.resumed.run != found[0].run:
            step = "committed step" if declaration.resume_step is None else f"step {declaration.resume_step}"
            raise StorageError(f"{paths[0]} holds no {step} of its run; start without resume=True in empty folders")
        if node == 0:
            self.folders[0].void_newer(self.resumed)
        if len(self.resumed.workers) != declaration.num_workers:
            raise StorageError(
                f"{paths[0]} was committed by {len(self.resumed.workers)} workers and {declaration.num_workers} go on: "
                "each has a state of its own there; start equally many"
            )

    def _holds_step(self, found: Sequence[Manifest | None], node: int, opening: OpenStore) -> bool:
        """Return whether there is a committed step to resume from.

        The first optimizer node tells it to the others.
        """
        if node:
            return opening.resumed is not None
        return found[0] is not None and self._committed(found[0].run) is not None

    def _committed(self, run: str) -> Commit | None:
        """Return the record of a run that is to be resumed from; None if there is none."""
        wanted = self.declaration.resume_step
        of_run = [one for one in self.folders[0].commits() if one.run == run]
        return next((one for one in of_run if wanted is None or one.step == wanted), None)

    def _require_new(self, found: Sequence[Manifest | None], paths: Sequence[Path]) -> None:
        """Raise StorageError where a folder holds a training, except one that has committed nothing.

        The first node's first folder tells whether its run has committed anything.
        """
        first = found[0]
        is_first_nodes = first is not None and not first.device and not first.folder
        begun = first.run if first is not None and is_first_nodes and self._committed(first.run) is None else ""
        for manifest, path, folder in zip(found, paths, self.folders, strict=True):
            if manifest is None or manifest.run == begun:
                continue
            commit = next(iter(folder.commits()), None)
            step = "a training" if commit is None else f"step {commit.step} of a training"
            raise StorageError(
                f"{path} holds {step} ({manifest.optimizer}, model {manifest.digest[:8]}, by {manifest.owner}); "
                "pass resume=True to go on with it, or name an empty folder"
            )

    def _manifest(self, node: int, place: int) -> Manifest:
        declaration = self.declaration
        return Manifest(
            run=declaration.run,
            digest=declaration.model.digest,
            device=node,
            num_devices=declaration.model.num_devices,
            folder=place,
            num_folders=len(self.folders),
            optimizer=declaration.optimizer,
            kernel=kernel_identity(declaration.kernel),
            checksum=self.checksum,
            owner=f"{declaration.owner} on {os.uname().nodename}",
        )

    def _told(self, node: int, sums: Sequence[int]) -> str:
        declaration, model = self.declaration, self.declaration.model
        if declaration.in_backward and declaration.num_passes == 1 and not declaration.is_speculative:
            sums = ()  # a push that is a unit's only one is used as it comes
        planned = step_bytes(model, node, num_passes=declaration.num_passes, sums_on_disk=sums)
        where = "in memory"
        if declaration.storage is not None:
            ways = {folder.is_direct for folder in self.folders}
            way = {frozenset({True}): "direct", frozenset({False}): "through the kernel's cache"}
            where = f"in {', '.join(str(folder.path) for folder in self.folders)} ({way.get(frozenset(ways), 'mixed')})"
        disks = len({os.stat(folder.path).st_dev for folder in self.folders}) if declaration.storage is not None else 0
        shared = f", {len(self.folders)} folders on {disks} file systems" if 0 < disks < len(self.folders) else ""
        return (
            f"optimizer node {node}: {sum(self.layout.file_bytes) / MIB:,.0f} MiB of states {where}{shared}, "
            f"{self.plan.total_bytes / MIB:,.0f} MiB of memory; each step reads {planned.read / MIB:,.1f} MiB and "
            f"writes {planned.written / MIB:,.1f} MiB, with sums of gradients of {len(sums)} units on the disk"
        )

    def close(self) -> None:
        """Close the folders."""
        for folder in self.folders:
            folder.close()


def kernel_identity(kernel: str) -> str:
    """Return the identity of all that a kernel's bits depend on; numpy's own depend on nothing else."""
    if kernel == "numpy":
        return kernel
    identity: str = import_module("coarse.luwu.torch.fused").identity()
    return identity


def _memory_disk() -> Disk:
    """Return files in memory: the launcher's where it starts the job again, else this process's."""
    address = told_to_this_job(os.environ).get("COARSE_STATE_FILES")
    return MemoryDisk() if address is None else HeldDisk(address)


def _paths(declaration: Declaration, node: int) -> list[Path]:
    """Return the folders of one optimizer node, as several nodes may share a host."""
    if declaration.storage is None:
        return [Path("/memory") / f"node-{node}"]
    return [Path(folder).absolute() / f"node-{node}" for folder in declaration.storage]

