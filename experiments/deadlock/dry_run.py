"""Replay of pushes through proxies, to see what can get stuck before anything runs (COARSE III-F).

The proxies are the real Synchronisation; only bytes and time are left away. Every tensor is one
shard, and all proxies of the job are in its ring. The rule that COARSE replaces, first come first
served, is an admission in front of the same protocol (COARSE figure 10).
"""

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Located, Push, Ready, RingChunk
from coarse.proxy.exchange_runs import RingRun
from coarse.proxy.instructions import Instruction, RingFinish, RingId, RingReduce, RingSend, Send
from coarse.proxy.keys import KeyState
from coarse.proxy.queues import ShardQueues
from coarse.proxy.synchronisation import Synchronisation
from coarse.strategy.builtin import Coarse
from coarse.strategy.routing import RoutingTable, proxy_for

_EPOCH = 1

T = TypeVar("T")

Event = Push | RingChunk | RingId
"""What reaches a proxy: a push, a ring's chunk, or the end of its own reduce for a ring."""


class Queued:
    """COARSE's rule: whatever comes is taken at once, so no tensor waits for another."""

    def __init__(self, proxy: Synchronisation) -> None:
        self.proxy = proxy

    def on_event(self, event: Event) -> list[Instruction]:
        """A push, a ring's chunk, or the end of a ring's reduce."""
        if isinstance(event, Push):
            return self.proxy.on_push(event)
        if isinstance(event, RingChunk):
            return self.proxy.on_chunk(event)
        return self.proxy.on_ring_reduced(event)

    def keys_changed_by(self, event: Event) -> set[int]:
        """The tensors whose state an event may change."""
        return {event.key}

    def admission(self) -> Hashable:
        """The state of the rule itself."""
        return None


class FirstComeFirstServed(Queued):
    """The rule that deadlocks: one tensor at a time, in the order of their first arrivals."""

    def __init__(self, proxy: Synchronisation) -> None:
        super().__init__(proxy)
        self._line: list[int] = []
        """Tensors in order of first arrival; only the first is served."""
        self._held: dict[int, set[Push | RingChunk]] = {}

    def on_event(self, event: Event) -> list[Instruction]:
        """As for Queued, but what belongs to another than the first tensor is held back."""
        if event.key not in self._line:
            self._line.append(event.key)
        if event.key != self._line[0] and not isinstance(event, RingId):
            self._held.setdefault(event.key, set()).add(event)
            return []
        steps = super().on_event(event)
        if any(isinstance(step, RingFinish) for step in steps):
            del self._line[0]
            for late in sorted(self._held.pop(self._line[0], ())) if self._line else ():
                steps += self.on_event(late)
        return steps

    def keys_changed_by(self, event: Event) -> set[int]:
        """Those in the line too: one that is done lets the next in."""
        return {event.key, *self._line}

    def admission(self) -> Hashable:
        """The line, and what is held back."""
        return _frozen(self._line), _frozen(self._held)


class Delivery(NamedTuple):
    """What may happen next: an event reaches a proxy."""

    proxy: int
    event: Event


class Replay:
    """Some proxies and all that is on its way to them."""

    def __init__(
        self, tables: Sequence[RoutingTable], num_proxies: int, num_tensors: int, *, fcfs: bool
    ) -> None:
        self._routes = {
            (client, tensor): proxy_for(descriptor_of(tensor).nbytes, table)
            for tensor in range(num_tensors)
            for client, table in enumerate(tables)
        }
        rule = FirstComeFirstServed if fcfs else Queued
        self.proxies: list[Queued] = []
        for proxy in range(num_proxies):
            protocol = Synchronisation(proxy, _placement(len(tables), num_proxies))
            protocol.use_facts(_EPOCH, tuple(tables))
            for client, tensor in self._routes:
                protocol.on_located(_located(client, tensor), serve=False)
            self.proxies.append(rule(protocol))
        self.pushes = frozenset(
            Delivery(proxy, Push(client, tensor, _EPOCH, 0, 0, 1, True))
            for (client, tensor), proxy in self._routes.items()
        )
        """Pushes that have not come yet."""
        self.internal: frozenset[Delivery] = frozenset()
        """Ends of reduces, and chunks between proxies, that have not come yet."""
        self.awaited = frozenset(self._routes)
        """(client, tensor) whose result has not come yet."""
        self._names: dict[Hashable, int] = {}
        self._states = [
            {key: self._name_of(rule, key) for key in range(num_tensors)} for rule in self.proxies
        ]
        """For each proxy and tensor a number that is equal for equal states."""

    def after(self, delivery: Delivery) -> "Replay":
        """The same job once this has happened; this one stays as it is."""
        later = copy.copy(self)
        later.proxies, later._states = list(self.proxies), list(self._states)
        rule = self.proxies[delivery.proxy]
        changed = rule.keys_changed_by(delivery.event)
        rule = later.proxies[delivery.proxy] = _forked(rule, changed)
        if isinstance(delivery.event, Push):
            later.pushes -= {delivery}
        else:
            later.internal -= {delivery}
        for step in rule.on_event(delivery.event):
            match step:
                case RingReduce():
                    later.internal |= {Delivery(delivery.proxy, step.ring)}
                case RingSend():
                    later.internal |= {Delivery(step.device, step.header)}
                case Send(client, Ready() as ready):
                    later.awaited -= {(client, ready.key)}
        names = {key: self._name_of(rule, key) for key in changed}
        later._states[delivery.proxy] = self._states[delivery.proxy] | names
        return later

    def settled(self) -> "Replay":
        """The same job once nothing is on its way between the proxies."""
        now = self
        while now.internal:
            now = now.after(min(now.internal, key=lambda one: (one.proxy, *one.event)))
        return now

    def stuck_proxies(self) -> set[int]:
        """Proxies that hold a push without a result; once all has come, it stays so for ever."""
        return {self._routes[awaited] for awaited in self.awaited}

    def fingerprint(self) -> Hashable:
        """Equal for two replays that continue alike."""
        states = tuple(tuple(names.values()) for names in self._states)
        admissions = tuple(rule.admission() for rule in self.proxies)
        return states, admissions, self.pushes, self.internal, self.awaited

    def state_names(self, tensor: int) -> tuple[int, ...]:
        """For each proxy a number that says in what state a tensor is now."""
        return tuple(self._name_of(rule, tensor) for rule in self.proxies)

    def _name_of(self, rule: Queued, key: int) -> int:
        return self._names.setdefault(_frozen(rule.proxy.keys[key, _EPOCH]), len(self._names))


def stuck_proxies(
    orders: Mapping[int, Sequence[str]],
    routes: Mapping[int, int] | None = None,
    *,
    fcfs: bool,
) -> set[int]:
    """Proxies left waiting for ever where clients push all names in these orders, at one pace.

    `routes` says to which proxy each client pushes; without it, client i to proxy i.
    """
    clients = sorted(orders)
    proxies = {client: client if routes is None else routes[client] for client in clients}
    names = sorted({name for order in orders.values() for name in order})
    tables = [table_for(0, proxies[client], proxies[client]) for client in clients]
    now = Replay(tables, max(proxies.values()) + 1, len(names), fcfs=fcfs)
    for turn in range(len(names)):
        for index, client in enumerate(clients):
            push = (index, names.index(orders[client][turn]))
            now = now.after(next(one for one in now.pushes if one.event[:2] == push))
        now = now.settled()
    return now.stuck_proxies()


def _placement(num_clients: int, num_proxies: int) -> Placement:
    return Placement(
        client_nodes=(0,) * num_clients,
        device_nodes=(0,) * num_proxies,
        local_proxies=(0,) * num_clients,
        ranks=tuple(range(num_clients + num_proxies)),
        planner=Coarse(collective="ring"),
        num_sync_groups=1,
    )


def table_for(threshold_bytes: int, latency_proxy: int, bandwidth_proxy: int) -> RoutingTable:
    """A routing table under which every tensor of a replay is one shard."""
    return RoutingTable(
        threshold_bytes=threshold_bytes,
        latency_proxy=latency_proxy,
        bandwidth_proxy=bandwidth_proxy,
        partition_bytes=1 << 20,
    )


def descriptor_of(tensor: int) -> Descriptor:
    """A tensor of a replay; each is larger than the one before."""
    return Descriptor(f"tensor {tensor}", int(DType.FLOAT32), int(Op.SUM), (tensor + 1,), 0)


def _located(client: int, tensor: int) -> Located:
    return Located(client, tensor, _EPOCH, descriptor_of(tensor), 0, 0)


_STATEFUL = (KeyState, ShardQueues, RingRun)
_MUTABLE = frozenset({dict, list, set, *_STATEFUL})
_SETTLED = frozenset({"plan", "located", "served", "descriptor", "blocks", "divisor"})
"""Parts of a KeyState that do not change in a replay, which begins when all have registered."""


def _forked(rule: Queued, keys: set[int]) -> Queued:
    """A copy of a proxy that shares what cannot change: the states of other keys."""
    twin = copy.copy(rule)
    vars(twin).update({name: _copied(part) for name, part in vars(rule).items()})
    twin.proxy = copy.copy(rule.proxy)
    states = rule.proxy.keys.items()
    twin.proxy.keys = {name: _copied(one) if name[0] in keys else one for name, one in states}
    return twin


def _copied(value: T) -> T:
    """A copy that shares only what never changes."""
    if type(value) not in _MUTABLE:
        return value
    copied: object = copy.copy(value)
    if isinstance(copied, dict):
        copied = {name: _copied(part) for name, part in copied.items()}
    elif isinstance(copied, _STATEFUL):
        parts = vars(copied)
        for name in parts.keys() - _SETTLED:
            if type(parts[name]) in _MUTABLE:
                parts[name] = _copied(parts[name])
    return cast(T, copied)


def _frozen(value: object) -> Hashable:
    """A hashable that is equal for equal states."""
    if type(value) not in _MUTABLE:
        return value
    if isinstance(value, dict):
        return frozenset([(name, _frozen(part)) for name, part in value.items()])
    if isinstance(value, set):
        return frozenset(value)
    parts = value if isinstance(value, list) else _parts(value)
    return tuple([_frozen(part) for part in parts])


def _parts(value: object) -> list[object]:
    return [part for name, part in vars(value).items() if name not in _SETTLED]
