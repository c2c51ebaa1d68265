"""Executor of a device's snapshots: copies a little at a time, files in a separate thread."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from coarse.errors import SnapshotError
from coarse.protocol.dtypes import DType
from coarse.protocol.units import MIB
from coarse.proxy.executor import FeatureExecutor, ServiceKit
from coarse.proxy.instructions import Instructions
from coarse.snapshots.device import DeviceSnapshots, nbytes_of
from coarse.snapshots.files.checkpoint import (
    begin_checkpoint,
    commit_checkpoint,
    discard_checkpoint,
    write_part,
)
from coarse.snapshots.files.manifest import PartEntry
from coarse.snapshots.files.pieces import TensorPiece
from coarse.snapshots.steps import (
    CommitParts,
    CopyEntry,
    DropCopies,
    DropFolder,
    HurryCopies,
    MakeFolder,
    WritePart,
)
from coarse.storage.region import DeviceMemory
from coarse.storage.room import available_bytes

_COPY_BYTES = 4 * MIB
"""Most bytes that are copied before the device looks for other work again."""
_HEADROOM_BYTES = 128 * MIB
"""Bytes of memory that a copy leaves to the rest of the machine."""

Job = Callable[[], Callable[[], Instructions]]
"""Work for the thread; its result is called by the service's thread."""


@dataclass
class _Copy:
    """Copy under way."""

    entry: CopyEntry
    buffer: np.ndarray | None = None
    num_copied: int = 0


class SnapshotExecutor(FeatureExecutor):
    """Executor of a DeviceSnapshots."""

    def __init__(
        self,
        protocol: DeviceSnapshots,
        memory: DeviceMemory,
        wake: Callable[[], None],
        carry_out: Callable[[Instructions], None],
    ) -> None:
        """Start without copies.

        `wake` ends the sleep of the service's thread, and any thread calls it. `carry_out` carries out the steps that
        follow.
        """
        self._protocol = protocol
        self._memory = memory
        self._wake = wake
        self._carry_out = carry_out
        self._background: deque[_Copy] = deque()
        self._urgent: deque[_Copy] = deque()
        self._copies: dict[int, dict[int, np.ndarray]] = {}
        """Client -> key -> the copied bytes."""
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._results: deque[Callable[[], Instructions]] = deque()
        self._num_pending = 0
        self._thread: threading.Thread | None = None
        self.carriers: dict[type, Callable[[Any], None]] = {
            CopyEntry: self._begin_copy,
            HurryCopies: self._hurry,
            MakeFolder: self._make_folder,
            WritePart: self._write_part,
            CommitParts: self._commit,
            DropCopies: self._drop_copies,
            DropFolder: self._drop_folder,
        }
        """Handler for each kind of step."""

    @property
    def has_urgent_work(self) -> bool:
        """True if a client waits for a copy."""
        return bool(self._urgent)

    @property
    def has_work(self) -> bool:
        """True if anything is left to copy."""
        return bool(self._urgent or self._background)

    @property
    def is_pending(self) -> bool:
        """True if files are being written."""
        return self._num_pending > 0

    def poll(self) -> bool:
        """Carry out the steps that follow from files that have been written."""
        while self._results:
            self._num_pending -= 1
            self._carry_out(self._results.popleft()())
        return False

    def work(self) -> None:
        """Copy one block of the most urgent entry."""
        self._carry_out(self._copy_next())

    def _copy_next(self) -> Instructions:
        queue = self._urgent or self._background
        copy = queue[0]
        client, snapshot, key, offset, nbytes = copy.entry
        if copy.buffer is None:
            room = available_bytes() - _HEADROOM_BYTES
            if nbytes > room:
                queue.popleft()
                reason = (
                    f"a copy of {nbytes} bytes was wanted, but the machine has {max(room, 0)} bytes "
                    "of memory left; take snapshots on a machine with more memory"
                )
                return self._protocol.on_copied(client, snapshot, key, reason)
            copy.buffer = np.empty(nbytes, np.uint8)
        begin, end = copy.num_copied, min(copy.num_copied + _COPY_BYTES, nbytes)
        copy.buffer[begin:end] = self._memory.view(offset + begin, end - begin)
        copy.num_copied = end
        if end < nbytes:
            return []
        queue.popleft()
        self._copies.setdefault(client, {})[key] = copy.buffer
        return self._protocol.on_copied(client, snapshot, key, "")

    # --- copies

    def _begin_copy(self, entry: CopyEntry) -> None:
        self._background.append(_Copy(entry))

    def _hurry(self, hurry: HurryCopies) -> None:
        waiting = self._background
        self._urgent += [copy for copy in waiting if copy.entry.client == hurry.client]
        self._background = deque(c for c in waiting if c.entry.client != hurry.client)

    def _drop_copies(self, drop: DropCopies) -> None:
        self._copies.pop(drop.client, None)
        self._urgent = deque(c for c in self._urgent if c.entry.client != drop.client)
        self._background = deque(c for c in self._background if c.entry.client != drop.client)

    # --- files

    def _make_folder(self, step: MakeFolder) -> None:
        def job() -> Callable[[], Instructions]:
            staging, refusal = "", ""
            try:
                staging = str(begin_checkpoint(Path(step.folder)))
            except Exception as error:  # whatever it is, all workers shall know
                refusal = _reason(error)
            return lambda: self._protocol.on_folder_made(step.snapshot, staging, refusal)

        self._start(job)

    def _write_part(self, step: WritePart) -> None:
        copies = self._copies.get(step.client, {})
        pieces = [
            TensorPiece(
                name=entry.name,
                dtype=DType(entry.dtype),
                shape=entry.shape,
                data=self._memory.view(entry.offset, nbytes_of(entry))
                if entry.is_staged
                else copies[key],
            )
            for key, entry in enumerate(step.entries)
        ]

        def job() -> Callable[[], Instructions]:
            text, refusal = "", ""
            try:
                text = write_part(Path(step.staging), step.client, pieces).to_json()
            except Exception as error:  # whatever it is, all workers shall know
                refusal = _reason(error)
            pieces.clear()
            return lambda: self._protocol.on_part_written(step.client, step.snapshot, text, refusal)

        self._start(job)

    def _commit(self, step: CommitParts) -> None:
        def job() -> Callable[[], Instructions]:
            refusal = ""
            try:
                commit_checkpoint(
                    Path(step.staging),
                    Path(step.folder),
                    step=step.step,
                    metadata=step.metadata,
                    parts=[PartEntry.from_json(text) for text in step.parts],
                )
            except Exception as error:  # whatever it is, all workers shall know
                refusal = _reason(error)
            return lambda: self._protocol.on_committed(step.snapshot, refusal)

        self._start(job)

    def _drop_folder(self, step: DropFolder) -> None:
        def job() -> Callable[[], Instructions]:
            discard_checkpoint(Path(step.staging))
            return lambda: []

        self._start(job)

    def _start(self, job: Job) -> None:
        self._num_pending += 1
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="coarse-snapshot", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            self._results.append(job())
            del job  # with the copies that it wrote
            self._wake()


def executor_of(snapshots: DeviceSnapshots, kit: ServiceKit) -> SnapshotExecutor:
    """Make a device's executor of snapshots."""
    return SnapshotExecutor(snapshots, kit.memory, kit.wake, kit.carry_out)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SnapshotError) else repr(error)
