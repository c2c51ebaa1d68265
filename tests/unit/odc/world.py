"""A job under on-demand communication as a state that can be copied and compared, for the check of all interleavings.

Bytes are tokens: a shard is the number of the minibatch that it was published for, sums are sets of pieces. Reading
takes two steps, so that whatever is written between them is found.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from coarse.odc.client.protocol import OdcClient
from coarse.odc.device.served import ServedOdc
from coarse.odc.layout import OdcDeclaration, OdcLayout, OdcUnit, Spot, Spots
from coarse.odc.records import (
    OdcAdded,
    OdcEnd,
    OdcFetch,
    OdcPublish,
    OdcPush,
    OdcRequest,
    OdcRows,
    OdcShards,
    OdcSummed,
    OdcSums,
)
from coarse.odc.steps import OdcAdd, OdcDone, OdcMerge, OdcSend, OdcStore
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Send
from tests.support.model_check import Violation

SHARED = (OdcLayout, Spots, OdcDeclaration, Placement)
ON = {
    OdcPublish: ServedOdc.on_publish, OdcFetch: ServedOdc.on_fetch, OdcRequest: ServedOdc.on_request,
    OdcPush: ServedOdc.on_push, OdcEnd: ServedOdc.on_end, OdcSummed: ServedOdc.on_summed,
    OdcShards: ServedOdc.on_shards, OdcRows: ServedOdc.on_rows,
}  # fmt: skip


def clone(value: Any) -> Any:
    """A copy that shares nothing that changes."""
    kind = type(value)
    if kind is dict:
        return {key: clone(item) for key, item in value.items()}
    if kind is list:
        return [clone(item) for item in value]
    if kind is set:
        return set(value)
    if kind is defaultdict:
        return defaultdict(value.default_factory, {key: clone(item) for key, item in value.items()})
    if kind is deque:
        return deque(value)
    if isinstance(value, SHARED) or not (hasattr(value, "__dict__") and (is_dataclass(value) or kind in COPIED)):
        return value
    made = object.__new__(kind)
    made.__dict__.update({name: clone(item) for name, item in value.__dict__.items()})
    return made


def frozen(value: Any) -> Any:
    """What is equal for equal states, and can be a key."""
    kind = type(value)
    if kind is dict or kind is defaultdict:
        return tuple(sorted((key, frozen(item)) for key, item in value.items()))
    if kind is list or kind is deque:
        return tuple([frozen(item) for item in value])
    if kind is set:
        return frozenset(value)
    if isinstance(value, SHARED):
        return None
    if hasattr(value, "__dict__") and (is_dataclass(value) or kind in COPIED):
        return tuple([frozen(item) for item in value.__dict__.values()])
    return value


class Worker:
    """Where a worker is in its program: for each minibatch publish, its microbatches, end, read the sums."""

    def __init__(self, microbatches: tuple[int, ...]) -> None:
        self.microbatches = microbatches
        self.step = "publish"
        self.left = 0
        self.minibatch = 0
        self.fetch = -1
        """Where the fetch is among the client's; there is one at a time."""


class World:
    """The machines, what is under way, what lies in memory, and who reads it. Made anew for each step."""

    def __init__(
        self, placement: Placement, declaration: OdcDeclaration, microbatches: list[tuple[int, ...]],
        client: type[OdcClient] = OdcClient, served: type[ServedOdc] = ServedOdc,
    ) -> None:  # fmt: skip
        layout = OdcLayout(declaration, placement)
        bases, end = {}, 0
        for member in declaration.members:
            bases[member], end = end, end + layout.region(member).nbytes
        self.layout = layout
        self.spots = Spots(layout, bases)
        self.placement = placement
        self.plan = microbatches
        self.clients = {member: client(member, 0, layout) for member in declaration.members}
        self.devices = {
            device: served(device, 0, layout, self.spots, placement.num_clients) for device in layout.devices
        }
        self.workers = {member: Worker(microbatches[member]) for member in declaration.members}
        self.channels: dict[tuple[int, int], deque[Any]] = {}
        self.shards: dict[Spot, int] = {}
        self.sums: dict[Spot, frozenset[tuple[int, int, int]]] = {}
        self.reading: dict[int, tuple[Spot, ...]] = {}
        self.touched = 0
        self.frozen = {endpoint: self.freeze(endpoint) for endpoint in (*self.clients, *self.device_endpoints())}

    def device_endpoints(self) -> list[int]:
        return [self.placement.num_clients + device for device in self.devices]

    def freeze(self, endpoint: int) -> Any:
        """All that a worker or a device knows."""
        if endpoint < self.placement.num_clients:
            return frozen(self.clients[endpoint]), frozen(self.workers[endpoint])
        return frozen(self.devices[endpoint - self.placement.num_clients])

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, World) and self.key() == other.key()

    def key(self) -> Any:
        """All that changes."""
        if "_key" not in self.__dict__:
            self.frozen[self.touched] = self.freeze(self.touched)
            channels = frozenset((channel, tuple(waiting)) for channel, waiting in self.channels.items() if waiting)
            memory = (frozenset(part.items()) for part in (self.shards, self.sums, self.reading))
            self._key = hash((tuple(self.frozen.values()), channels, *memory))
        return self._key

    def copy(self, endpoint: int) -> "World":
        """To be changed by one worker or device."""
        made = object.__new__(World)
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("_key", None)
        made.touched = endpoint
        for name in ("clients", "devices", "workers", "shards", "sums", "reading", "frozen"):
            setattr(made, name, dict(getattr(self, name)))
        made.channels = {channel: waiting.copy() for channel, waiting in self.channels.items() if waiting}
        if endpoint < self.placement.num_clients:
            made.clients[endpoint] = clone(made.clients[endpoint])
            made.workers[endpoint] = clone(made.workers[endpoint])
        else:
            device = endpoint - self.placement.num_clients
            made.devices[device] = clone(made.devices[device])
        return made

    # --- steps

    def steps(self) -> Iterator[tuple[str, "World"]]:
        """All that can happen next."""
        for channel, waiting in self.channels.items():
            if waiting:
                world = self.copy(channel[1])
                world.deliver(channel)
                yield f"{channel}", world
        for member, worker in self.workers.items():
            if self.can_go_on(member, worker):
                world = self.copy(member)
                world.go_on(member, world.workers[member])
                yield f"worker {member} {worker.step}", world

    def is_end(self) -> bool:
        """Whether all workers have come to their ends."""
        return all(worker.step == "over" for worker in self.workers.values())

    def can_go_on(self, member: int, worker: Worker) -> bool:
        client = self.clients[member]
        if worker.step == "read":
            return client.is_fetched(client._fetches[0])
        if worker.step == "push":
            return any(not left for left in client._slots.values())
        return client.committed is not None if worker.step == "take" else worker.step != "over"

    def go_on(self, member: int, worker: Worker) -> None:
        client = self.clients[member]
        getattr(self, f"_{worker.step}")(member, client, worker)
        for device, record in client.out:
            self.post(member, self.placement.num_clients + device, record)
        client.out.clear()

    def _publish(self, member: int, client: OdcClient, worker: Worker) -> None:
        self.write_shard(self.spots.published(member, 0), worker.minibatch)
        client.publish(0, 1, [True])
        worker.left = worker.microbatches[worker.minibatch]
        worker.step = "fetch" if worker.left else "end"

    def _fetch(self, _member: int, client: OdcClient, worker: Worker) -> None:
        client.fetch(0)
        worker.step = "read"

    def _read(self, member: int, client: OdcClient, worker: Worker) -> None:
        self.reading[member] = tuple(self.spot_read(member, owner) for owner in self.layout.members)
        self.check_shards(member, worker)
        worker.step = "reread"

    def _reread(self, member: int, client: OdcClient, worker: Worker) -> None:
        self.check_shards(member, worker)
        del self.reading[member]
        client.end_fetch(client._fetches[0])
        worker.step = "push"

    def _push(self, member: int, client: OdcClient, worker: Worker) -> None:
        slot = client.take_slot()
        assert slot is not None
        client.push(0, 1, slot)
        worker.left -= 1
        worker.step = "fetch" if worker.left else "end"

    def _end(self, _member: int, client: OdcClient, worker: Worker) -> None:
        client.end(1.0)
        worker.step = "take"

    def _take(self, member: int, client: OdcClient, worker: Worker) -> None:
        committed = client.take_committed()
        if committed.tokens != len(self.workers):
            raise Violation(f"{committed.tokens} tokens")
        self.reading[member] = (self.spots.sums(self.layout.node_of(member), member, 0),)
        self.check_sums(member, worker)
        worker.step = "retake"

    def _retake(self, member: int, _client: OdcClient, worker: Worker) -> None:
        self.check_sums(member, worker)
        del self.reading[member]
        worker.minibatch += 1
        worker.step = "publish" if worker.minibatch < len(worker.microbatches) else "over"

    # --- memory

    def spot_read(self, member: int, owner: int) -> Spot:
        client = self.clients[member]
        if self.layout.node_of(owner) != client.node and 0 not in self.layout.kept:
            return self.spots.landed(member, 0, client._fetches[0].landing, owner)
        return self.spots.copy(client.node, owner, 0)

    def check_shards(self, member: int, worker: Worker) -> None:
        found = [self.shards.get(spot) for spot in self.reading[member]]
        if found != [worker.minibatch] * len(found):
            raise Violation(f"worker {member} reads {found} in minibatch {worker.minibatch}")

    def check_sums(self, member: int, worker: Worker) -> None:
        wanted = {
            (client, worker.minibatch, number)
            for client, other in self.workers.items() for number in range(other.microbatches[worker.minibatch])
        }  # fmt: skip
        found = self.sums.get(self.reading[member][0], frozenset())
        if wanted and found != wanted:
            raise Violation(f"worker {member} finds {set(found)} in minibatch {worker.minibatch}")

    def write_shard(self, spot: Spot, token: int) -> None:
        self.require_unread(spot)
        self.shards[spot] = token

    def require_unread(self, spot: Spot) -> None:
        for member, spots in self.reading.items():
            if spot in spots:
                raise Violation(f"worker {member} reads what is written")

    # --- devices

    def post(self, sender: int, receiver: int, what: Any) -> None:
        self.channels.setdefault((sender, receiver), deque()).append(what)

    def deliver(self, channel: tuple[int, int]) -> None:
        _, receiver = channel
        what = self.channels[channel].popleft()
        if receiver < self.placement.num_clients:
            self.clients[receiver].on_record(what)
            for device, record in self.clients[receiver].out:
                self.post(receiver, self.placement.num_clients + device, record)
            self.clients[receiver].out.clear()
            return
        device = receiver - self.placement.num_clients
        served = self.devices[device]
        record, payload = what if type(what) is tuple else (what, ())
        if isinstance(record, OdcAdded):
            self.post(receiver, record.client, record)
            return
        steps = served.on_sums(record, []) if isinstance(record, OdcSums) else ON[type(record)](served, record)
        self.carry_out(device, steps, payload)

    def carry_out(self, device: int, steps: list[Instruction], payload: Any) -> None:
        first = self.placement.num_clients
        for place, step in enumerate(steps):
            match step:
                case Send():
                    self.post(first + device, step.endpoint, step.record)
                case OdcSend():
                    memory: Any = self.sums if isinstance(step.record, OdcSums) else self.shards
                    if isinstance(step.record, OdcRows):
                        carried: Any = ()
                    else:
                        carried = tuple(memory[spot] for spot, _ in step.payload)
                    self.post(first + device, first + step.device, (step.record, carried))
                case OdcStore():
                    self.write_shard(step.target, payload[place])
                case OdcAdd():
                    self.require_unread(step.target)
                    token = (step.sent.client, step.sent.minibatch, self.number_of(step))
                    before = self.sums.get(step.target, frozenset()) if step.started else frozenset()
                    self.sums[step.target] = before | {token}
                case OdcMerge():
                    self.require_unread(step.target)
                    before = self.sums.get(step.target, frozenset()) if step.started else frozenset()
                    self.sums[step.target] = before | payload[0]
                case OdcDone():
                    self.carry_out(device, self.devices[device].on_done(step), ())
                case _:
                    raise AssertionError(f"{step} in a model without bytes")

    def number_of(self, step: OdcAdd) -> int:
        """Of a worker's piece; devices count them as they come, in order."""
        before = self.sums.get(step.target, frozenset()) if step.started else frozenset()
        return sum(client == step.sent.client for client, *_ in before)


COPIED = (OdcClient, ServedOdc, Worker)


def declaration(num_members: int, *, cache_bytes: int = 0, num_slots: int = 1) -> OdcDeclaration:
    """One unit of one parameter."""
    return OdcDeclaration(
        members=tuple(range(num_members)), units=(OdcUnit(64, (8,), 2),), sum="int64", cache_bytes=cache_bytes,  # type: ignore[arg-type]
        top=18, num_slots=num_slots,
    )  # fmt: skip
