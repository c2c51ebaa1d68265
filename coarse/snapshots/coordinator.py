# Pure: no MPI, threads, clock or environment.
"""Coordinator device, which makes a checkpoint of a snapshot's parts, or ends the snapshot for all.

[Note: snapshot records] in records.py has the details.
"""

from dataclasses import dataclass, field

from coarse.protocol.fragments import shortened
from coarse.protocol.plan import Placement
from coarse.snapshots.records import (
    Held,
    SnapshotEnded,
    SnapshotFailed,
    SnapshotFolder,
    SnapshotJoined,
    SnapshotPart,
)
from coarse.snapshots.steps import CommitParts, DropFolder, MakeFolder, SnapshotStep

ToAllDevices = SnapshotFolder | SnapshotEnded
"""Records of the coordinator for every device, itself included."""


@dataclass
class _Run:
    """Snapshot from its first record to its end."""

    held: Held | None = None
    """Statement of worker 0: its folder, step and metadata are the checkpoint's."""
    joined: dict[int, str] = field(default_factory=dict)
    staging: str = ""
    fragments: dict[int, list[str]] = field(default_factory=dict)
    parts: dict[int, str] = field(default_factory=dict)
    is_committing: bool = False


class SnapshotCoordinator:
    """Collector of each snapshot's parts; once all are there, nothing but the disk can stop it."""

    def __init__(self, placement: Placement) -> None:
        self._num_clients = placement.num_clients
        self._ranks = placement.ranks
        self._left: set[int] = set()
        self._runs: dict[int, _Run] = {}
        self._last_ended = -1

    @property
    def running(self) -> tuple[int, ...]:
        """Snapshots that have not ended."""
        return tuple(self._runs)

    def on_leader(self, snapshot: int, held: Held) -> list[SnapshotStep | ToAllDevices]:
        """Note that worker 0 has begun."""
        run = self._run(snapshot)
        if run is None:
            return []
        run.held = held
        return [MakeFolder(snapshot, held.folder)]

    def on_joined(self, joined: SnapshotJoined) -> list[SnapshotStep | ToAllDevices]:
        """Note that a worker has begun; all must hold the same tensors of the same step."""
        run = self._run(joined.snapshot)
        if run is None:
            return []
        run.joined[joined.client] = joined.what
        first = min(run.joined)
        for client, what in run.joined.items():
            if what != run.joined[first]:
                return self._end(
                    joined.snapshot,
                    f"rank {first} wanted a snapshot of {run.joined[first]}, but rank {client} "
                    f"wanted {what}; call coarse.snapshot() on all ranks with the same path, "
                    "step and tensors",
                )
        return self._end_if_left(joined.snapshot)

    def on_left(self, client: int) -> list[SnapshotStep | ToAllDevices]:
        """Note that a worker has shut down: snapshots that it has not joined will never be complete."""
        self._left.add(client)
        return [step for snapshot in sorted(self._runs) for step in self._end_if_left(snapshot)]

    def on_folder_made(
        self, snapshot: int, staging: str, refusal: str
    ) -> list[SnapshotStep | ToAllDevices]:
        """Note that the checkpoint has been begun, or could not be."""
        if refusal:
            return self._end(snapshot, refusal)
        run = self._run(snapshot)
        if run is None:
            return [DropFolder(staging)]
        run.staging = staging
        return [SnapshotFolder(snapshot, staging)]

    def on_part(self, part: SnapshotPart) -> list[SnapshotStep | ToAllDevices]:
        """Note that a worker's share is on the disk; commit all after the last one."""
        run = self._run(part.snapshot)
        if run is None:
            return []
        texts = run.fragments.setdefault(part.client, [])
        texts.append(part.text)
        if not part.is_last:
            return []
        run.parts[part.client] = "".join(run.fragments.pop(part.client))
        if len(run.parts) < self._num_clients:
            return []
        assert run.held is not None
        run.is_committing = True
        parts = tuple(run.parts[client] for client in range(self._num_clients))
        held = run.held
        return [
            CommitParts(part.snapshot, run.staging, held.folder, held.step, held.metadata, parts)
        ]

    def on_committed(self, snapshot: int, refusal: str) -> list[SnapshotStep | ToAllDevices]:
        """Note that the checkpoint is there, or could not be made."""
        return self._end(snapshot, refusal)

    def on_failed(self, failed: SnapshotFailed) -> list[SnapshotStep | ToAllDevices]:
        """End a snapshot of which some rank cannot do its part; it is too late once all parts are written."""
        run = self._run(failed.snapshot)
        if run is None or run.is_committing:
            return []
        return self._end(failed.snapshot, failed.reason)

    def _run(self, snapshot: int) -> _Run | None:
        """Return the state of a snapshot; None where it has ended."""
        if snapshot <= self._last_ended:
            return None
        return self._runs.setdefault(snapshot, _Run())

    def _end_if_left(self, snapshot: int) -> list[SnapshotStep | ToAllDevices]:
        run = self._run(snapshot)
        gone = self._left - run.joined.keys() if run is not None else set()
        if not gone:
            return []
        rank = min(gone)
        return self._end(
            snapshot,
            f"rank {rank} (MPI rank {self._ranks[rank]}) has shut down without taking it; call "
            "coarse.snapshot() on all ranks",
        )

    def _end(self, snapshot: int, reason: str) -> list[SnapshotStep | ToAllDevices]:
        run = self._run(snapshot)
        if run is None:
            return []
        del self._runs[snapshot]
        self._last_ended = snapshot
        steps: list[SnapshotStep | ToAllDevices] = [SnapshotEnded(snapshot, shortened(reason))]
        if run.staging and not run.is_committing:
            steps.append(DropFolder(run.staging))
        return steps
