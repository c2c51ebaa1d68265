"""Hosts with workers, switches and optimizer nodes in one process, without MPI, threads or sockets.

Devices are those of the product: DeviceModels, FolderWork whose threads are a list of jobs, and TreeLinks whose kernel
is `Wires`. Time goes on when nothing else can happen.
"""

import json
import math
from collections import Counter, deque
from collections.abc import Callable
from functools import partial, reduce

import numpy as np
import pytest

from coarse.luwu import datagrams
from coarse.luwu.client.line import NodeLine
from coarse.luwu.device import folder_work, links, opening
from coarse.luwu.device.folder_work import FolderWork
from coarse.luwu.device.links import PACKETS, TreeLinks
from coarse.luwu.device.models import DeviceModels
from coarse.luwu.many_to_one.frames import frame_of
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.records import (
    PagedClose,
    PagedClosed,
    PagedFailed,
    PagedLook,
    PagedOpen,
    PagedOpened,
)
from coarse.luwu.steps import SendFrame
from coarse.luwu.store.declaration import Declaration
from coarse.protocol.clock import VirtualClock
from coarse.protocol.codec import decode, encode
from coarse.protocol.fragments import fragments
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Send
from coarse.storage.allocator import RegionAllocator
from tests.unit.luwu.device.training import MODEL, Event, Program, Training
from tests.unit.luwu.device.wires import Stamps, Wires
from tests.unit.luwu.store.memory_disk import MemoryDisk

CAPACITY_BYTES = 2 << 20
EARLY_SHARE = 0.01
"""Of events on lossy wires: timers that run out before anything was lost."""
Order = int | tuple["Order", ...]
"""In which gradients are added: a worker's, or a sum of others."""


class Memory:
    """A device's. What nobody has written is no number."""

    def __init__(self) -> None:
        self.bytes = np.full(CAPACITY_BYTES, 0xFF, np.uint8)

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        assert 0 <= offset <= offset + nbytes <= CAPACITY_BYTES
        return self.bytes[offset : offset + nbytes]


class Jobs:
    """In place of threads: any job may be the next to end."""

    def __init__(self, jobs: list[Event], name: str, num_threads: int, done: Callable[[object], None]) -> None:
        self._jobs = jobs
        self._done = done

    def put(self, job: Callable[[], object]) -> None:
        self._jobs.append(lambda: self._done(job()))

    def stop(self) -> None:
        pass


class Sleeper:
    """In place of a mailbox."""

    def __init__(self) -> None:
        self.descriptors: set[int] = set()

    def wake_on(self, descriptor: int) -> None:
        self.descriptors.add(descriptor)

    def ignore(self, descriptor: int) -> None:
        self.descriptors.remove(descriptor)


class HostDevice:
    """A memory device and its driver."""

    def __init__(self, hosts: "Hosts", number: int) -> None:
        self._hosts = hosts
        self._endpoint = hosts.placement.num_clients + number
        self.memory = Memory()
        self.allocator = RegionAllocator(CAPACITY_BYTES)
        self.models = DeviceModels(number, hosts.placement, self._allocate, self.allocator.free)
        self.jobs: list[Event] = []
        self.sleeper = Sleeper()
        self.num_woken = 0
        self.folder_work = FolderWork(self.models, self.memory, self._wake, hosts.clock, 1)
        self.links = TreeLinks(
            self.models, self.memory, number, partial(hosts.send, number), self.sleeper, hosts.clock,
            self.folder_work.take_looked,
        )  # fmt: skip
        self._carriers = self.folder_work.carriers | self.links.carriers
        self.sent_bytes: Counter[tuple[int, bool]] = Counter()
        """Of packets, by device and whether they are pushed."""

    def _wake(self) -> None:
        self.num_woken += 1

    def _allocate(self, nbytes: int, placed: Callable[[int, str], list[Instruction]]) -> list[Instruction]:
        offset = self.allocator.allocate(nbytes)
        return placed(-1, "it is full") if offset is None else placed(offset, "")

    def carry(self, steps: list[Instruction]) -> None:
        for step in steps:
            if isinstance(step, Send):
                self._hosts.tell_from(self._endpoint, step.endpoint, step.record)
                continue
            if isinstance(step, SendFrame):
                self.sent_bytes[step.device, step.frame.is_up] += sum(nbytes for _, nbytes in step.payloads)
            self._carriers[type(step)](step)

    def on_record(self, record: object) -> None:
        self.carry(self.models.handlers[type(record)](record))

    def finish(self) -> None:
        self.num_woken = 0
        self.carry(self.folder_work.take_results())

    def take(self) -> None:
        self.links.take(self.carry)

    def events(self) -> list[Event]:
        found: list[Event] = [partial(self.do, job) for job in self.jobs]
        if self.num_woken:
            found.append(self.finish)
        if any(self._hosts.wires.sockets[one].come for one in self.sleeper.descriptors) or self.sleep_s() == 0:
            found.append(self.take)
        return found

    def do(self, job: Event) -> None:
        self.jobs.remove(job)
        job()

    def sleep_s(self) -> float:
        return self.links.longest_sleep_s(math.inf)


class Hosts(Training):
    """All of a job. `order`: see `Order`."""

    def __init__(
        self,
        declaration: Declaration,
        placement: Placement,
        seed: int,
        order: Order,
        patch: pytest.MonkeyPatch,
        *,
        is_born: bool,
        loss: float,
        payload_bytes: int,
        window: int,
    ) -> None:
        """`payload_bytes`: of a datagram; `window`: so many of which a socket has room for."""
        super().__init__(declaration, seed, is_born=is_born)
        self.placement = placement
        self.order = order
        self.clock = VirtualClock()
        room_bytes = 2 * window * payload_bytes  # as a kernel has it, half of which is for payloads
        self.wires = Wires(self.rng, payload_bytes=payload_bytes, room_bytes=room_bytes, loss=loss)
        patch.setattr(datagrams, "socket", self.wires.module())
        patch.setattr(links, "own_addresses", lambda: [])
        patch.setattr(opening, "MemoryDisk", MemoryDisk)
        self.devices = [HostDevice(self, number) for number in range(placement.num_devices)]
        jobs = {device.folder_work._finish: device.jobs for device in self.devices}
        patch.setattr(folder_work, "_Threads", lambda name, number, done: Jobs(jobs[done], name, number, done))
        self.records: dict[tuple[int, int], deque[bytes]] = {}
        """By endpoints, from and to."""
        self.messages: dict[tuple[int, int, int], deque[np.ndarray]] = {}
        """By devices, from and to, and tag."""
        self.stamps: dict[tuple[int, int, int], Stamps] = {}
        """By devices, from and to, and root."""
        self.texts: dict[tuple[int, int], list[str]] = {}
        self.opened: dict[tuple[int, int], dict[str, object]] = {}
        self.may_fail = False
        self.failed: dict[int, str] = {}
        self.closed: list[set[int]] = [set() for _ in self.workers]
        self.num_transmissions = 0
        """Of the hop that had most."""
        self.num_resent = 0

    def train(self, steps: int) -> None:
        """All of a training; afterwards nothing is left of it."""
        self.run([self.whole(worker, steps) for worker in self.workers])
        assert self.num_waiting() == 0
        self.num_transmissions = max(sender.next_stamp for sender in self.senders())
        self.num_resent = sum(sender.num_resent for sender in self.senders())
        for worker in self.workers:
            self.require_zeros(worker)
        self.end()

    def end(self) -> None:
        self.run([self.closing(worker) for worker in self.workers])
        assert all(device.allocator.used_bytes == 0 and not device.sleeper.descriptors for device in self.devices)
        assert all(one.is_closed for one in self.wires.sockets)

    # --- records and bytes

    def tell(self, worker: int, record: object) -> None:
        self.tell_from(worker, self.placement.num_clients + self.near(worker, record.device), record)

    def near(self, worker: int, device: int) -> int:
        """The device of a worker's host to which records for an optimizer node go."""
        if device in self.lines[worker]:
            return self.lines[worker][device].hub
        is_here = self.placement.device_nodes[device] == self.placement.client_nodes[worker]
        return device if is_here else self.placement.local_proxies[worker]

    def tell_from(self, source: int, target: int, record: object) -> None:
        if min(source, target) < self.placement.num_clients:
            worker, device = min(source, target), max(source, target) - self.placement.num_clients
            assert self.placement.client_nodes[worker] == self.placement.device_nodes[device]
        self.records.setdefault((source, target), deque()).append(encode(record))

    def send(self, source: int, target: int, tag: int, raw: np.ndarray) -> None:
        if tag == PACKETS:
            root = frame_of(raw.data).root
            self.stamps.setdefault((source, target, root), Stamps()).note(raw.tobytes())
        self.messages.setdefault((source, target, tag), deque()).append(raw.copy())

    def view(self, line: NodeLine, offset: int, nbytes: int) -> np.ndarray:
        return self.devices[line.hub].memory.view(offset, nbytes)

    # --- what happens

    def events(self) -> list[Event]:
        found: list[Event] = [partial(self.hear, *ends) for ends, queue in self.records.items() if queue]
        found += [partial(self.take_message, *ends) for ends, queue in self.messages.items() if queue]
        found += [one.deliver for one in self.wires.sockets if one.flying]
        for device in self.devices:
            found += device.events()
        if found and self.wires.loss and self.rng.random() < EARLY_SHARE:
            self.wake()
        return found

    def hear(self, source: int, target: int) -> None:
        record = decode(self.records[source, target].popleft())
        if target < self.placement.num_clients:
            self.on_worker(target, record)
        else:
            self.devices[target - self.placement.num_clients].on_record(record)

    def take_message(self, source: int, target: int, tag: int) -> None:
        raw, device = self.messages[source, target, tag].popleft(), self.devices[target]
        if tag == PACKETS:
            device.links.on_packets(source, raw, device.carry)
        else:
            device.carry(device.links.on_looked(raw))

    def wake(self) -> bool:
        """Let time go on until a timer is due; not where none helps any more."""
        if not self.num_waiting() or (self.failed and not self.programs):
            return False  # switches ask a node that has failed until they are told to leave
        self.clock.advance_to(self.clock.now_s() + min(device.sleep_s() for device in self.devices))
        for device in self.devices:
            device.take()
        return True

    def senders(self) -> list[Sender]:
        nodes = self.declaration.nodes
        return [one for at in self.devices for root in nodes for one in at.models.senders(MODEL, root).values()]

    def num_waiting(self) -> int:
        """Ends of links that do not know that all has come."""
        return sum(one.is_waiting for one in self.senders())

    def on_worker(self, worker: int, record: object) -> None:
        match record:
            case PagedOpened():
                self.texts.setdefault((worker, record.device), []).append(record.text)
                if record.is_last:
                    said = json.loads("".join(self.texts.pop((worker, record.device))))
                    self.opened.setdefault((worker, record.device), {}).update(said)
            case PagedFailed() if self.may_fail:
                self.failed[worker] = record.text
            case PagedClosed():
                self.closed[worker].add(record.device)
            case _:
                super().on_worker(worker, record)

    # --- what workers do

    def whole(self, worker: int, steps: int) -> Program:
        yield from self.open(worker)
        yield from self.program(worker, steps)
        yield from self.looking(worker, steps)

    def open(self, worker: int) -> Program:
        nodes = self.declaration.nodes
        declared = {"declaration": self.declaration.to_json(), "nodes": nodes, "resumed": ""}
        for node, device in enumerate(nodes):
            for is_last, part in fragments(json.dumps(declared) if worker == 0 else ""):
                self.tell(worker, PagedOpen(worker, device, MODEL, is_last, part))
            yield lambda at=(worker, device): {"hub", "told"} <= self.opened.get(at, {}).keys()
            said = self.opened[worker, device]
            self.lines[worker][device] = NodeLine(worker, device, MODEL, node, self.declaration, said)

    def until_failed(self, worker: int, program: Program) -> Program:
        """A program that goes on until the model has failed."""
        for wait in program:
            yield lambda wait=wait: worker in self.failed or wait is None or wait()
            if worker in self.failed:
                return
        yield lambda: worker in self.failed

    def looking(self, worker: int, steps: int) -> Program:
        """Parameters and states as they are in the end."""
        for unit, of in enumerate(self.model.units):
            line, chunk, token = self.line(worker, unit), self.model.num_chunks(unit) - 1, unit
            array = (unit + 1) % 3 if of.is_trainable else 0
            look = PagedLook(worker, line.device, MODEL, token, unit, chunk, array, line.num_operations)
            self.tell(worker, look)
            yield lambda token=token: token in self.looked[worker]
            begin, end = self.model.elements(unit, chunk)
            seen = self.view(line, line.opened["look"], 4 * (end - begin))
            assert seen.tobytes() == self.reference(unit, steps)[array][begin:end].tobytes()

    def closing(self, worker: int, reason: str = "") -> Program:
        for device in self.declaration.nodes:
            self.tell(worker, PagedClose(worker, device, MODEL, reason))
        yield lambda: self.closed[worker] == set(self.declaration.nodes)

    def require_zeros(self, worker: int) -> None:
        """Rooms of gradients are left as they were found."""
        for line in self.lines[worker].values():
            assert not self.view(line, line.opened["gradients"], line.opened["gradient_bytes"]).any()

    # --- what should come of it

    def total(self, step: int, unit: int) -> np.ndarray:
        if self.declaration.is_packed:
            return super().total(step, unit)
        total = self.added(self.order, step, unit)
        assert total is not None
        return total

    def added(self, order: Order, step: int, unit: int) -> np.ndarray | None:
        if isinstance(order, int):
            return self.pushed(order, step, unit)
        parts = [part for one in order if (part := self.added(one, step, unit)) is not None]
        return reduce(np.add, parts) if parts else None
