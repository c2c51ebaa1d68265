"""Workers and devices under on-demand communication in one process: real machines and bytes, events in any order."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from coarse.odc.client.protocol import Fetch, OdcClient
from coarse.odc.device.executor import OdcExecutor
from coarse.odc.device.models import DeviceOdc
from coarse.odc.layout import NO_TOKENS, OdcDeclaration, OdcLayout, Spot, Spots
from coarse.odc.records import OdcCommitted, OdcOpen
from coarse.odc.sums import sums_in
from coarse.odc.wide_sum import WideSum
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Send
from coarse.strategy.builtin import Coarse

MODEL = 3


def placement_of(client_nodes: tuple[int, ...], device_nodes: tuple[int, ...]) -> Placement:
    """Workers of a node are dealt its devices in turn."""
    proxies = []
    for client, node in enumerate(client_nodes):
        near = [device for device, at in enumerate(device_nodes) if at == node]
        proxies.append(near[client_nodes[:client].count(node) % len(near)])
    return Placement(
        client_nodes=client_nodes, device_nodes=device_nodes, local_proxies=tuple(proxies),
        ranks=tuple(range(len(client_nodes) + len(device_nodes))), planner=Coarse(), num_sync_groups=1,
    )  # fmt: skip


class OdcCluster:
    """Everything of a job but its processes. Between two of them what is sent comes in order, else in any."""

    def __init__(self, placement: Placement, declaration: OdcDeclaration, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.placement = placement
        self.declaration = declaration
        self.layout = OdcLayout(declaration, placement)
        self.channels: dict[tuple[int, int], deque[Any]] = {}
        """(From, to) endpoint -> records, or frames, under way."""
        self.num_bulk_bytes = 0
        """Payload between devices, and records' bytes in front of it."""
        self.clients = {member: OdcClient(member, MODEL, self.layout) for member in declaration.members}
        bases, ends = {}, [0] * placement.num_devices
        for member in declaration.members:
            device = self.layout.device_of(member)
            bases[member] = ends[device]
            ends[device] += self.layout.region(member).nbytes
        noise = np.random.default_rng(seed)
        self.memories = [noise.integers(0, 255, end, np.uint8) for end in ends]
        self.spots = Spots(self.layout, bases)
        self.devices = [DeviceOdc(device, placement) for device in range(placement.num_devices)]
        self.executors = [self._executor(device) for device in range(placement.num_devices)]
        text = declaration.to_text()
        for member in declaration.members:
            opens = OdcOpen(member, MODEL, bases[member], True, text)
            self._post(member, placement.num_clients + self.layout.device_of(member), opens)
        self.deliver_all()
        assert all(
            client.opened == set(self.layout.devices_on(client.node)) for client in self.clients.values()
        ), "a device does not know of all regions"

    def _executor(self, device: int) -> OdcExecutor:
        return OdcExecutor(
            self.devices[device], self.bytes_of, lambda to, frame: self._send_bulk(device, to, frame),
            lambda steps: self.carry_out(device, steps),
        )  # fmt: skip

    def bytes_of(self, spot: Spot, nbytes: int) -> np.ndarray:
        """Bytes of a device's memory."""
        return self.memories[spot.device][spot.offset : spot.offset + nbytes]

    def _send_bulk(self, device: int, to: int, frame: np.ndarray) -> None:
        self.num_bulk_bytes += len(frame)
        assert self.placement.device_nodes[device] != self.placement.device_nodes[to]
        first = self.placement.num_clients
        self._post(first + device, first + to, frame)

    def carry_out(self, device: int, steps: list[Instruction]) -> None:
        """Carry out what a device's machine asks."""
        for step in steps:
            if isinstance(step, Send):
                near = step.endpoint >= self.placement.num_clients or (
                    self.placement.client_nodes[step.endpoint] == self.placement.device_nodes[device]
                )
                assert near, f"device {device} cannot reach worker {step.endpoint} of another node"
                self._post(self.placement.num_clients + device, step.endpoint, step.record)
            else:
                self.executors[device].carriers[type(step)](step)

    def _post(self, sender: int, receiver: int, what: Any) -> None:
        self.channels.setdefault((sender, receiver), deque()).append(what)

    def flush(self) -> None:
        """Bring workers' records on their way."""
        for member, client in self.clients.items():
            for device, record in client.out:
                self._post(member, self.placement.num_clients + device, record)
            client.out.clear()

    def deliver(self, channel: tuple[int, int]) -> None:
        """Hand over the first of what is under way."""
        sender, receiver = channel
        what = self.channels[channel].popleft()
        if receiver < self.placement.num_clients:
            self.clients[receiver].on_record(what)
        elif isinstance(what, np.ndarray):
            first = self.placement.num_clients
            self.executors[receiver - first].on_message(sender - first, 0, what)
        else:
            device = receiver - self.placement.num_clients
            self.carry_out(device, self.devices[device].handlers[type(what)](what))
        self.flush()

    def pending(self) -> list[tuple[int, int]]:
        """Channels that are not empty."""
        return [channel for channel, waiting in self.channels.items() if waiting]

    def deliver_all(self) -> None:
        """Until nothing is under way."""
        self.flush()
        while waiting := self.pending():
            self.deliver(self.random.choice(waiting))

    def run(self, programs: dict[int, Iterator[Callable[[], bool] | None]]) -> None:
        """Let workers' programs run, in any order with what is under way; each yields what it waits for.

        AssertionError where all wait and nothing is under way.
        """
        waits: dict[int, Callable[[], bool] | None] = dict.fromkeys(programs)
        while waits:
            ready = [member for member, wait in waits.items() if wait is None or wait()]
            choices: list[Any] = [*ready, *self.pending()]
            assert choices, f"workers {sorted(waits)} wait and nothing is under way"
            chosen = self.random.choice(choices)
            if isinstance(chosen, tuple):
                self.deliver(chosen)
                continue
            try:
                waits[chosen] = next(programs[chosen])
            except StopIteration:
                del waits[chosen]
            self.flush()

    # --- what workers do

    def publish(self, member: int, shards: list[np.ndarray]) -> None:
        """All units of a worker, (n,) uint8 each."""
        changed = []
        for unit, shard in enumerate(shards):
            place = self.bytes_of(self.spots.published(member, unit), len(shard))
            changed.append(not np.array_equal(place, shard))
            place[...] = shard
        self.clients[member].publish(0, len(shards), changed)

    def read(self, member: int, fetch: Fetch) -> list[np.ndarray]:
        """Every owner's shard of a unit that is fetched."""
        client, found = self.clients[member], []
        for owner in self.declaration.members:
            is_far = self.layout.node_of(owner) != client.node
            if is_far and fetch.unit not in self.layout.kept:
                spot = self.spots.landed(member, fetch.unit, fetch.landing, owner)
            else:
                spot = self.spots.copy(client.node, owner, fetch.unit)
            found.append(self.bytes_of(spot, self.declaration.units[fetch.unit].shard_nbytes).copy())
        return found

    def stage(self, member: int, unit: int, mask: int, slot: int, rows: np.ndarray) -> None:
        """Put (W, n) rows of a piece into a slot, and push them."""
        dtype = DType(self.declaration.units[unit].dtype)
        for owner, row in zip(self.declaration.members, rows, strict=True):
            raw = row.astype(dtype.storage).view(np.uint8)
            self.bytes_of(self.spots.row(member, unit, mask, slot, owner), len(raw))[...] = raw
        self.clients[member].push(unit, mask, slot)

    def sums(self, member: int, unit: int) -> WideSum | np.ndarray:
        """A worker's own sums."""
        spot = self.spots.sums(self.layout.node_of(member), member, unit)
        return sums_in(self.declaration, unit, self.bytes_of(spot, self.declaration.sum_nbytes(unit)))

    def totals(self, member: int, unit: int) -> np.ndarray:
        """The same as floating-point values."""
        sums = self.sums(member, unit)
        return sums.totals() if isinstance(sums, WideSum) else sums.copy()


Program = Iterator[Callable[[], bool] | None]


def minibatch(
    cluster: OdcCluster, member: int, shards: list[np.ndarray], pieces: list[list[tuple[int, int, np.ndarray]]],
    *, tokens: float = NO_TOKENS, on_read: Callable[[int, list[np.ndarray]], None] = lambda unit, rows: None,
) -> Iterator[Any]:  # fmt: skip
    """One minibatch of a worker: publish, then for each microbatch fetch all units and push its pieces; end, take.

    `pieces`: by microbatch (unit, mask, (W, n) rows). Returns the OdcCommitted.
    """
    client = cluster.clients[member]
    cluster.publish(member, shards)
    yield None
    for microbatch in pieces:
        for unit in range(len(cluster.declaration.units)):
            fetch = client.fetch(unit)
            yield lambda fetch=fetch: client.is_fetched(fetch)
            on_read(unit, cluster.read(member, fetch))
            yield None
            on_read(unit, cluster.read(member, fetch))
            client.end_fetch(fetch)
        for unit, mask, rows in microbatch:
            slot = None
            while slot is None:
                yield None
                slot = client.take_slot()
                if slot is None:
                    yield lambda: any(
                        not left and slot not in client._taken for slot, left in client._slots.items()
                    )
            yield None
            cluster.stage(member, unit, mask, slot, rows)
    client.end(tokens)
    yield lambda: client.committed is not None or client.failed is not None
    if client.failed is not None:
        return client.failed
    committed: OdcCommitted = client.take_committed()
    return committed
