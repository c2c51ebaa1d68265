# Pure: no MPI, threads, clock or environment.
"""Snapshots on one device: the arrays that its clients hold, the grants to overwrite, and the files.

[Note: snapshot records] in records.py has the details.
"""

from collections.abc import Callable, Iterable

from coarse.protocol.dtypes import DType
from coarse.protocol.fragments import fragments, shortened
from coarse.protocol.plan import Placement
from coarse.proxy.feature import DeviceKit, FeatureMachine
from coarse.proxy.instructions import Instructions, Send
from coarse.snapshots.coordinator import SnapshotCoordinator, ToAllDevices
from coarse.snapshots.files.snapshot import (
    CopyNow,
    Discard,
    Grant,
    Refuse,
    SnapshotMachine,
    SnapshotPhase,
    WriteFile,
)
from coarse.snapshots.files.snapshot import Instruction as HoldInstruction
from coarse.snapshots.records import (
    Held,
    HeldEntry,
    SnapshotBegin,
    SnapshotCopied,
    SnapshotEnded,
    SnapshotFailed,
    SnapshotFolder,
    SnapshotGrant,
    SnapshotJoined,
    SnapshotPart,
    SnapshotTouch,
)
from coarse.snapshots.steps import (
    CopyEntry,
    DropCopies,
    HurryCopies,
    SnapshotStep,
    WritePart,
)

ToCoordinator = SnapshotJoined | SnapshotPart | SnapshotFailed


class DeviceSnapshots(FeatureMachine):
    """Machine of a device: a SnapshotMachine for each of its clients, and the coordinator on one device."""

    def __init__(self, device: int, placement: Placement, free: Callable[[int], None]) -> None:
        """Start without snapshots; `free` gives a region of the device back."""
        self._device = device
        self._placement = placement
        self._free = free
        own = [c for c, local in enumerate(placement.local_proxies) if local == device]
        self._protocols = {client: SnapshotMachine() for client in own}
        self._texts: dict[int, list[str]] = {client: [] for client in own}
        self._held: dict[int, Held] = {}
        """Client -> the arrays that it holds, until the snapshot ends."""
        self._folders: dict[int, str] = {}
        """Snapshot -> the folder of its parts, once that is known."""
        self._last_ended = -1
        self._leader = placement.local_proxies[0]
        self._coordinator = SnapshotCoordinator(placement) if device == self._leader else None
        self.handlers: dict[type, Callable[..., Instructions]] = {
            SnapshotBegin: self._on_begin,
            SnapshotTouch: self._on_touch,
            SnapshotFolder: self._on_folder,
            SnapshotEnded: self._on_ended,
            SnapshotJoined: self._to_coordinator,
            SnapshotPart: self._to_coordinator,
            SnapshotFailed: self._to_coordinator,
        }
        """Handler for each kind of record."""

    # --- what the driver has done

    def on_copied(self, client: int, snapshot: int, key: int, refusal: str) -> Instructions:
        """Note that an entry is copied, or that the machine had no room for the copy."""
        if refusal:
            return self._fail(snapshot, f"rank {client}: {refusal}")
        return self._follow(client, self._protocols[client].on_copied(snapshot, key))

    def on_folder_made(self, snapshot: int, staging: str, refusal: str) -> Instructions:
        """Note that the coordinator's checkpoint has been begun, or could not be."""
        assert self._coordinator is not None
        return self._say(self._coordinator.on_folder_made(snapshot, staging, refusal))

    def on_part_written(self, client: int, snapshot: int, entry: str, refusal: str) -> Instructions:
        """Take a written part's manifest entry, or the reason why it was not written."""
        if refusal:
            return self._fail(snapshot, refusal)
        steps: Instructions = []
        for is_last, text in fragments(entry):
            steps += self._to_coordinator(SnapshotPart(client, snapshot, is_last, text))
        return steps

    def on_committed(self, snapshot: int, refusal: str) -> Instructions:
        """Note that the checkpoint is there, or could not be made."""
        assert self._coordinator is not None
        return self._say(self._coordinator.on_committed(snapshot, refusal))

    def on_dead(self, rank: int, text: str) -> Instructions:
        """Fail snapshots that still need a rank that is gone."""
        reason = f"{text}; a checkpoint that was complete before is unharmed"
        running = {protocol.active_id for protocol in self._protocols.values()} | {*self._folders}
        if self._coordinator is not None:
            running |= {*self._coordinator.running}
        known = sorted(snapshot for snapshot in running if snapshot is not None)
        leader_rank = self._placement.ranks[self._placement.num_clients + self._leader]
        if rank == leader_rank:
            return [step for n in known for step in self._on_ended(SnapshotEnded(n, reason))]
        return [step for n in known for step in self._fail(n, reason)]

    def on_leave(self, client: int) -> Instructions:
        """Note that a client has shut down, and takes part in no snapshot that it has not joined."""
        return [] if self._coordinator is None else self._say(self._coordinator.on_left(client))

    # --- records

    def _on_begin(self, begin: SnapshotBegin) -> Instructions:
        texts = self._texts[begin.client]
        texts.append(begin.text)
        if not begin.is_last:
            return []
        held = Held.decode("".join(texts))
        texts.clear()
        client, snapshot = begin.client, begin.snapshot
        if snapshot <= self._last_ended:  # given up already, and the client has been told
            self._release(held)
            return []
        keys = [key for key, entry in enumerate(held.entries) if not entry.is_staged]
        instructions = self._protocols[client].on_begin(snapshot, keys)
        if isinstance(instructions[0], Refuse):
            self._release(held)
            return self._fail(snapshot, f"rank {client}: {instructions[0].reason}")
        self._held[client] = held
        steps = self._to_coordinator(SnapshotJoined(client, snapshot, held.what))
        if client == 0:
            assert self._coordinator is not None
            steps += self._say(self._coordinator.on_leader(snapshot, held))
        if client not in self._held:  # the ranks disagree, and it has ended
            return steps
        return steps + self._follow(client, instructions)

    def _on_touch(self, touch: SnapshotTouch) -> Instructions:
        protocol = self._protocols[touch.client]
        steps = self._follow(touch.client, protocol.on_overwrite_request(touch.token, touch.keys))
        is_granted = any(type(step) is Send for step in steps)
        return steps if is_granted else [*steps, HurryCopies(touch.client)]

    def _on_folder(self, folder: SnapshotFolder) -> Instructions:
        if folder.snapshot <= self._last_ended:
            return []
        self._folders[folder.snapshot] = folder.staging
        return [
            self._write(client, folder.snapshot)
            for client, protocol in self._protocols.items()
            if protocol.active_id == folder.snapshot and protocol.phase is SnapshotPhase.WRITING
        ]

    def _on_ended(self, ended: SnapshotEnded) -> Instructions:
        snapshot, reason = ended
        if snapshot <= self._last_ended:
            return []
        self._last_ended = snapshot
        self._folders.pop(snapshot, None)
        steps: Instructions = []
        for client, protocol in self._protocols.items():
            if protocol.active_id == snapshot and reason:
                steps += self._follow(client, protocol.on_abort(snapshot, reason))
            elif protocol.active_id == snapshot:
                protocol.on_written(snapshot)
                steps.append(DropCopies(client))
            held = self._held.pop(client, None)
            if held is not None:
                self._release(held)
            steps.append(Send(client, ended))
        return steps

    # --- within

    def _follow(self, client: int, instructions: Iterable[HoldInstruction]) -> Instructions:
        """Return the steps of a client's protocol, with the places that it does not know."""
        steps: Instructions = []
        for instruction in instructions:
            match instruction:
                case CopyNow(snapshot, key):
                    entry = self._held[client].entries[key]
                    copy = CopyEntry(client, snapshot, key, entry.offset, nbytes_of(entry))
                    steps.append(copy)
                case Grant(token, _):
                    steps.append(Send(client, SnapshotGrant(self._device, token)))
                case Discard():
                    steps.append(DropCopies(client))
                case WriteFile(snapshot, _):
                    steps.append(Send(client, SnapshotCopied(snapshot)))
                    if snapshot in self._folders:
                        steps.append(self._write(client, snapshot))
                case Refuse():
                    raise AssertionError(f"a snapshot was refused late: {instruction}")
        return steps

    def _write(self, client: int, snapshot: int) -> WritePart:
        entries = self._held[client].entries
        return WritePart(client, snapshot, self._folders[snapshot], entries)

    def _release(self, held: Held) -> None:
        if held.staging_offset >= 0:
            self._free(held.staging_offset)

    def _fail(self, snapshot: int, reason: str) -> Instructions:
        return self._to_coordinator(SnapshotFailed(snapshot, shortened(reason)))

    def _to_coordinator(self, record: ToCoordinator) -> Instructions:
        if self._coordinator is None:
            return [Send(self._placement.num_clients + self._leader, record)]
        match record:
            case SnapshotJoined():
                return self._say(self._coordinator.on_joined(record))
            case SnapshotPart():
                return self._say(self._coordinator.on_part(record))
            case SnapshotFailed():
                return self._say(self._coordinator.on_failed(record))

    def _say(self, said: list[SnapshotStep | ToAllDevices]) -> Instructions:
        """Send the coordinator's records to all devices; the others hear them before own clients do."""
        steps: Instructions = []
        first = self._placement.num_clients
        for step in said:
            if not isinstance(step, SnapshotFolder | SnapshotEnded):
                steps.append(step)
                continue
            others = (d for d in range(self._placement.num_devices) if d != self._device)
            steps += [Send(first + d, step) for d in others]
            steps += self.handlers[type(step)](step)
        return steps


def nbytes_of(entry: HeldEntry) -> int:
    """Return the bytes of an entry's tensor."""
    count = 1
    for extent in entry.shape:
        count *= extent
    return count * DType(entry.dtype).itemsize


def machine_of(kit: DeviceKit) -> DeviceSnapshots:
    """Make a device's part of snapshots."""
    return DeviceSnapshots(kit.device, kit.placement, kit.free)
