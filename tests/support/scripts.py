"""Scripts of events that every driver carries out, and what must come of them.

A script has steps for each client. A client takes its steps in order, each as soon as it may: a push waits for the
last result of its name, a join and a new routing table for all results. What comes of a push is its result, or the
kind of its error. Partly the same scripts, in any order of messages, are in tests/unit/support/test_loopback.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from coarse.client.protocol import ClientProtocol, KeyPhase, ToDevice
from coarse.hardware.links import Link
from coarse.protocol.dtypes import DType, Op, dtype_of
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor
from coarse.proxy.instructions import Region
from coarse.simulation.sites import Site
from coarse.strategy.routing import RoutingTable
from tests.support.strategies import strategy_of

NUM_CLIENTS, NUM_DEVICES = 3, 2
CAPACITY_BYTES = 1 << 22
PARTITION_BYTES = 1 << 10


def placement(collective: str) -> Placement:
    """Of all scripts: three clients and two devices of one node."""
    return Placement(
        client_nodes=(0,) * NUM_CLIENTS,
        device_nodes=(0,) * NUM_DEVICES,
        local_proxies=tuple(client % NUM_DEVICES for client in range(NUM_CLIENTS)),
        ranks=tuple(range(NUM_CLIENTS + NUM_DEVICES)),
        planner=strategy_of(collective),
        num_sync_groups=2,
    )


def table(place: Placement, client: int) -> RoutingTable:
    """Everything to the client's local device."""
    local = place.local_proxies[client]
    return RoutingTable(
        threshold_bytes=0, latency_proxy=local, bandwidth_proxy=local, partition_bytes=PARTITION_BYTES
    )


def site_of(place: Placement) -> Site:
    """Every way has a link of its own, each a little slower than the one before, so that no two end alike."""
    clients, devices = range(place.num_clients), range(place.num_devices)
    ways = [("push", c, d) for c in clients for d in devices] + [("pull", c, d) for c in clients for d in devices]
    ways += [("ring", a, b) for a in devices for b in devices if a != b]
    number = {way: at for at, way in enumerate(ways)}
    links = tuple(
        Link(name=" ".join(map(str, way)), latency_s=1e-6 * (1 + at), bytes_per_s=1e9 / (1 + at))
        for at, way in enumerate(ways)
    )
    return Site(
        links=links,
        push={(c, d): (number["push", c, d],) for c in clients for d in devices},
        pull={(c, d): (number["pull", c, d],) for c in clients for d in devices},
        between_devices={(a, b): (number["ring", a, b],) for a in devices for b in devices if a != b},
        between_workers={},
        adder_bytes_per_s=1e9,
    )


@dataclass(frozen=True, eq=False)
class Push:
    """Push an array under a name; without `present` it counts as nothing."""

    name: str
    array: np.ndarray
    op: Op = Op.SUM
    present: bool = True

    def descriptor(self, script: str) -> Descriptor:
        """Names of different scripts differ."""
        return Descriptor(f"{script}/{self.name}", int(dtype_of(self.array)), int(self.op), self.array.shape, 0)


@dataclass(frozen=True)
class Join:
    """Count as nothing until all have joined."""


@dataclass(frozen=True)
class Profile:
    """Begin a new epoch of routing tables together with all."""


@dataclass(frozen=True)
class Deregister:
    """Give a name's memory back; all clients do."""

    name: str


Step = Push | Join | Profile | Deregister
Outcome = tuple[object, ...]
"""("sum", values, whether anybody contributed) or ("error", its kind) of a push; (who joined last,) of a join."""


@dataclass(frozen=True, eq=False)
class Script:
    """What each client does, and what must come of its pushes and joins, in order."""

    name: str
    steps: tuple[tuple[Step, ...], ...]
    wanted: tuple[tuple[Outcome, ...], ...]
    ends_clients: tuple[int, ...] = field(default=())
    """Clients that shut down after their steps, while the others go on."""


def of_sum(array: np.ndarray, present: bool = True) -> Outcome:
    """What came of a push."""
    return "sum", array.tolist(), present


def _each(*of_client: float, num_elements: int = 700, dtype: str = "f4") -> list[np.ndarray]:
    """An array of a client's number times 1, 2, 3, ... modulo 7."""
    return [(np.arange(num_elements) % 7 * number).astype(dtype) for number in of_client]


def _alike(step_of: list[list[Step]], wanted: list[Outcome]) -> dict[str, tuple[tuple[object, ...], ...]]:
    return {"steps": tuple(map(tuple, step_of)), "wanted": tuple(tuple(wanted) for _ in step_of)}  # type: ignore[dict-item]


def _sums() -> Script:
    """Types, operations and sizes, from one element to several shards."""
    steps: list[list[Step]] = [[] for _ in range(NUM_CLIENTS)]
    wanted: list[Outcome] = []
    for number, (dtype, op) in enumerate(
        [("f4", Op.SUM), ("f8", Op.AVERAGE), ("i8", Op.MAX), ("i4", Op.MIN), ("f2", Op.SUM)]
    ):
        for num_elements in (1, 33, 700):
            arrays = _each(1, 3, 5, num_elements=num_elements, dtype=dtype)
            for client, array in enumerate(arrays):
                steps[client].append(Push(f"{number}, {num_elements}", array, op))
            stacked = np.stack(arrays).astype("f8" if dtype in ("f4", "f8", "f2") else "i8")
            combined = {Op.SUM: stacked.sum(0), Op.AVERAGE: stacked.sum(0) / 3}.get(op)
            if combined is None:
                combined = stacked.max(0) if op is Op.MAX else stacked.min(0)
            wanted.append(of_sum(combined.astype(dtype)))
    return Script("sums", **_alike(steps, wanted))  # type: ignore[arg-type]


def _orders() -> Script:
    """Clients push in different orders, which must not deadlock (COARSE figure 10)."""
    orders = ("abc", "cba", "bac")
    arrays = {name: _each(1 + i, 2 + i, 3 + i) for i, name in enumerate("abc")}
    return Script(
        "orders",
        tuple(tuple(Push(name, arrays[name][client]) for name in orders[client]) for client in range(3)),
        tuple(tuple(of_sum(sum(arrays[name])) for name in orders[client]) for client in range(3)),
    )


def _absent() -> Script:
    """One does not contribute, then nobody does."""
    a = _each(1, 2, 4)
    first = [Push("a", a[client], present=client != 1) for client in range(3)]
    second = [Push("a", a[client], present=False) for client in range(3)]
    wanted = [of_sum(a[0] + a[2]), of_sum(np.zeros_like(a[0]), present=False)]
    return Script("absent", **_alike([[one, two] for one, two in zip(first, second, strict=True)], wanted))  # type: ignore[arg-type]


def _again() -> Script:
    """Three results of one name."""
    rounds = [_each(1, 2, 3), _each(5, 0, 1), _each(-1, 4, 9)]
    steps: list[list[Step]] = [[Push("a", arrays[client]) for arrays in rounds] for client in range(3)]
    return Script("again", **_alike(steps, [of_sum(sum(arrays)) for arrays in rounds]))  # type: ignore[arg-type]


def _joins() -> Script:
    """The last client has one batch fewer; then all go on together."""
    first, second, third = _each(1, 2, 3), _each(4, 5, 0), _each(6, 7, 8)
    both, all_of = of_sum(second[0] + second[1]), of_sum(sum(third))
    long: list[list[Step]] = [
        [Push("a", first[client]), Push("a", second[client]), Join(), Push("a", third[client])] for client in (0, 1)
    ]
    short: list[Step] = [Push("a", first[2]), Join(), Push("a", third[2])]
    begin = of_sum(sum(first))
    wanted = ((begin, both, all_of), (begin, both, all_of), (begin, all_of))
    return Script("joins", (tuple(long[0]), tuple(long[1]), tuple(short)), wanted)


def _profiles() -> Script:
    """New tables between two results: names register anew, and keep their place."""
    first, second, third = _each(1, 2, 3), _each(4, 5, 6), _each(7, 8, 9, num_elements=90)
    steps: list[list[Step]] = [
        [Push("a", first[client]), Profile(), Push("a", second[client]), Push("b", third[client])]
        for client in range(3)
    ]
    return Script("profiles", **_alike(steps, [of_sum(sum(each)) for each in (first, second, third)]))  # type: ignore[arg-type]


def _deregisters() -> Script:
    """A name comes back with another shape."""
    first, second = _each(1, 2, 3), _each(4, 5, 6, num_elements=90, dtype="f8")
    steps: list[list[Step]] = [[Push("a", first[c]), Deregister("a"), Push("a", second[c])] for c in range(3)]
    return Script("deregisters", **_alike(steps, [of_sum(sum(first)), of_sum(sum(second))]))  # type: ignore[arg-type]


def _mismatch() -> Script:
    """One has another shape: an error on all, and other names go on."""
    good = _each(1, 2, 3)
    steps: list[list[Step]] = [
        [Push("a", np.ones(40 + (client == 1), "f4")), Push("b", good[client])] for client in range(3)
    ]
    return Script("mismatch", **_alike(steps, [("error", "MismatchError"), of_sum(sum(good))]))  # type: ignore[arg-type]


def _too_large() -> Script:
    """A tensor that no device has room for: an error on all, and other names go on."""
    good, large = _each(1, 2, 3), np.ones(2 * CAPACITY_BYTES // 4, "f4")
    steps: list[list[Step]] = [[Push("a", large), Push("b", good[client])] for client in range(3)]
    return Script("too large", **_alike(steps, [("error", "CapacityError"), of_sum(sum(good))]))  # type: ignore[arg-type]


def _left() -> Script:
    """A client shuts down without pushing what the others push."""
    first, second = _each(1, 2, 3), _each(4, 5, 6)
    steps: list[list[Step]] = [[Push("a", first[client]), Push("b", second[client])] for client in (0, 1)]
    wanted = (of_sum(sum(first)), ("error", "DeadRankError"))
    return Script("left", (*map(tuple, steps), (Push("a", first[2]),)), (wanted, wanted, wanted[:1]), (2,))


SCRIPTS = (
    _sums(), _orders(), _absent(), _again(), _joins(), _profiles(), _deregisters(), _mismatch(), _too_large(), _left(),
)  # fmt: skip
"""Run in this order where one job runs all; the last one ends a client."""


class InProcess(Protocol):
    """All clients and devices of a job in one process, whatever carries their messages."""

    clients: Sequence[ClientProtocol]

    def deliver(self, client: int, records: Sequence[ToDevice]) -> None:
        """Send a client's records."""
        ...

    def announce(self, client: int, key: int, *, present: bool = True) -> None:
        """Begin and announce all shards of a key whose contribution lies in its region."""
        ...

    def array(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        """A region's elements."""
        ...

    def run(self) -> None:
        """Until nothing is under way."""
        ...


def begin(job: InProcess) -> None:
    """All clients announce the tables of their first epoch."""
    for client, protocol in enumerate(job.clients):
        job.deliver(client, protocol.on_profiled(table(protocol.placement, client)))
    job.run()


def outcomes(job: InProcess, script: Script) -> tuple[tuple[Outcome, ...], ...]:
    """Run a script on a job that has begun."""
    runs = [_ScriptedClient(job, client, script) for client in range(len(job.clients))]
    while any([run.proceed() for run in runs]):  # all of them, not only the first
        job.run()
    unfinished = [run.client for run in runs if run.is_waiting]
    assert not unfinished, f"{script.name}: clients {unfinished} wait for ever"
    return tuple(tuple(run.outcomes) for run in runs)


class _ScriptedClient:
    """One client's way through its steps."""

    def __init__(self, job: InProcess, client: int, script: Script) -> None:
        self.client = client
        self._job = job
        self._protocol = job.clients[client]
        self._script = script
        self._steps = list(script.steps[client])
        self._open: dict[str, tuple[int, Descriptor]] = {}
        """Names that were pushed: which outcome is theirs."""
        self._epoch_wanted = self._round_wanted = 0
        self._ends = client in script.ends_clients
        self.outcomes: list[Outcome] = []

    @property
    def is_waiting(self) -> bool:
        """Whether anything is left to do or to come."""
        return bool(self._steps or self._open)

    def proceed(self) -> bool:
        """Take what has come and do what can be done; whether there was anything."""
        before = self._progress()
        for name in list(self._open):
            self._take(name)
        while self._steps and self._may_go_on():
            if not self._do(self._steps[0]):
                break
            self._steps.pop(0)
        if not self.is_waiting and self._ends:
            self._ends = False
            self._job.deliver(self.client, self._protocol.leave())
        return before != self._progress()

    def _progress(self) -> tuple[int, int, int, bool]:
        registered = sum(state.epoch for state in self._protocol.keys.values())
        return len(self._steps), len(self._open), registered, self._ends

    def _may_go_on(self) -> bool:
        protocol = self._protocol
        return protocol.epoch >= self._epoch_wanted and protocol.join_round >= self._round_wanted

    def _do(self, step: Step) -> bool:
        protocol = self._protocol
        match step:
            case Push():
                return self._push(step)
            case Deregister():
                if self._open:
                    return False
                self._job.deliver(self.client, protocol.deregister(f"{self._script.name}/{step.name}"))
            case Join():
                if self._open:
                    return False
                self._round_wanted = protocol.join_round + 1
                self._job.deliver(self.client, protocol.join())
            case Profile():
                if self._open:
                    return False
                self._epoch_wanted = protocol.epoch + 1
                self._job.deliver(self.client, protocol.on_profiled(table(protocol.placement, self.client)))
        return True

    def _push(self, push: Push) -> bool:
        descriptor = push.descriptor(self._script.name)
        if descriptor.name in self._open:
            return False
        protocol, job = self._protocol, self._job
        key = protocol.key(descriptor.name)
        state = protocol.keys.get(key)
        if state is None or state.epoch != protocol.epoch:
            job.deliver(self.client, protocol.register(descriptor))
            return False
        if state.phase is KeyPhase.REGISTERING:
            return False
        if state.failed is None:
            if push.present:
                self._region(key)[:] = push.array.reshape(-1)
            job.announce(self.client, key, present=push.present)
        self._open[descriptor.name] = len(self.outcomes), descriptor
        self.outcomes.append(())
        return True

    def _take(self, name: str) -> None:
        number, descriptor = self._open[name]
        key = self._protocol.key(name)
        state = self._protocol.keys[key]
        if state.phase is KeyPhase.IN_FLIGHT or (state.awaited and state.failed is None):
            return
        if state.failed is not None:
            self.outcomes[number] = "error", state.failed.error
        else:
            self.outcomes[number] = of_sum(self._region(key).reshape(descriptor.shape), state.present)
        del self._open[name]

    def _region(self, key: int) -> np.ndarray:
        state = self._protocol.keys[key]
        descriptor = state.descriptor
        return self._job.array(Region(state.device, state.offset), DType(descriptor.dtype), descriptor.num_elements)
