"""The threads of an optimizer node's disks, without MPI."""

import json
import threading

import numpy as np
import pytest

from coarse.luwu.device import opening
from coarse.luwu.device.folder_work import FolderWork
from coarse.luwu.device.models import DeviceModels
from coarse.luwu.records import (
    PagedAsk,
    PagedClose,
    PagedClosed,
    PagedData,
    PagedFailed,
    PagedOpen,
    PagedOpened,
    PagedQuery,
    PagedStatus,
)
from coarse.luwu.store.folder import Disk
from coarse.luwu.store.operations import Push, wire_of
from coarse.protocol.clock import VirtualClock
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instructions, Send
from coarse.storage.allocator import RegionAllocator
from coarse.storage.region import DeviceMemory, create_memory_file
from coarse.strategy.builtin import Coarse
from tests.unit.luwu.device.test_served import declared

CAPACITY_BYTES = 16 << 20
PLACE = Placement(
    client_nodes=(0,), device_nodes=(0,), local_proxies=(0,), ranks=(0, 1), planner=Coarse(), num_sync_groups=1
)


class StallingDisk(Disk):
    """Writes to the file of slots do not return while `stands_still`."""

    stands_still = threading.Event()
    goes_on = threading.Event()
    is_asked = threading.Event()

    def write(self, descriptor: int, buffer: np.ndarray, offset: int) -> int:
        if self.stands_still.is_set() and len(buffer) >= 4096:
            self.is_asked.set()
            self.goes_on.wait()
        return super().write(descriptor, buffer, offset)


class Driver:
    """A device's models and their hands, with one worker whose records are given, and what it gets."""

    def __init__(self) -> None:
        allocator = RegionAllocator(CAPACITY_BYTES)
        self.clock = VirtualClock()
        self.models = DeviceModels(
            0, PLACE, lambda nbytes, placed: placed(allocator.allocate(nbytes, 4096), ""), allocator.free
        )
        memory = DeviceMemory(create_memory_file("hands", CAPACITY_BYTES), CAPACITY_BYTES)
        self.is_awake = threading.Event()
        self.hands = FolderWork(self.models, memory, self.is_awake.set, self.clock, 1)
        self.got: list[object] = []

    def give(self, record: object) -> None:
        self.carry(self.models.handlers[type(record)](record))

    def carry(self, steps: Instructions) -> None:
        for step in steps:
            if isinstance(step, Send):
                self.got.append(step.record)
            else:
                self.hands.carriers[type(step)](step)

    def until(self, kind: type) -> object:
        for _ in range(1000):
            found = [record for record in self.got if isinstance(record, kind)]
            if found:
                self.got.remove(found[-1])
                return found[-1]
            self.is_awake.wait(0.01)
            self.is_awake.clear()
            self.carry(self.hands.take_results())
        raise AssertionError(f"no {kind.__name__} came: {self.got}")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "Disk", StallingDisk)
    for event in (StallingDisk.stands_still, StallingDisk.goes_on, StallingDisk.is_asked):
        event.clear()
    made = Driver()
    text = declared(1).to_json().replace('"/disk"', json.dumps(str(tmp_path)))
    made.give(PagedOpen(0, 0, 7, True, json.dumps({"declaration": text, "nodes": [0], "resumed": ""})))
    yield made
    StallingDisk.goes_on.set()


def test_a_disk_that_stands_still_is_named_and_then_goes_on(driver: Driver) -> None:
    opened = json.loads(driver.until(PagedOpened).text)
    StallingDisk.stands_still.set()
    push = Push(2, 0, False)  # 64 elements, one chunk
    driver.give(PagedAsk(0, 0, 7, wire_of(push), 1, opened["gradients"]))
    driver.give(PagedData(0, 0, 7, True, 0, 1, 0, False))
    for _ in range(500):
        driver.carry(driver.hands.take_results())
        if StallingDisk.is_asked.wait(0.01):
            break
    driver.clock.advance_to(61.0)
    driver.give(PagedQuery(0, 0, 7, 1))
    text = driver.until(PagedStatus).text
    assert "node-0 has not ended a WriteImage for 61 s" in text
    StallingDisk.goes_on.set()
    driver.give(PagedClose(0, 0, 7, ""))
    driver.until(PagedClosed)  # once all is written
    assert not [record for record in driver.got if isinstance(record, PagedFailed)]


def test_a_model_that_is_given_up_while_it_opens_is_closed(driver: Driver) -> None:
    driver.give(PagedClose(0, 0, 7, "tired"))
    assert "rank 0 gave the model up: tired" in driver.until(PagedFailed).text
    driver.until(PagedClosed)
    assert not [record for record in driver.got if isinstance(record, PagedOpened)]
