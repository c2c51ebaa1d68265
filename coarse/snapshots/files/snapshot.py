# Pure: no MPI, threads, clock or environment.
"""Copy-on-write snapshot of one device, without I/O (COARSE IV-A)."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

from coarse.errors import SnapshotError


class CopyNow(NamedTuple):
    """Instruction to copy this key's present value into the snapshot, and then to call `on_copied`."""

    snapshot_id: int
    key: int


class Grant(NamedTuple):
    """Instruction to tell the requester that it may overwrite these keys."""

    requester: int
    keys: tuple[int, ...]


class WriteFile(NamedTuple):
    """Instruction to write the copies, which are complete, to a file, and then to call `on_written`."""

    snapshot_id: int
    keys: tuple[int, ...]


class Discard(NamedTuple):
    """Instruction to drop the copies, finished or not, and to tell those that wait the reason."""

    snapshot_id: int
    reason: str


class Refuse(NamedTuple):
    """Notice that this snapshot does not begin; `reason` is the text of the asker's SnapshotError."""

    snapshot_id: int
    reason: str


Instruction = CopyNow | Grant | WriteFile | Discard | Refuse


class SnapshotPhase(enum.Enum):
    """Phase of a device's snapshot."""

    IDLE = "idle"
    COPYING = "copying its keys"
    WRITING = "writing its file"


class _Request(NamedTuple):
    requester: int
    keys: tuple[int, ...]
    missing: set[int]  # of these, the ones that are not copied yet


class SnapshotMachine:
    """Machine that holds the keys' values of a snapshot's beginning, while training overwrites them.

    Keys are copied one at a time in the background. An overwriter of keys asks first; those that are not copied yet are
    then copied at once, before the rest, and the request is granted when the last of them is. A granted key may be
    overwritten again and again.

    [Note: iteration boundary] The values that a snapshot holds are those of `on_begin`, so no write may be under way
    then: begin between the last write of one iteration and the first of the next, on all devices. While a snapshot is
    active, every write needs its grant.
    """

    def __init__(self) -> None:
        self._phase = SnapshotPhase.IDLE
        self._last_id = -1
        self._keys: tuple[int, ...] = ()
        self._untouched: dict[int, None] = {}  # neither copied nor being copied, in order
        self._in_flight: set[int] = set()
        self._waiting: list[_Request] = []

    @property
    def phase(self) -> SnapshotPhase:
        """Phase of the active snapshot; `SnapshotPhase.IDLE` where there is none."""
        return self._phase

    @property
    def active_id(self) -> int | None:
        """Active snapshot; None where there is none."""
        return None if self._phase is SnapshotPhase.IDLE else self._last_id

    @property
    def num_uncopied(self) -> int:
        """Number of keys of the active snapshot that are not copied yet."""
        return len(self._untouched) + len(self._in_flight)

    def on_begin(self, snapshot_id: int, keys: Iterable[int]) -> list[Instruction]:
        """Start a snapshot of `keys`, or refuse it; ids grow and are never used twice."""
        if self._phase is not SnapshotPhase.IDLE:
            return [Refuse(snapshot_id, self._busy_reason(snapshot_id))]
        if snapshot_id <= self._last_id:
            return [Refuse(snapshot_id, _reused_reason(snapshot_id, self._last_id))]
        self._phase = SnapshotPhase.COPYING
        self._last_id = snapshot_id
        self._untouched = dict.fromkeys(keys)
        self._keys = tuple(self._untouched)
        return self._go_on()

    def on_copied(self, snapshot_id: int, key: int) -> list[Instruction]:
        """Note one copy: grant the requests that waited for it, then copy on or write the file."""
        if snapshot_id != self.active_id:
            return []  # a copy for a snapshot that was given up meanwhile
        if key not in self._in_flight:
            raise SnapshotError(
                f"snapshot {snapshot_id}: a copy of key {key} ended that was not under way; "
                "report each CopyNow once"
            )
        self._in_flight.remove(key)
        for request in self._waiting:
            request.missing.discard(key)
        granted = [_grant(request) for request in self._waiting if not request.missing]
        self._waiting = [request for request in self._waiting if request.missing]
        return [*granted, *self._go_on()]

    def on_overwrite_request(self, requester: int, keys: Iterable[int]) -> list[Instruction]:
        """Grant the overwriting of `keys`, now or after the copies that have to come first."""
        request = _Request(requester, tuple(keys), set())
        request.missing.update(
            key for key in request.keys if key in self._untouched or key in self._in_flight
        )
        if not request.missing:
            return [_grant(request)]
        self._waiting.append(request)
        urgent = [key for key in dict.fromkeys(request.keys) if key in self._untouched]
        return [self._copy(key) for key in urgent]

    def on_written(self, snapshot_id: int) -> list[Instruction]:
        """Note that the file is written: the copies may go, and the next snapshot may begin."""
        if snapshot_id == self.active_id:
            if self._phase is not SnapshotPhase.WRITING:
                raise SnapshotError(
                    f"snapshot {snapshot_id}: a file was written while {self.num_uncopied} keys "
                    "were not copied; wait for WriteFile"
                )
            self._phase = SnapshotPhase.IDLE
        return []

    def on_abort(self, snapshot_id: int, reason: str) -> list[Instruction]:
        """Give the snapshot up: no request waits for a copy any longer."""
        if snapshot_id != self.active_id:
            return []
        self._phase = SnapshotPhase.IDLE
        granted = [_grant(request) for request in self._waiting]
        self._untouched.clear()
        self._in_flight.clear()
        self._waiting.clear()
        return [*granted, Discard(snapshot_id, reason)]

    def _go_on(self) -> list[Instruction]:
        """Return the next background copy, unless one is under way, or the file after the last copy."""
        if self._in_flight:
            return []
        if self._untouched:
            return [self._copy(next(iter(self._untouched)))]
        self._phase = SnapshotPhase.WRITING
        return [WriteFile(self._last_id, self._keys)]

    def _copy(self, key: int) -> CopyNow:
        del self._untouched[key]
        self._in_flight.add(key)
        return CopyNow(self._last_id, key)

    def _busy_reason(self, snapshot_id: int) -> str:
        left = f" ({self.num_uncopied} of {len(self._keys)} left)" if self.num_uncopied else ""
        return (
            f"snapshot {snapshot_id} cannot begin: snapshot {self._last_id} is still "
            f"{self._phase.value}{left}; wait() for its handle first, or take snapshots less often"
        )


def _grant(request: _Request) -> Grant:
    return Grant(request.requester, request.keys)


def _reused_reason(snapshot_id: int, last_id: int) -> str:
    return (
        f"snapshot {snapshot_id} cannot begin: its number must be above {last_id}, the last "
        "one's; count snapshots upwards"
    )
