# Pure: no MPI, threads, clock or environment.
"""On-demand communication on a virtual clock: the machines of workers and devices, on modelled links, bytes as sizes.

Bytes between nodes cross the sending node's link and the receiving one's, and each device carries out its steps one
after another, as the live one does. A record takes no time of its own, but on the connection of two devices it comes
behind the bytes that were sent before it. Within a node reading and adding take the rates of memory. Workers compute in
turn what they are given, by seconds.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from coarse.hardware.links import Link, path_alone_s
from coarse.hardware.machine import Machine
from coarse.odc.client.protocol import Fetch, OdcClient
from coarse.odc.costs import COSTS
from coarse.odc.device.models import DeviceOdc
from coarse.odc.device.served import ServedOdc
from coarse.odc.layout import NO_TOKENS, OdcDeclaration, OdcLayout, Spots
from coarse.odc.records import OdcRows, OdcShards, OdcSums
from coarse.odc.steps import OdcDone, OdcSend
from coarse.protocol.costs import Way, cost_of
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Send
from coarse.simulation.engine import Engine

_MODEL = 0
_PROBE_BYTES = 1 << 30
_NO_TIME = 1e15
"""Bytes/s of what takes no time."""
Waits = Iterator["float | Callable[[], bool]"]
"""What a worker's program yields: seconds to compute, or what it waits for."""


@dataclass(frozen=True, kw_only=True)
class OdcRates:
    """What bytes take. Rates of 0 are of what takes no time."""

    read_bytes_per_s: float = 0.0
    """Of a worker that reads a unit out of its node's memory."""
    add_bytes_per_s: float = 0.0
    """Of a device that adds a piece's row."""
    node_bytes_per_s: float = _NO_TIME
    """Of each node's link, in each direction."""
    node_latency_s: float = 0.0

    @classmethod
    def of(cls, machine: Machine, num_nodes: int, gpus_per_node: int) -> "OdcRates":
        """Return the rates of a machine, whose GPUs are the workers and whose nodes have a memory device each.

        All GPUs of a node read at once, each by its way from the host's memory; a node sends and receives over the way
        between the first GPUs of two nodes; a device adds as its adders do.
        """
        engine, nbytes = Engine(machine.links), _PROBE_BYTES
        for gpu in range(gpus_per_node):
            engine.move(("read", gpu), machine.host_path(f"gpu{gpu}", to_host=False), nbytes, lambda: None)
        engine.run()
        between: list[Link] = []
        if num_nodes > 1:
            path = machine.path("gpu0", f"gpu{len(machine.tree.gpus)}")
            between = [machine.links[link] for link in path]
        latency_s = path_alone_s(between, 0)
        return cls(
            read_bytes_per_s=nbytes / engine.now_s,
            add_bytes_per_s=machine.memory_device.adder_bytes_per_s,
            node_bytes_per_s=nbytes / (path_alone_s(between, nbytes) - latency_s) if between else _NO_TIME,
            node_latency_s=latency_s,
        )


@dataclass(frozen=True)
class Microbatch:
    """Seconds of each unit's forward and of its backward: by unit, or one number for each of them."""

    forward_s: float | tuple[float, ...]
    backward_s: float | tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class OdcRun:
    """What minibatches took."""

    ended_s: tuple[float, ...]
    """By minibatch when all had ended it."""
    computed_s: tuple[float, ...]
    """By worker, in all."""
    sent_bytes: tuple[float, ...]
    """By node to others."""

    @property
    def idle_share(self) -> float:
        """The mean share of the time in which workers did not compute."""
        return 1 - sum(self.computed_s) / (len(self.computed_s) * self.ended_s[-1])


class SimulatedOdc:
    """A job; each worker's program runs through its minibatches."""

    def __init__(self, placement: Placement, declaration: OdcDeclaration, rates: OdcRates) -> None:
        self._placement = placement
        self._rates = rates
        self._declaration = declaration
        self._layout = OdcLayout(declaration, placement)
        nodes = sorted(set(placement.client_nodes))
        self._nodes = {node: place for place, node in enumerate(nodes)}
        self._engine = Engine([
            Link(name=f"{way} {node}", latency_s=rates.node_latency_s / 2, bytes_per_s=rates.node_bytes_per_s)
            for way in ("out of", "into") for node in nodes
        ])  # fmt: skip
        spots = Spots(self._layout, dict.fromkeys(declaration.members, 0))
        self._clients = {member: OdcClient(member, _MODEL, self._layout) for member in declaration.members}
        self._devices = [DeviceOdc(device, placement) for device in range(placement.num_devices)]
        for device in self._layout.devices:
            served = ServedOdc(device, _MODEL, self._layout, spots, placement.num_clients)
            self._devices[device].served[_MODEL] = served
        self._steps: list[deque[Instruction]] = [deque() for _ in self._devices]
        self._busy = [False] * len(self._devices)
        self._coming: deque[tuple[int, Any]] = deque()
        self._under_way: defaultdict[tuple[int, int], deque[list[tuple[int, Any]]]] = defaultdict(deque)
        """By pair of devices what is on its way: for each message the records that were sent right after it."""
        self._programs: dict[int, Waits] = {}
        self._waits: dict[int, Callable[[], bool] | None] = {}
        self._computed_s = dict.fromkeys(declaration.members, 0.0)
        self._ended_s: list[float] = []

    def run(self, work: Sequence[Sequence[Sequence[Microbatch]]]) -> OdcRun:
        """`work`: by minibatch, member and microbatch."""
        for place, member in enumerate(self._layout.members):
            self._programs[member] = self._program(member, [minibatch[place] for minibatch in work])
            self._engine.at(0.0, lambda member=member: self._go_on(member))  # type: ignore[misc]
        self._engine.run()
        assert not self._programs, f"workers {sorted(self._programs)} wait and nothing happens"
        return OdcRun(
            ended_s=tuple(self._ended_s), computed_s=tuple(self._computed_s.values()),
            sent_bytes=tuple(self._engine.bytes_moved(place) for place in self._nodes.values()),
        )  # fmt: skip

    # --- workers

    def _program(self, member: int, work: Sequence[Sequence[Microbatch]]) -> Waits:
        client, units = self._clients[member], range(len(self._declaration.units))
        for number, microbatches in enumerate(work):
            client.publish(0, len(units), [True] * len(units))
            for microbatch in microbatches:
                yield from self._pass(client, units, microbatch.forward_s, is_backward=False)
                yield from self._pass(client, units[::-1], microbatch.backward_s, is_backward=True)
            client.end(NO_TOKENS)
            yield lambda: client.committed is not None
            client.take_committed()
            if len(self._ended_s) == number:
                self._ended_s.append(0.0)
            self._ended_s[number] = self._engine.now_s

    def _pass(
        self, client: OdcClient, units: Sequence[int], seconds: float | tuple[float, ...], *, is_backward: bool
    ) -> Waits:
        """Through all units; each is fetched while the one before it is computed."""
        fetch = client.fetch(units[0])
        for unit, following in zip_longest(units, units[1:]):
            yield from self._read(client, unit, fetch)
            if following is not None:
                fetch = client.fetch(following)
            yield seconds[unit] if isinstance(seconds, tuple) else seconds
            if is_backward:
                yield from self._push(client, unit)

    def _read(self, client: OdcClient, unit: int, fetch: Fetch) -> Waits:
        yield lambda: client.is_fetched(fetch)
        if self._rates.read_bytes_per_s:
            nbytes = len(self._layout.members) * self._declaration.units[unit].shard_nbytes
            yield nbytes / self._rates.read_bytes_per_s
        client.end_fetch(fetch)

    def _push(self, client: OdcClient, unit: int) -> Waits:
        mask = (1 << len(self._declaration.units[unit].segments)) - 1
        if not mask:
            return
        taken: list[int] = []

        def take() -> bool:
            if not taken and (slot := client.take_slot()) is not None:
                taken.append(slot)
            return bool(taken)

        yield take
        client.push(unit, mask, taken[0])

    def _go_on(self, member: int) -> None:
        """Run a worker's program until it computes or waits."""
        wait = self._waits.pop(member, None)
        while member in self._programs:
            if wait is not None and not wait():
                self._waits[member] = wait
                break
            try:
                found = next(self._programs[member])
            except StopIteration:
                del self._programs[member]
                break
            self._send_all(member)
            if isinstance(found, float):
                self._computed_s[member] += found
                self._engine.at(self._engine.now_s + found, lambda: self._go_on(member))
                break
            wait = found
        self._send_all(member)
        self._follow()

    def _send_all(self, member: int) -> None:
        client = self._clients[member]
        self._coming.extend((self._placement.num_clients + device, record) for device, record in client.out)
        client.out.clear()

    # --- devices

    def _follow(self) -> None:
        """Hand over what was sent, until nothing more follows at once."""
        woken: dict[int, None] = {}
        while self._coming or woken:
            while self._coming:
                endpoint, record = self._coming.popleft()
                if endpoint < self._placement.num_clients:
                    self._clients[endpoint].on_record(record)
                    self._send_all(endpoint)
                    woken[endpoint] = None
                else:
                    device = endpoint - self._placement.num_clients
                    self._take(device, self._devices[device].handlers[type(record)](record))
            if woken:
                member, _ = woken.popitem()
                wait = self._waits.get(member)
                if wait is not None and wait():
                    self._go_on(member)

    def _take(self, device: int, steps: Sequence[Instruction]) -> None:
        """Put steps behind those that a device has still to carry out."""
        self._steps[device].extend(steps)
        if not self._busy[device]:
            self._carry_out(device)

    def _carry_out(self, device: int) -> None:
        steps = self._steps[device]
        while steps:
            step = steps.popleft()
            seconds = self._seconds(step)
            if seconds:
                self._busy[device] = True
                self._engine.work(("device", device), seconds, lambda: self._done(device))
                return
            if isinstance(step, Send):
                self._tell(device, step)
            elif isinstance(step, OdcSend):
                self._send(device, step)
            elif isinstance(step, OdcDone):
                steps.extendleft(reversed(self._devices[device].on_done(step)))

    def _tell(self, device: int, step: Send) -> None:
        """A record arrives at once, or behind the bytes that are on their way on the same connection."""
        before = self._under_way[device, step.endpoint - self._placement.num_clients]
        (before[-1] if before else self._coming).append((step.endpoint, step.record))

    def _done(self, device: int) -> None:
        self._busy[device] = False
        self._carry_out(device)
        self._follow()

    def _seconds(self, step: Instruction) -> float:
        """What a step takes of its device."""
        if isinstance(step, Send):
            return 0.0
        way, nbytes = cost_of(COSTS, step, self._declaration)
        return nbytes / self._rates.add_bytes_per_s if way is Way.ADDS and self._rates.add_bytes_per_s else 0.0

    def _send(self, device: int, step: OdcSend) -> None:
        """Bytes cross both nodes' links, and arrive in the order in which they were sent."""
        nodes = self._placement.device_nodes
        path = (self._nodes[nodes[device]], len(self._nodes) + self._nodes[nodes[step.device]])
        _, nbytes = cost_of(COSTS, step, self._declaration)
        record: OdcShards | OdcRows | OdcSums = step.record
        under_way = self._under_way[device, step.device]
        under_way.append([])

        def arrived() -> None:
            self._coming.extend(under_way.popleft())
            self._take(step.device, self._devices[step.device].on_bulk(record, list(step.found)))
            self._follow()

        self._engine.move(("device", device, step.device), path, nbytes, arrived)
