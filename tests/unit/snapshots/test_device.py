"""Snapshots of many devices hold one boundary, or end for everybody, in whatever order things happen."""

from collections import deque
from random import Random

import pytest

from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType
from coarse.protocol.fragments import fragments
from coarse.protocol.plan import Placement
from coarse.protocol.records import Leave
from coarse.proxy.instructions import Send
from coarse.snapshots.device import DeviceSnapshots
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
from coarse.snapshots.steps import (
    CommitParts,
    CopyEntry,
    DropCopies,
    DropFolder,
    HurryCopies,
    MakeFolder,
    WritePart,
)
from coarse.strategy.builtin import Coarse

NUM_KEYS = 3
STAGED_KEY = NUM_KEYS
LOCAL_PROXIES = {"2:2": (0, 1), "3:2, worker 0 at device 1": (1, 0, 1), "1:1": (0,), "2:1": (0, 0)}


class Job:
    """Clients that take snapshots and overwrite at once, and devices, in any order of events."""

    def __init__(self, local_proxies: tuple[int, ...], seed: int) -> None:
        self.random = Random(seed)
        self.num_clients, num_devices = len(local_proxies), max(local_proxies) + 1
        placement = Placement(
            client_nodes=(0,) * self.num_clients,
            device_nodes=(0,) * num_devices,
            local_proxies=local_proxies,
            ranks=tuple(range(self.num_clients + num_devices)),
            planner=Coarse(),
            num_sync_groups=2,
        )
        self.local_proxies = local_proxies
        self.freed: list[tuple[int, int]] = []
        self.devices = [self._device(d, placement) for d in range(num_devices)]
        self.wires: dict[tuple[int, int], deque[bytes]] = {}
        self.jobs: list[tuple[int, object]] = []
        self.values = [[0] * NUM_KEYS for _ in range(self.num_clients)]
        self.copies: dict[tuple[int, int], dict[int, int]] = {}
        self.parts: dict[str, dict[int, int]] = {}
        self.committed: list[CommitParts] = []
        self.dropped: list[str] = []
        self.granted: set[int] = set()
        self.ended: list[dict[int, str]] = [{} for _ in range(self.num_clients)]
        self.fails_at: type | None = None

    def _device(self, device: int, placement: Placement) -> DeviceSnapshots:
        return DeviceSnapshots(
            device, placement, lambda offset: self.freed.append((device, offset))
        )

    # --- what clients do

    def begin(self, client: int, snapshot: int, what: str = "the same") -> None:
        entries = tuple(
            HeldEntry(f"{client}/{key}", int(DType.UINT8), (1,), key, key == STAGED_KEY)
            for key in range(NUM_KEYS + 1)
        )
        held = Held("folder", snapshot, {"text": "x" * 20_000}, what, entries, 7)
        for is_last, text in fragments(held.encode()):
            self.to_device(client, SnapshotBegin(client, snapshot, is_last, text))

    def leave(self, client: int) -> None:
        """Its Leave comes to its own device after all that it began, and to the others after what follows from that."""
        device = self.local_proxies[client]
        while self.wires.get((client, self.num_clients + device)):
            self._deliver(client, self.num_clients + device)
        self.follow(device, self.devices[device].on_leave(client))
        for other in range(len(self.devices)):
            if other != device:
                self.post(self.num_clients + device, self.num_clients + other, Leave(client))

    def overwrite(self, client: int, key: int, value: int) -> None:
        """Ask, wait for the grant with whatever else happens meanwhile, and write."""
        token = 1000 * client + self.random.getrandbits(60) * 10_000
        self.to_device(client, SnapshotTouch(client, token, (key,)))
        while token not in self.granted:
            assert self.step(), "nobody grants"
        self.values[client][key] = value

    def to_device(self, client: int, record: object) -> None:
        self.post(client, self.num_clients + self.local_proxies[client], record)

    # --- the rest of the world

    def post(self, sender: int, receiver: int, record: object) -> None:
        self.wires.setdefault((sender, receiver), deque()).append(encode(record))

    def step(self) -> bool:
        """One thing happens; False where nothing is left to happen."""
        choices: list[object] = [wire for wire, queue in self.wires.items() if queue]
        choices += [index for index in range(len(self.jobs)) if self._may_run(index)]
        if not choices:
            return False
        choice = self.random.choice(choices)
        if isinstance(choice, int):
            device, job = self.jobs.pop(choice)
            self.follow(device, self._do(device, job))
        else:
            self._deliver(*choice)
        return True

    def _may_run(self, index: int) -> bool:
        """The files of one device are written one after another; copies are made in any order."""
        device, job = self.jobs[index]
        earlier = [other for d, other in self.jobs[:index] if d == device]
        return isinstance(job, CopyEntry) or all(isinstance(other, CopyEntry) for other in earlier)

    def run(self) -> None:
        while self.step():
            pass

    def _deliver(self, sender: int, receiver: int) -> None:
        record = decode(self.wires[sender, receiver].popleft())
        if receiver >= self.num_clients:
            device = receiver - self.num_clients
            machine = self.devices[device]
            left = isinstance(record, Leave)
            self.follow(device, machine.on_leave(record.client) if left else machine.handlers[type(record)](record))
            return
        match record:
            case SnapshotGrant():
                self.granted.add(record.token)
            case SnapshotEnded():
                assert record.snapshot not in self.ended[receiver]
                self.ended[receiver][record.snapshot] = record.reason
            case _:
                assert isinstance(record, SnapshotCopied)

    def follow(self, device: int, steps: list) -> None:
        for step in steps:
            match step:
                case Send():
                    self.post(self.num_clients + device, step.endpoint, step.record)
                case DropCopies(client):
                    self.copies = {k: v for k, v in self.copies.items() if k[0] != client}
                    self.jobs = [
                        (d, job) for d, job in self.jobs
                        if not (isinstance(job, CopyEntry) and job.client == client)
                    ]  # fmt: skip
                case HurryCopies():
                    pass
                case WritePart():
                    self.jobs.append((device, (step, self.copies[step.client, step.snapshot])))
                case _:
                    self.jobs.append((device, step))

    def _do(self, device: int, job: object) -> list:
        protocol = self.devices[device]
        kind = type(job[0]) if type(job) is tuple else type(job)  # type: ignore[index]
        refusal = "on purpose" if kind is self.fails_at else ""
        match job:
            case CopyEntry(client, snapshot, key):
                if not refusal:
                    copies = self.copies.setdefault((client, snapshot), {})
                    copies[key] = self.values[client][key]
                return protocol.on_copied(client, snapshot, key, refusal)
            case MakeFolder(snapshot):
                return protocol.on_folder_made(snapshot, f"staging{snapshot}", refusal)
            case (WritePart(client, snapshot, staging, entries), copies):
                assert staging == f"staging{snapshot}"
                assert len(entries) == NUM_KEYS + 1
                text = f"part {client} of {snapshot} " + "y" * 40_000
                self.parts[text] = copies
                return protocol.on_part_written(client, snapshot, text, refusal)
            case CommitParts():
                if not refusal:
                    self.committed.append(job)
                return protocol.on_committed(job.snapshot, refusal)
        assert isinstance(job, DropFolder)
        self.dropped.append(job.staging)
        return []

    def bury(self, device: int) -> None:
        """A device does nothing any more, and nothing reaches it or comes from it."""
        endpoint = self.num_clients + device
        self.wires = {wire: queue for wire, queue in self.wires.items() if endpoint not in wire}
        self.jobs = [(other, work) for other, work in self.jobs if other != device]

    def require_nothing_left(self) -> None:
        assert not self.copies
        assert not self.jobs
        for device in self.devices:
            assert not device._held  # what clients asked it to keep


@pytest.mark.parametrize("local_proxies", LOCAL_PROXIES.values(), ids=LOCAL_PROXIES)
@pytest.mark.parametrize("seed", range(30))
def test_a_checkpoint_holds_the_boundary_whatever_is_overwritten_when(local_proxies, seed):
    job = Job(local_proxies, seed)
    for snapshot in range(3):
        job.values = [[snapshot] * NUM_KEYS for _ in local_proxies]
        for client in range(job.num_clients):
            job.begin(client, snapshot)
            job.overwrite(client, job.random.randrange(NUM_KEYS), 99)
        for _ in range(5):
            job.overwrite(job.random.randrange(job.num_clients), job.random.randrange(NUM_KEYS), 99)
        job.run()
        assert all(ended[snapshot] == "" for ended in job.ended)
        commit = job.committed[-1]
        assert (commit.snapshot, commit.step, commit.folder) == (snapshot, snapshot, "folder")
        assert [text[:6] for text in commit.parts] == [f"part {c}" for c in range(job.num_clients)]
        for text in commit.parts:
            assert job.parts[text] == dict.fromkeys(range(NUM_KEYS), snapshot)
        job.require_nothing_left()
        assert len(job.freed) == (snapshot + 1) * job.num_clients
    assert not job.dropped


@pytest.mark.parametrize("fails_at", [CopyEntry, MakeFolder, WritePart, CommitParts])
@pytest.mark.parametrize("local_proxies", LOCAL_PROXIES.values(), ids=LOCAL_PROXIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_failure_anywhere_is_told_to_all_and_the_next_snapshot_succeeds(
    local_proxies, seed, fails_at
):
    job = Job(local_proxies, seed)
    job.fails_at = fails_at
    for client in range(job.num_clients):
        job.begin(client, 0)
        job.overwrite(client, 1, 99)
    job.run()
    assert all("on purpose" in ended[0] for ended in job.ended)
    assert job.committed == []
    job.require_nothing_left()
    job.fails_at = None
    for client in range(job.num_clients):
        job.begin(client, 1)
    job.run()
    assert [commit.snapshot for commit in job.committed] == [1]
    assert len(job.freed) == 2 * job.num_clients


@pytest.mark.parametrize("seed", range(20))
def test_clients_that_want_different_snapshots_are_told_so(seed):
    job = Job((0, 1, 1), seed)
    for client in range(3):
        job.begin(client, 0, what=f"step {client // 2}")
    job.run()
    for ended in job.ended:
        assert "step 0" in ended[0]
        assert "step 1" in ended[0]
    job.require_nothing_left()


@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_cannot_begin_ends_the_snapshot_for_all(seed):
    job = Job((0, 1, 1), seed)
    job.begin(0, 0)
    job.begin(1, 0)
    job.to_device(2, SnapshotFailed(0, "no room"))
    job.run()
    assert [ended[0] for ended in job.ended] == ["no room"] * 3
    job.require_nothing_left()
    assert job.committed == []


@pytest.mark.parametrize("leaver", [0, 1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_that_a_client_shuts_down_without_ends_for_all(leaver, seed):
    job = Job((0, 1, 1), seed)
    for client in {0, 1, 2} - {leaver}:
        job.begin(client, 0)
        for _ in range(job.random.randrange(5)):
            job.step()
    job.leave(leaver)
    job.run()
    assert all(f"rank {leaver} (MPI rank {leaver}) has shut down" in ended[0] for ended in job.ended)
    assert job.committed == []
    job.require_nothing_left()


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_that_a_client_has_joined_before_it_shuts_down_is_completed(seed):
    job = Job((0, 1, 1), seed)
    for client in range(3):
        job.begin(client, 0)
    job.leave(job.random.randrange(3))
    job.run()
    assert [commit.snapshot for commit in job.committed] == [0]


@pytest.mark.parametrize(("dead", "seed"), [(d, s) for d in (0, 1) for s in range(30)])
def test_a_device_that_dies_ends_the_snapshot_for_the_clients_of_the_others(dead, seed):
    job = Job((0, 1), seed)
    job.begin(0, 0)
    job.begin(1, 0)
    alive = 1 - dead
    while job.devices[alive]._protocols[alive].active_id is None:
        job.step()
    for _ in range(job.random.randrange(15)):
        job.step()
    job.bury(dead)
    job.follow(alive, job.devices[alive].on_dead(2 + dead, "device died"))
    job.bury(dead)
    while job.step():
        job.bury(dead)
    if not job.committed:
        assert "device died" in job.ended[alive][0]
    elif alive == 0:  # the coordinator; a dead one may not have told anybody
        assert job.ended[alive] == {0: ""}
    assert (alive, 0) not in job.copies
