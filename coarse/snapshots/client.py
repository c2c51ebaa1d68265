"""Worker's side of snapshots: the arrays that its device holds, and the permission to overwrite them.

All workers hold equal values, so each has its device hold and write a share of the names. Values that may differ, such
as a model's buffers, are rank 0's: of one worker, and not some of each.
"""

import hashlib
import json
import operator
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coarse.client.client import Client
from coarse.client.protocol import ToDevice
from coarse.client.states import label
from coarse.errors import CapacityError, CoarseError, DeadRankError, SnapshotError, StallError
from coarse.protocol.fragments import fragments, shortened
from coarse.protocol.units import MIB
from coarse.snapshots.files.filesystem import require_safetensors
from coarse.snapshots.files.manifest import check_metadata
from coarse.snapshots.files.pieces import StoredTensor, share_of
from coarse.snapshots.records import (
    Held,
    HeldEntry,
    SnapshotBegin,
    SnapshotCopied,
    SnapshotEnded,
    SnapshotFailed,
    SnapshotGrant,
    SnapshotTouch,
)

_LONGEST_WRITE_S = 3600.0
_TOUCH_BYTES = 256 * MIB
_TOUCH_KEYS = 1000
"""Most bytes and keys that are asked for at once, so that no answer takes longer than a stall."""
_ALIGN_BYTES = 64


class SnapshotHandle:
    """Snapshot under way."""

    def __init__(self, snapshots: "ClientSnapshots", number: int, folder: Path) -> None:
        self._snapshots = snapshots
        self._number = number
        self._folder = folder

    def done(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        return self._snapshots.has_ended(self._number)

    def wait(self, timeout: float | None = None) -> Path:
        """Return the checkpoint's folder, once it is on the disk (default: within an hour).

        Raises:
            SnapshotError: it could not be completed; one that was complete before is unharmed.
            StallError: it is not done after `timeout` seconds.
        """
        self._snapshots.wait_for(self._number, timeout)
        return self._folder


class ClientSnapshots:
    """Snapshots of one worker, which are taken one after another."""

    def __init__(self, client: Client) -> None:
        self.states = client.states
        self._client = client
        self._link = client.link
        self._num_clients = client.protocol.placement.num_clients
        self._copied = -1
        """Last snapshot whose values this client's device has copied."""
        self._ended: dict[int, str] = {}
        """Snapshot -> the reason why it was given up; empty where it is on the disk."""
        self._number = -1
        self._is_observed = True
        """True if the end of the last snapshot was asked for."""
        self._uncopied: dict[str, int] = {}
        """State arrays in this worker's share without a grant -> their keys."""
        with self._link.lock:
            client.protocol.listen(SnapshotGrant, self._on_grant)
            client.protocol.listen(SnapshotCopied, self._on_copied)
            client.protocol.listen(SnapshotEnded, self._on_ended)
        client.states.guards.append(self.before_overwrite)
        client.before_leaving.append(self.finish)

    def begin(
        self,
        folder: Path,
        step: int,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, StoredTensor],
        unlike: Collection[str],
    ) -> SnapshotHandle:
        """Hold all state arrays, and copies of these tensors, and have them written.

        Tensors whose values may be `unlike` among workers are rank 0's.
        """
        self.finish()
        self._number += 1
        self._is_observed = False
        try:
            require_safetensors()  # else the devices would find out in the background
            held = self._held(folder, step, metadata, tensors, unlike)
        except (CoarseError, TypeError, ValueError) as error:
            self._is_observed = True
            reason = shortened(f"rank {self._rank}: {error}")
            self._tell([SnapshotFailed(self._number, reason)])
            raise
        keys = enumerate(held.entries)
        self._uncopied = {entry.name: key for key, entry in keys if not entry.is_staged}
        self._tell(
            SnapshotBegin(self._rank, self._number, is_last, text)
            for is_last, text in fragments(held.encode())
        )
        return SnapshotHandle(self, self._number, folder)

    def before_overwrite(self, names: Collection[str] | None) -> None:
        """Return once these state arrays, or all, may be overwritten."""
        if not self._uncopied:
            return
        self._read()
        protocol = self._link.protocol
        if self._copied >= self._number or self._number in self._ended:
            self._uncopied.clear()
        wanted = [name for name in names or [*self._uncopied] if name in self._uncopied]
        for batch in self._batches(wanted):
            token = protocol.next_token()
            touch = SnapshotTouch(self._rank, token, tuple(self._uncopied[name] for name in batch))
            what = f"a copy of {batch[0]!r} for snapshot {self._number}"
            self._link.ask([ToDevice(self.states.device, touch)], [token], what)
            for name in batch:
                del self._uncopied[name]

    def has_ended(self, number: int) -> bool:
        """Return whether a snapshot is on the disk, was given up, or never will be done as a rank is gone."""
        with self._link.lock:
            self._link.look()
        return number in self._ended or self._link.has_failed

    def wait_for(self, number: int, timeout_s: float | None) -> None:
        """Return once a snapshot is on the disk; see SnapshotHandle.wait."""
        ended = self._ended
        limit_s = _LONGEST_WRITE_S if timeout_s is None else timeout_s
        try:
            is_ended = self._link.wait_until(lambda: number in ended, limit_s)
        except DeadRankError as error:
            self._is_observed |= number == self._number
            raise SnapshotError(
                f"snapshot {number} cannot be completed: {error}; a checkpoint that was complete "
                "before is unharmed"
            ) from error
        if not is_ended:
            raise StallError(
                f"rank {self._rank}: snapshot {number} was not on the disk after {limit_s:g} s; "
                "see that all ranks take it, or give its wait() more time"
            )
        self._is_observed |= number == self._number
        if ended[number]:
            raise SnapshotError(f"rank {self._rank}: snapshot {number} failed: {ended[number]}")

    def finish(self) -> None:
        """Wait for the last snapshot; warn where it failed or stalls and its end was not asked for."""
        if self._number < 0:
            return
        is_observed = self._is_observed
        try:
            self.wait_for(self._number, None)
        except (SnapshotError, StallError) as error:
            if not is_observed:
                warnings.warn(str(error), RuntimeWarning, stacklevel=4)

    # --- what its device says

    def _on_grant(self, grant: SnapshotGrant) -> None:
        self._link.protocol.answers[grant.token] = grant

    def _on_copied(self, copied: SnapshotCopied) -> None:
        self._copied = copied.snapshot

    def _on_ended(self, ended: SnapshotEnded) -> None:
        self._ended[ended.snapshot] = ended.reason

    # --- within

    @property
    def _rank(self) -> int:
        return self._link.protocol.client

    def _read(self) -> None:
        with self._link.lock:
            self._link.read()

    def _tell(self, records: Iterable[SnapshotBegin | SnapshotFailed]) -> None:
        self._link.tell([ToDevice(self.states.device, record) for record in records])
        self._link.flush()

    def _held(
        self,
        folder: Path,
        step: int,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, StoredTensor],
        unlike: Collection[str],
    ) -> Held:
        check_metadata(metadata)
        if operator.index(step) < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        doubled = sorted(tensors.keys() & self.states.arrays.keys())
        if doubled:
            raise SnapshotError(
                f"{doubled[0]!r} was given as a tensor and is a state array too; state arrays are "
                "held anyway: give the others alone"
            )
        if unknown := sorted(set(unlike) - tensors.keys()):
            raise SnapshotError(
                f"{unknown[0]!r} was named as unlike among workers and is none of the tensors that were given; name "
                "those alone"
            )
        kinds = {name: (s.dtype, s.array) for name, s in self.states.arrays.items()}
        kinds |= {name: (tensor.dtype, tensor.array) for name, tensor in tensors.items()}
        labels = [(name, label(dtype, array.shape)) for name, (dtype, array) in kinds.items()]
        digest = hashlib.sha256(json.dumps(sorted(labels)).encode()).hexdigest()[:8]
        nbytes_of = {name: array.nbytes for name, (_, array) in kinds.items()}
        share = share_of(nbytes_of, self._rank, self._num_clients, unlike)
        staged = {name: tensors[name] for name in share if name in tensors}
        offsets, staging_offset = self._stage(staged)
        offsets |= {name: s.offset for name, s in self.states.arrays.items()}
        entries = [
            HeldEntry(
                name, int(kinds[name][0]), kinds[name][1].shape, offsets[name], name in staged
            )
            for name in share
        ]
        what = f"step {step} to {folder}, {len(kinds)} tensors (digest of their names {digest})"
        return Held(
            str(folder), operator.index(step), dict(metadata), what, tuple(entries), staging_offset
        )

    def _stage(self, tensors: Mapping[str, StoredTensor]) -> tuple[dict[str, int], int]:
        """Copy tensors into the snapshot's own device memory; return the offset of each, and of all."""
        offsets: dict[str, int] = {}
        total_bytes = 0
        for name, tensor in tensors.items():
            offsets[name] = total_bytes
            total_bytes += -(-tensor.array.nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if not tensors:
            return {}, -1
        try:
            base, region = self._client.allocate(self.states.device, total_bytes)
        except CapacityError as error:
            raise SnapshotError(
                f"no room for a copy of the tensors of a snapshot: {error}"
            ) from error
        for name, tensor in tensors.items():
            array = tensor.array
            target = region[offsets[name] : offsets[name] + array.nbytes]
            np.copyto(target.view(array.dtype).reshape(array.shape), array)
        return {name: base + offset for name, offset in offsets.items()}, base

    def _batches(self, names: list[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        nbytes = 0
        for name in names:
            batch.append(name)
            nbytes += self.states.arrays[name].array.nbytes
            if nbytes >= _TOUCH_BYTES or len(batch) == _TOUCH_KEYS:
                yield batch
                batch, nbytes = [], 0
        if batch:
            yield batch
