# Pure: no MPI, threads, clock or environment.
"""The client's state machine: what this worker has registered, pushed and may read; no I/O."""

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from coarse.client.refusals import error_of, not_resumed, not_taken
from coarse.protocol.codec import feature_of
from coarse.protocol.plan import Facts, Placement, ShardPlan, mask_of
from coarse.protocol.records import (
    Allocated,
    Deregister,
    Descriptor,
    Died,
    Echo,
    Failed,
    Join,
    Joined,
    JoinFailed,
    Leave,
    Push,
    Query,
    Reached,
    Ready,
    Reclaimed,
    Record,
    Register,
    Registered,
    StatisticsReply,
    Status,
    Table,
    Tables,
    key_of,
)


class ToDevice(NamedTuple):
    """Send a record to the proxy on a device."""

    device: int
    record: Record


class KeyPhase(enum.Enum):
    """Phase of a key between two of its results; changed by ClientProtocol alone."""

    REGISTERING = "registering"
    """A device makes its region."""
    IDLE = "idle"
    """Nothing is under way, and no result is left to take."""
    IN_FLIGHT = "in flight"
    """Pushed; some shards of the result are still to come."""
    LANDED = "landed"
    """Phase of a result that is whole and was not taken yet."""
    FAILED = "failed"
    """A device has said that the key cannot be synchronised."""


@dataclass
class ClientKey:
    """One key as this client knows it: all that is known anywhere of what it has in flight."""

    key: int
    descriptor: Descriptor
    epoch: int
    plan: ShardPlan
    targets: tuple[tuple[int, int, int], ...]
    """(device, first shard, past the last): to whom which shards are announced."""
    route: int = -1
    """The device that registered it, and told the others."""
    phase: KeyPhase = KeyPhase.REGISTERING
    device: int = -1
    offset: int = -1
    awaited: int = 0
    """Bit set of shards whose result is still to come."""
    version: int = 0
    """Results of this key that have been completed."""
    flight: int = 0
    """The number of the last push; no other push of this client has it."""
    is_claimed: bool = False
    """True if a caller may still take the result of the last push.

    A handle that is dropped clears this and nothing else: that may happen in any thread at any time, and takes no lock.
    """
    stalled: bytes = b""
    """Digest of the values of a wait that stalled and may be called again; empty if there is none."""
    present: bool = True
    """True if a worker contributed to the last result."""
    failed: Failed | None = None

    def __post_init__(self) -> None:
        self.nbytes = self.descriptor.nbytes
        self.all_shards = mask_of(0, self.plan.num_shards)
        self.was_present = False
        """True if a worker contributed to the shards of the result that have come so far."""

    @property
    def has_failed(self) -> bool:
        """True if its last push has failed; a failure that comes once the result is whole is of what others do next."""
        return self.failed is not None and self.phase is not KeyPhase.LANDED

    @property
    def is_free(self) -> bool:
        """True if it may be pushed again as far as its last result goes: that was taken, or no caller wants it."""
        return self.phase is not KeyPhase.IN_FLIGHT and not (self.phase is KeyPhase.LANDED and self.is_claimed)

    @property
    def is_to_change(self) -> bool:
        """True if a push had better wait: its region is being made, or an unwanted result is under way."""
        return self.phase is KeyPhase.REGISTERING or (self.phase is KeyPhase.IN_FLIGHT and not self.is_claimed)


class ClientProtocol:
    """One worker's client: routes, announces and notes results."""

    def __init__(self, client: int, placement: Placement) -> None:
        self.client = client
        self.placement = placement
        self.local_proxy = placement.local_proxies[client]
        self._facts: tuple[Facts, ...] = ()
        """Facts by client, of the current epoch."""
        self._round = 0
        self._num_results = 0
        """Results that this client has had since the round began."""
        self.epoch = 0
        self.keys: dict[int, ClientKey] = {}
        self.named: dict[str, ClientKey] = {}
        """Keys by the name that each has now."""
        self._times_deregistered: dict[str, int] = {}
        self.last_joined: int | None = None
        self.join_failed: JoinFailed | None = None
        """Record of workers that have shut down, so that no round of joins will be complete any more."""
        self.left: list[int] = []
        """Clients that have shut down, the first to have done so first: others may have left because of it."""
        self.missing: dict[int, dict[int, tuple[int, ...]]] = {}
        """Key -> device -> clients that it waits for, as far as asked."""
        self.died: Died | None = None
        self.answers: dict[int, Record] = {}
        """Token of a request -> what a device answered."""
        self._done_then: dict[int, int] = {}
        """Token of a Reclaim -> shards whose result had come when the device answered."""
        self._unwanted: set[int] = set()
        """Tokens of Reclaims whose answers are no longer waited for."""
        self._tokens = itertools.count(1)
        self._flights = itertools.count(1)
        self._announced = 0
        """The epoch whose table was announced last."""
        self._profiled = 0
        """The epoch up to which `end_profile` was called."""
        self._listeners: dict[type, Callable[[Any], None]] = {}
        """Takers of features' records, by the record's class."""
        self._unheard: dict[type, list[Record]] = {}
        """Records of features that this client has not used yet."""
        self.models: dict[int, Callable[[Any], None]] = {}
        """Takers of records of a model in the network, by the model's number."""

    def next_token(self) -> int:
        """Return a number that no other request of this client has."""
        return next(self._tokens)  # from several threads

    def listen(self, kind: type, listener: Callable[[Any], None]) -> None:
        """Give records of a feature's class to `listener`, those first that have come before."""
        self._listeners[kind] = listener
        for record in self._unheard.pop(kind, []):
            listener(record)

    # --- facts

    def on_profiled(self, facts: Facts) -> list[ToDevice]:
        """Note that this client has measured its facts for the next epoch."""
        self._announced = self.epoch + 1
        return [ToDevice(self.local_proxy, Table(self.client, self._announced, tuple(facts)))]

    @property
    def is_profiling(self) -> bool:
        """True if a table was announced and `end_profile` not called since: a wait for the others may have stalled."""
        return self._announced > self._profiled

    @property
    def has_all_tables(self) -> bool:
        """True if all clients' tables of the epoch that was announced last are in use."""
        return self.epoch >= self._announced

    def end_profile(self) -> None:
        """End a profile whose tables of all clients have been waited for."""
        self._profiled = self._announced

    @property
    def facts(self) -> tuple[Facts, ...]:
        """All clients' facts in the current epoch."""
        return self._facts

    # --- keys

    def key(self, name: str) -> int:
        """Return the key that a name has now; all clients deregister a name equally often."""
        return key_of(name, self._times_deregistered.get(name, 0))

    def deregister(self, name: str) -> list[ToDevice]:
        """End this client's use of a name's present meaning.

        The region of a key that failed stays: a device may still be adding what was pushed before.

        Raises:
            InFlightError: its region is being made, or the result of the last push was not taken.
        """
        known = self.named.get(name)
        if known is not None and known.failed is None and (known.phase is KeyPhase.REGISTERING or not known.is_free):
            raise not_taken(self.client, name, "cannot be forgotten")
        key = self.key(name)
        state = self.keys.pop(key, None)
        self.named.pop(name, None)
        self._times_deregistered[name] = self._times_deregistered.get(name, 0) + 1
        device, offset = -1, -1
        if state is not None and state.failed is None and state.offset >= 0:
            device, offset = state.device, state.offset
        teller = self.local_proxy if state is None else state.route  # it cannot overtake the registration
        return [ToDevice(teller, Deregister(self.client, key, device, offset, teller))]

    def plan_of(self, descriptor: Descriptor) -> ShardPlan:
        """Return the plan of a tensor by the name that it has now."""
        return self.placement.plan_of(descriptor.tensor(self.key(descriptor.name)), self._facts)

    def route(self, descriptor: Descriptor) -> int:
        """Return the device that a tensor is registered at (COARSE III-E)."""
        return self.plan_of(descriptor).homes[self.client]

    def register(self, descriptor: Descriptor, offset: int = -1) -> list[ToDevice]:
        """Register the first use of a name in this epoch: ask its proxy for a region (COARSE III-E routing).

        A key that already has a region of this size from an earlier epoch keeps it. One that is given a place, an
        `offset` in an arena of this client's at its `route`, can be pushed at once.
        """
        name = descriptor.name
        key = self.key(name)
        known = self.named.get(name)
        plan = self.plan_of(descriptor)
        route = plan.homes[self.client]
        state = ClientKey(key, descriptor, self.epoch, plan, plan.targets(self.client), route)
        if known is not None and known.nbytes == state.nbytes:
            state.device, state.offset, state.version = known.device, known.offset, known.version
        elif offset >= 0:
            state.device, state.offset, state.phase = route, offset, KeyPhase.IDLE
        self.keys[key] = self.named[name] = state
        if self.placement.is_planned_by_others:
            descriptor = descriptor._replace(plan=self.placement.digest_of(descriptor.tensor(key), self.facts))
        register = Register(
            self.client, key, self.epoch, descriptor, state.device, state.offset
        )
        return [ToDevice(route, register)]

    def withdraw(self, name: str, known: ClientKey | None) -> None:
        """Undo a registration that could not be sent: the name's key is again what it was."""
        refused = self.named.pop(name, None)
        if refused is not None:
            del self.keys[refused.key]
        if known is not None:
            self.keys[known.key] = self.named[name] = known

    def begin(self, key: int, *, is_claimed: bool = False) -> None:
        """Begin a push of this key; its result will be all shards anew. `is_claimed`: a caller will `take` it.

        Raises:
            InFlightError: a result is under way, or somebody may still take one.
            CoarseError: what a device said of the key.
        """
        state = self.keys[key]
        if state.phase is not KeyPhase.IDLE:
            if state.failed is not None:
                raise error_of(state.failed)
            if not state.is_free:
                raise not_taken(self.client, state.descriptor.name, "was pushed again")
            assert state.phase is not KeyPhase.REGISTERING, f"{state.descriptor.name!r} has no region yet"
        state.phase = KeyPhase.IN_FLIGHT
        state.awaited = state.all_shards
        state.is_claimed = is_claimed
        state.flight = next(self._flights)
        state.stalled = b""
        state.was_present = False

    def take(self, key: int) -> bool:
        """Return whether a key's last result is whole; the caller has taken it then.

        A key that has an older result has it until it is pushed again.

        Raises:
            CoarseError: what a device said of the key.
        """
        state = self.keys.get(key)
        if state is None:
            return False
        if state.has_failed:
            assert state.failed is not None
            raise error_of(state.failed)
        if state.awaited or not state.version:
            return False
        if state.phase is KeyPhase.LANDED:
            state.phase = KeyPhase.IDLE if state.failed is None else KeyPhase.FAILED
            state.stalled = b""
        return True

    def is_complete(self, key: int) -> bool:
        """Return whether `take` would return True, or raise."""
        state = self.keys.get(key)
        if state is None or state.phase in (KeyPhase.REGISTERING, KeyPhase.IN_FLIGHT):
            return False
        return state.failed is not None or bool(state.version)

    def abandon(self, key: int, flight: int) -> None:
        """Note that the handle of a push was dropped: its result need not be taken before the next push.

        A call that stalled and goes on with it is the exception.
        """
        state = self.keys.get(key)
        if state is not None and state.flight == flight and not state.stalled:
            state.is_claimed = False

    def stall(self, key: int, flight: int, digest: bytes) -> None:
        """Note that a wait has stalled whose call may be made again, with values of this digest, to go on waiting."""
        state = self.keys.get(key)
        if state is not None and state.flight == flight and not state.is_free:
            state.stalled = digest

    def require_resumable(self, key: int, digest: bytes) -> None:
        """Raise InFlightError if a call whose wait has stalled would be made again with values of another digest."""
        state = self.keys[key]
        if state.stalled != digest:
            raise not_resumed(self.client, state.descriptor.name)

    def resume(self, key: int, digest: bytes) -> None:
        """Resume a call whose wait has stalled, with values of this digest.

        Raises:
            InFlightError: with others than before.
        """
        self.require_resumable(key, digest)
        self.keys[key].stalled = b""

    def announce(self, key: int, first: int, last: int, *, present: bool) -> list[ToDevice]:
        """Announce shards [first, last), which lie in the region, to the devices that synchronise them."""
        state = self.keys[key]
        records = []
        for device, begin, end in state.targets:
            low, high = max(begin, first), min(end, last)
            if low < high:
                push = Push(self.client, key, self.epoch, self._round, low, high, present)
                records.append(ToDevice(device, push))
        return records

    @property
    def in_flight(self) -> set[int]:
        """Keys whose result is still to come."""
        return {key for key, state in self.keys.items() if state.phase is KeyPhase.IN_FLIGHT}

    def untaken(self) -> list[str]:
        """Return the names whose result is still to come, or to be taken; of a name that failed there is none."""
        return [state.descriptor.name for state in self.keys.values() if not state.is_free]

    @property
    def is_quiet(self) -> bool:
        """True if no answer is to come: only then may this client join, or announce its next table."""
        busy = (KeyPhase.IN_FLIGHT, KeyPhase.REGISTERING)
        return not any(state.phase in busy for state in self.keys.values())

    def ask_who_is_missing(self, key: int) -> list[ToDevice]:
        """Ask every device, after too long a wait, to say in `missing` for whom it waits."""
        self.missing[key] = {}
        return [ToDevice(self.local_proxy, Query(self.client, key))]

    def have_all_answered(self, key: int) -> bool:
        """Return whether every device has said for whom it waits."""
        return len(self.missing[key]) == self.placement.num_devices

    def silent_devices(self, key: int) -> tuple[int, ...]:
        """Return devices that have not answered which ranks are missing.

        This is the client's own alone if it passed the question to no other device.
        """
        answers = self.missing[key]
        if self.local_proxy not in answers:
            return (self.local_proxy,)
        return tuple(d for d in range(self.placement.num_devices) if d not in answers)

    def missing_clients(self, key: int) -> tuple[int, ...]:
        """Return the clients that have not pushed a key, as far as the answers tell.

        A device that has done its shards waits for everybody's next push: so it is where it names this
        client, whose push is under way, and so it may be where it names all while another is silent.
        """
        state = self.keys.get(key)
        is_waiting = state is not None and state.phase is KeyPhase.IN_FLIGHT
        is_any_silent = bool(self.silent_devices(key))
        found: set[int] = set()
        for device, clients in self.missing[key].items():
            everybody = state.plan.contributors_by_device[device] if state is not None else ()
            names_all = set(clients) >= set(everybody)
            if not is_waiting or not (self.client in clients or (names_all and is_any_silent)):
                found |= set(clients)
        return tuple(sorted(found))

    def done_at(self, token: int) -> int | None:
        """Return the shards whose result had come when a device answered a Reclaim; None before that."""
        return self._done_then.get(token)

    def end_reclaim(self, token: int) -> None:
        """Forget a Reclaim, whose answer is of no use any more, come or not."""
        if self.answers.pop(token, None) is None:
            self._unwanted.add(token)
        self._done_then.pop(token, None)

    # --- joining and leaving

    @property
    def join_round(self) -> int:
        """Number of rounds in which all workers have joined and gone on."""
        return self._round

    def join(self) -> list[ToDevice]:
        """Note that this worker has no more batches: it counts as zero until all have joined."""
        self.last_joined = None
        return [ToDevice(self.local_proxy, Join(self.client, self._round, self._num_results))]

    def leave(self) -> list[ToDevice]:
        """Note that this worker shuts down: its devices hear of it after all that it pushed to them."""
        near = self.placement.devices_on(self.placement.client_nodes[self.client])
        return [ToDevice(device, Leave(self.client)) for device in near]

    # --- events

    def on_record(self, record: Record) -> None:
        """Take a record of a proxy."""
        match record:
            case Ready():
                state = self.keys.get(record.key)
                if state is None:  # it had failed, and was deregistered
                    return
                state.awaited &= ~((1 << record.last) - (1 << record.first))
                state.was_present |= record.present
                if not state.awaited and state.phase is KeyPhase.IN_FLIGHT:
                    state.phase = KeyPhase.LANDED if state.is_claimed else KeyPhase.IDLE
                    state.present = state.was_present
                    state.version += 1
                    self._num_results += 1
            case Registered():
                self._on_registered(record)
            case Failed():
                self._on_failed(record)
            case Status():
                self.missing.setdefault(record.key, {})[record.device] = record.missing
            case Tables():
                self.epoch = record.epoch
                self._facts = record.facts
            case Joined():
                self._round = record.round + 1
                self._num_results = 0
                self.last_joined = record.last
            case JoinFailed():
                self.join_failed = record
            case Leave():
                self.left.append(record.client)
            case Died():
                self.died = self.died or record
            case Echo() | Allocated() | StatisticsReply() | Reached():
                self.answers[record.token] = record
            case Reclaimed() if record.token in self._unwanted:
                self._unwanted.discard(record.token)
            case Reclaimed():
                self.answers[record.token] = record
                lent = self.keys.get(record.key)
                self._done_then[record.token] = lent.all_shards & ~lent.awaited if lent is not None else 0
            case _ if (of_kind := self._listeners.get(type(record))) is not None:
                of_kind(record)
            case _ if (listener := self.models.get(getattr(record, "model", -1))) is not None:
                listener(record)
            case _:
                feature_of(record)  # else it is nobody's
                self._unheard.setdefault(type(record), []).append(record)

    def _on_registered(self, registered: Registered) -> None:
        state = self.keys[registered.key]
        state.device, state.offset = registered.device, registered.offset
        if state.phase is KeyPhase.REGISTERING:
            state.phase = KeyPhase.IDLE

    def _on_failed(self, failed: Failed) -> None:
        state = self.keys.get(failed.key)
        if state is None or state.epoch != failed.epoch:
            return
        state.failed = failed
        if state.phase is not KeyPhase.LANDED:
            state.phase = KeyPhase.FAILED
