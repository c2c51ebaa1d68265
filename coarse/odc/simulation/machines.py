# Pure: no MPI, threads, clock or environment.
"""On-demand communication on a virtual clock: the live machines on modelled links, bytes as sizes.

The bytes and the order of their moves are as in a live job; their times follow from the costs (coarse.odc.costs) and a
site's links and adders. Each device carries out its steps one after another. A record takes no time of its own, but
comes behind the bytes that its sender has sent to the same endpoint before; messages to unlike devices overlap. Workers
compute in turn the seconds that they are given.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from coarse.hardware.degradation import RateChange
from coarse.odc.client.protocol import Fetch, OdcClient
from coarse.odc.costs import COSTS
from coarse.odc.device.models import DeviceOdc
from coarse.odc.device.served import ServedOdc
from coarse.odc.layout import NO_TOKENS, OdcDeclaration, OdcLayout, OdcSizes, Spots
from coarse.odc.records import OdcRows, OdcShards, OdcSums
from coarse.odc.steps import OdcDone, OdcRead, OdcSend, OdcTake
from coarse.protocol.costs import FREE, Cost, Way, cost_of
from coarse.protocol.plan import Placement
from coarse.proxy.instructions import Instruction, Send
from coarse.simulation.engine import Engine
from coarse.simulation.sites import Site

_MODEL = 0
Program = Iterator["float | Callable[[], bool]"]
"""Generator of a worker's program: it yields seconds to compute, or a condition to wait for."""


@dataclass(frozen=True)
class Microbatch:
    """Seconds of each unit's forward and of its backward: by unit, or one number for each of them."""

    forward_s: float | tuple[float, ...]
    backward_s: float | tuple[float, ...]

    def acts(self, num_units: int, *, trained: Sequence[bool]) -> "list[Act]":
        """Return a worker's acts: each unit is fetched while the one before it is computed."""
        units, found = range(num_units), list[Act]()
        for order, seconds, is_backward in ((units, self.forward_s, False), (units[::-1], self.backward_s, True)):
            for unit, following in zip_longest(order, order[1:]):
                found.append(Read(unit, following))
                found.append(Compute(seconds[unit] if isinstance(seconds, tuple) else seconds))
                if is_backward and trained[unit]:
                    found.append(PushPiece(unit))
        return found


class Compute(NamedTuple):
    """Compute of a worker."""

    seconds: float


class Read(NamedTuple):
    """Wait of a worker for a unit, and its copy; then a fetch of another unit, which is read next."""

    unit: int
    following: int | None = None


class PushPiece(NamedTuple):
    """Push of a unit's gradient by a worker."""

    unit: int


Act = Compute | Read | PushPiece


@dataclass(frozen=True, kw_only=True)
class OdcRun:
    """Times and bytes of simulated minibatches."""

    ended_s: tuple[float, ...]
    """Seconds at which all had ended each minibatch."""
    called_s: tuple[tuple[float, ...], ...]
    """Seconds at which each worker had no more of a minibatch, by minibatch and worker."""
    computed_s: tuple[float, ...]
    """Seconds of compute of each worker, in all."""
    sent_bytes: tuple[float, ...]
    """Bytes sent to other nodes, by node."""

    @property
    def idle_share(self) -> float:
        """Mean share of the time in which workers did not compute."""
        return 1 - sum(self.computed_s) / (len(self.computed_s) * self.ended_s[-1])


class SimulatedOdc:
    """Simulated job, in which each worker's program runs through its minibatches."""

    def __init__(
        self, placement: Placement, declaration: OdcDeclaration, site: Site, changes: Sequence[RateChange] = ()
    ) -> None:
        """Prepare the machines; `changes` has other rates of links, by seconds of the run."""
        self._num_clients = placement.num_clients
        self._site = site
        self._declaration = declaration
        self._layout = OdcLayout(declaration, placement)
        self._device_nodes = placement.cluster.device_nodes
        self._engine = Engine(site.links)
        self._engine.set_rates(changes)
        spots = Spots(self._layout, dict.fromkeys(declaration.members, 0))
        self._clients = {member: OdcClient(member, _MODEL, self._layout) for member in declaration.members}
        self._devices = [DeviceOdc(device, placement) for device in range(placement.num_devices)]
        for device in self._layout.devices:
            served = ServedOdc(device, _MODEL, self._layout, spots, placement.num_clients)
            self._devices[device].served[_MODEL] = served
        self._steps: list[deque[Instruction]] = [deque() for _ in self._devices]
        self._busy = [False] * len(self._devices)
        self._coming: deque[tuple[int, Any]] = deque()
        self._under_way: defaultdict[tuple[int, int], deque[list[Any]]] = defaultdict(deque)
        """Transfers under way by sender and receiver, each with the records that were sent right after it."""
        self._programs: dict[int, Program] = {}
        self._waits: dict[int, Callable[[], bool] | None] = {}
        self._computed_s = dict.fromkeys(declaration.members, 0.0)
        self._sent_bytes = dict.fromkeys(sorted(self._layout.nodes), 0.0)
        self._ended_s: list[float] = []
        self._called_s: list[dict[int, float]] = []

    def run(self, work: Sequence[Sequence[Sequence[Act] | Sequence[Microbatch]]]) -> OdcRun:
        """Run minibatches; `work` has by minibatch and member the microbatches, or the worker's acts."""
        trained = [bool(unit.segments) for unit in self._declaration.units]
        self._ended_s, self._called_s = [0.0] * len(work), [{} for _ in work]
        for place, member in enumerate(self._layout.members):
            own = [_acts(minibatch[place], trained) for minibatch in work]
            self._programs[member] = self._program(member, own)
            self._engine.at(0.0, partial(self._go_on, member))
        self._engine.run()
        assert not self._programs, f"workers {sorted(self._programs)} wait and nothing happens"
        return OdcRun(
            ended_s=tuple(self._ended_s), computed_s=tuple(self._computed_s.values()),
            called_s=tuple(tuple(called[member] for member in self._layout.members) for called in self._called_s),
            sent_bytes=tuple(self._sent_bytes.values()),
        )  # fmt: skip

    # --- workers

    def _program(self, member: int, work: Sequence[Sequence[Act]]) -> Program:
        client, declared = self._clients[member], self._declaration.units
        sizes = OdcSizes(self._layout, client.device)
        for number, acts in enumerate(work):
            fetches: dict[int, Fetch] = {}
            for act in (*acts, None):
                if not isinstance(act, Compute) and not client.is_published(0):  # before, an optimizer steps
                    client.publish(0, len(declared), [not number or bool(unit.segments) for unit in declared])
                match act:
                    case Compute(seconds):
                        yield seconds
                    case Read():
                        yield from self._read(client, sizes, act, fetches)
                    case PushPiece(unit):
                        yield from self._push(client, unit)
            self._called_s[number][member] = self._engine.now_s
            client.end(NO_TOKENS)
            yield lambda: client.committed is not None
            committed = client.take_committed()
            self._ended_s[number] = max(self._ended_s[number], self._engine.now_s)
            for unit, mask in enumerate(committed.masks):
                if mask:
                    yield from self._copy(client, sizes, [OdcTake(unit, client.device)])

    def _read(self, client: OdcClient, sizes: OdcSizes, act: Read, fetches: dict[int, Fetch]) -> Program:
        fetch = fetches.pop(act.unit, None) or client.fetch(act.unit)
        yield lambda: client.is_fetched(fetch)
        yield from self._copy(client, sizes, client.reads(fetch))
        client.end_fetch(fetch)
        if act.following is not None:
            fetches[act.following] = client.fetch(act.following)

    def _copy(self, client: OdcClient, sizes: OdcSizes, steps: Sequence[OdcRead | OdcTake]) -> Program:
        """Copy out of devices' memory, while the worker waits."""
        member, left = client.client, [len(steps)]

        def ended() -> None:
            left[0] -= 1
            self._go_on(member)

        for step in steps:
            cost = cost_of(COSTS, step, sizes)
            self._engine.move(("pull", member), self._site.pull[member, cost.device], cost.amount, ended)
        yield lambda: not left[0]

    def _push(self, client: OdcClient, unit: int) -> Program:
        mask = (1 << len(self._declaration.units[unit].segments)) - 1
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
                self._engine.at(self._engine.now_s + found, partial(self._go_on, member))
                break
            wait = found
        self._send_all(member)
        self._follow()

    def _send_all(self, member: int) -> None:
        out = self._clients[member].out
        if not out:
            return
        for device, record in out:
            cost = cost_of(COSTS, record, OdcSizes(self._layout, device))
            self._send_record(member, self._num_clients + device, record, cost)
        out.clear()

    # --- records

    def _send_record(self, sender: int, endpoint: int, record: Any, cost: Cost = FREE) -> None:  # noqa: ANN401
        """Send a record.

        It arrives with the bytes that it announces, or at once, or behind those under way on the same pair.
        """
        before = self._under_way[sender, endpoint]
        if cost.way is Way.PUSHES:
            before.append([record])
            path = self._site.push[sender, cost.device]
            self._engine.move(("push", sender), path, cost.amount, partial(self._arrived, sender, endpoint))
        elif before:
            before[-1].append(record)
        else:
            self._coming.append((endpoint, record))

    def _arrived(self, sender: int, endpoint: int) -> None:
        self._coming.extend((endpoint, record) for record in self._under_way[sender, endpoint].popleft())
        self._follow()

    def _follow(self) -> None:
        """Deliver sent records, until nothing more follows at once."""
        woken: dict[int, None] = {}
        while self._coming or woken:
            while self._coming:
                endpoint, record = self._coming.popleft()
                if endpoint < self._num_clients:
                    self._clients[endpoint].on_record(record)
                    self._send_all(endpoint)
                    woken[endpoint] = None
                else:
                    device = endpoint - self._num_clients
                    self._take(device, self._devices[device].handlers[type(record)](record))
            if woken:
                member, _ = woken.popitem()
                wait = self._waits.get(member)
                if wait is not None and wait():
                    self._go_on(member)

    # --- devices

    def _take(self, device: int, steps: Sequence[Instruction]) -> None:
        """Queue steps behind those that a device has still to carry out."""
        self._steps[device].extend(steps)
        if not self._busy[device]:
            self._carry_out(device)

    def _carry_out(self, device: int) -> None:
        steps = self._steps[device]
        while steps:
            step = steps.popleft()
            if isinstance(step, Send):
                self._send_record(self._num_clients + device, *step)
                continue
            cost = cost_of(COSTS, step, self._devices[device].sizes(step))
            if cost.way is Way.ADDS and (cost.amount or cost.fetched):
                self._busy[device] = True
                self._fetch(device, cost)
                return
            if isinstance(step, OdcSend):
                self._send(device, step, cost)
            elif isinstance(step, OdcDone):
                steps.extendleft(reversed(self._devices[device].on_done(step)))

    def _fetch(self, device: int, cost: Cost) -> None:
        """Read the values that lie on other devices, and then add."""
        left = [len(cost.fetched)]

        def fetched() -> None:
            left[0] -= 1
            if not left[0]:
                self._add(device, cost.amount)

        for source, nbytes in cost.fetched:
            self._engine.move(("fetch", device), self._site.between_devices[source, device], nbytes, fetched)
        if not cost.fetched:
            self._add(device, cost.amount)

    def _add(self, device: int, nbytes: int) -> None:
        seconds = nbytes / self._site.adder_bytes_per_s
        self._engine.work(("adder", device), seconds, partial(self._done, device))

    def _done(self, device: int) -> None:
        self._busy[device] = False
        self._carry_out(device)
        if self._coming:
            self._follow()

    def _send(self, device: int, step: OdcSend, cost: Cost) -> None:
        """Send bytes.

        Those of a pair arrive in their order, and pairs share the links, as they do live.
        """
        record: OdcShards | OdcRows | OdcSums = step.record
        pair = self._num_clients + device, self._num_clients + step.device
        self._under_way[pair].append([])
        if self._device_nodes[device] != self._device_nodes[step.device]:
            self._sent_bytes[self._device_nodes[device]] += cost.amount

        def arrived() -> None:
            self._take(step.device, self._devices[step.device].on_bulk(record, list(step.found)))
            self._arrived(*pair)

        path = self._site.between_devices[device, step.device]
        self._engine.move(("ring", device, step.device), path, cost.amount, arrived)


def _acts(given: Sequence[Act] | Sequence[Microbatch], trained: Sequence[bool]) -> list[Act]:
    """Return a worker's acts in a minibatch."""
    found: list[Act] = []
    for one in given:
        found += one.acts(len(trained), trained=trained) if isinstance(one, Microbatch) else [one]
    return found
