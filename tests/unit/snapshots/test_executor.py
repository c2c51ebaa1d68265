"""The writer copies a little at a time, the urgent first, and reports from its thread what it wrote."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from coarse.protocol.dtypes import DType
from coarse.protocol.fragments import fragments
from coarse.protocol.plan import Placement
from coarse.protocol.units import MIB
from coarse.proxy.instructions import Send
from coarse.snapshots import executor
from coarse.snapshots.device import DeviceSnapshots
from coarse.snapshots.executor import SnapshotExecutor
from coarse.snapshots.files.restore import read_checkpoint
from coarse.snapshots.records import (
    Held,
    HeldEntry,
    SnapshotBegin,
    SnapshotCopied,
    SnapshotEnded,
    SnapshotGrant,
    SnapshotTouch,
)
from coarse.storage.region import DeviceMemory, create_memory_file
from coarse.strategy.builtin import Coarse

ENTRY_BYTES = 6 * MIB
NUM_ENTRIES = 3


class Device:
    """A device with one client, driven by hand."""

    def __init__(self, memory: DeviceMemory) -> None:
        placement = Placement(
            client_nodes=(0,),
            device_nodes=(0,),
            local_proxies=(0,),
            ranks=(0, 1),
            planner=Coarse(),
            num_sync_groups=2,
        )
        self.memory = memory
        self.woken = threading.Semaphore(0)
        self.protocol = DeviceSnapshots(0, placement, lambda offset: None)
        self.executor = SnapshotExecutor(self.protocol, memory, self.woken.release, self.follow)
        self.said: list[object] = []

    def values(self, key: int) -> np.ndarray:
        return self.memory.view(key * ENTRY_BYTES, ENTRY_BYTES)

    def begin(self, folder: str) -> None:
        entries = tuple(
            HeldEntry(f"entry{key}", int(DType.UINT8), (ENTRY_BYTES,), key * ENTRY_BYTES, False)
            for key in range(NUM_ENTRIES)
        )
        for is_last, text in fragments(Held(folder, 4, {}, "this", entries, -1).encode()):
            self.tell(SnapshotBegin(0, 0, is_last, text))

    def tell(self, record: object) -> None:
        self.follow(self.protocol.handlers[type(record)](record))

    def follow(self, steps: list) -> None:
        for step in steps:
            if isinstance(step, Send):
                self.said.append(step.record)
            else:
                self.executor.carriers[type(step)](step)

    def run(self) -> None:
        """Copy and write until the snapshot has ended."""
        while not any(isinstance(record, SnapshotEnded) for record in self.said):
            if self.executor.has_work:
                self.executor.work()
            else:
                assert self.woken.acquire(timeout=10)
                self.executor.poll()


@pytest.fixture
def device() -> Iterator[Device]:
    memory = DeviceMemory(
        create_memory_file("test", NUM_ENTRIES * ENTRY_BYTES), NUM_ENTRIES * ENTRY_BYTES
    )
    made = Device(memory)
    for key in range(NUM_ENTRIES):
        made.values(key)[:] = key + 1
    yield made
    memory.close()


def test_a_granted_entry_is_held_as_it_was_and_copied_before_the_others(device, tmp_path):
    device.begin(str(tmp_path / "checkpoint"))
    device.tell(SnapshotTouch(0, 7, (2,)))
    assert device.executor.has_urgent_work
    num_blocks = 0
    while device.executor.has_urgent_work:
        device.executor.work()
        num_blocks += 1
    assert SnapshotGrant(0, 7) in device.said
    assert SnapshotCopied(0) not in device.said
    assert num_blocks <= 2 * (ENTRY_BYTES // (4 * MIB) + 1)
    device.values(2)[:] = 99
    device.run()
    assert device.said[-1] == SnapshotEnded(0, "")
    found = read_checkpoint(tmp_path / "checkpoint")
    assert found.step == 4
    for key in range(NUM_ENTRIES):
        assert (found.tensors[f"entry{key}"].array == key + 1).all()


def test_a_machine_without_room_for_the_copies_refuses_the_snapshot(device, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "available_bytes", lambda: 130 * MIB)
    device.begin(str(tmp_path / "checkpoint"))
    device.tell(SnapshotTouch(0, 7, (1,)))
    device.run()
    assert SnapshotGrant(0, 7) in device.said  # whoever waited goes on
    assert f"{ENTRY_BYTES} bytes" in device.said[-1].reason
    assert not device.executor.has_work


def test_files_that_cannot_be_written_end_the_snapshot_with_the_reason(device, tmp_path):
    (tmp_path / "file").write_text("")
    device.begin(str(tmp_path / "file" / "checkpoint"))
    device.run()
    assert "NotADirectoryError" in device.said[-1].reason or "FileExists" in device.said[-1].reason
    assert not device.executor.has_work
