# Pure: no MPI, threads, clock or environment.
"""State machine of the proxy: records in, instructions out; no clock, no lock, no bytes, no MPI.

[Note: endpoints] Clients are endpoints 0..W-1, devices W..W+D-1.

[Note: forwarding] A client tells its facts (a region, a routing table, that it joined or left) to one
device, which tells all others; shards are announced straight to the devices that synchronise them.
"""

from collections.abc import Callable
from functools import partial

from coarse.errors import CoarseError
from coarse.protocol.codec import feature_of
from coarse.protocol.features import part_of, spec_of
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Allocate,
    Allocated,
    Deregister,
    Died,
    Echo,
    Failed,
    Free,
    Join,
    Joined,
    JoinFailed,
    Leave,
    Located,
    Probe,
    Push,
    Query,
    Record,
    Register,
    Registered,
    RingChunk,
    Status,
    Table,
    Tables,
)
from coarse.proxy.feature import Attached, FeatureMachine, asked
from coarse.proxy.instructions import Finished, Instruction, Reduce, Reserve, RingId, Send
from coarse.proxy.membership import Membership
from coarse.proxy.synchronisation import Synchronisation
from coarse.storage.allocator import DeviceAllocator
from coarse.storage.versions import VersionTable

_ARENA_OF_FREE = 16
"""Share of the free bytes that an arena may take at most: one in so many."""


class ProxyProtocol:
    """Proxy of one memory device, and the table of what its memory holds."""

    def __init__(
        self, device: int, placement: Placement, capacity_bytes: int, keys: tuple[int, int] | None = None
    ) -> None:
        """Start without keys.

        `keys` is the offset and bytes of the part for regions of keys if they are apart from all else (see
        DeviceAllocator).
        """
        self.device = device
        self.placement = placement
        self._allocator = DeviceAllocator(capacity_bytes, keys)
        self._arenas: set[int] = set()
        """Offset of the unused rest of each arena."""
        self._reservations: dict[int, tuple[int, Callable[[str], list[Instruction]]]] = {}
        self._requests = 0
        self.dead: dict[int, str] = {}
        """Text on the death of each world rank that is known to be dead."""
        self._membership = Membership(device, placement)
        self._sync = Synchronisation(device, placement)
        self._left: list[int] = []
        self._machines: dict[str, FeatureMachine] = {}
        """Machines, by name, of the features of which a record has come."""
        self.on_attached: Attached | None = None
        self._handlers: dict[type, Callable[..., list[Instruction]]] = {
            Push: self._sync.on_push,
            Register: self._on_register,
            Deregister: self._on_deregister,
            Located: self._on_located,
            Table: self._on_table,
            Failed: self._sync.on_failed,
            Query: self._on_query,
            Status: self._on_status,
            Join: self._on_join,
            Joined: self._on_joined,
            JoinFailed: self._on_join_failed,
            Leave: self._on_leave,
            Probe: self._on_probe,
            Allocate: self._on_allocate,
            Free: self._on_free,
            Died: self._on_died,
        }

    # --- events

    def on_record(self, record: Record) -> list[Instruction]:
        """Process a record of a client or of another device."""
        handler = self._handlers.get(type(record))
        if handler is not None:
            return handler(record)
        feature = feature_of(record)
        attached = self.attach(feature)
        handler = self._handlers.get(type(record))
        if handler is None:
            kind = type(record).__name__
            raise CoarseError(f"the feature {feature!r} has no handler of {kind}; add one to its machine")
        return [*attached, *handler(record)]

    def attach(self, feature: str) -> list[Instruction]:
        """Make a feature's machine here, unless that has been done, and tell it of all leaves and deaths so far."""
        if feature in self._machines:
            return []
        machine: FeatureMachine = asked(feature, self.device, part_of(spec_of(feature).machine), self)
        if taken := self._handlers.keys() & machine.handlers.keys():
            named = sorted(kind.__name__ for kind in taken)
            raise CoarseError(f"the feature {feature!r} handles {named}, which others do; leave them to them")
        self._machines[feature] = machine
        for kind, handle in machine.handlers.items():
            self._handlers[kind] = partial(_handled, feature, self.device, handle)
        if self.on_attached is not None:
            self.on_attached(feature, machine)
        left = [step for client in self._left for step in asked(feature, self.device, machine.on_leave, client)]
        dead = [step for each in self.dead.items() for step in asked(feature, self.device, machine.on_dead, *each)]
        return [*([] if self.dead else left), *dead]

    def _told(self, event: str, *arguments: object) -> list[Instruction]:
        """Tell all features of a leave or a death, and return what follows."""
        return [
            step
            for name, machine in self._machines.items()
            for step in asked(name, self.device, getattr(machine, event), *arguments)
        ]

    def on_reserved(self, request: int, refusal: str) -> list[Instruction]:
        """Process the end of a reservation; `refusal` says why a region could not be made real, if so."""
        offset, answer = self._reservations.pop(request)
        if refusal:
            self._allocator.free(offset)
        return answer(refusal)

    def on_reduced(self, reduce: Reduce) -> list[Instruction]:
        """Process the end of a Reduce."""
        return self._sync.on_reduced(reduce)

    def on_unreachable(self, key: int, epoch: int, why: str, *, was_adding: bool) -> list[Instruction]:
        """Fail a key, because memory that a client lent of it cannot be read or written.

        `was_adding`: a Reduce or a RingReduce has ended by that, and not a RingFinish.
        """
        text = (
            f"{self._sync.keys[key, epoch].name!r}: device {self.device} could not reach {why}; leave a tensor's "
            'memory as it is until its push_pull has ended, or set lend_from_bytes = 0'
        )
        failed = self._fail(Failed(key, epoch, "LentMemoryError", text))
        if was_adding:
            self._sync.give_up(key, epoch)
        return failed

    def on_ring_reduced(self, ring: RingId) -> list[Instruction]:
        """Process the end of a RingReduce."""
        return self._sync.on_ring_reduced(ring)

    def on_chunk(self, header: RingChunk) -> list[Instruction]:
        """Process a ring chunk; its bytes stay with the driver until a RingReceive names them."""
        return self._sync.on_chunk(header)

    def adds(self, header: RingChunk) -> bool:
        """Return whether a chunk is to be added (reduce-scatter) and not only stored.

        Its key has been registered here.
        """
        return header.step < self._sync.num_members(header) - 1

    def on_dead(self, rank: int, text: str) -> list[Instruction]:
        """Process the death of a rank: tell all others, and do not wait for it to leave."""
        if rank in self.dead:
            return []
        self.dead[rank] = text
        clients = range(self.placement.num_clients)
        for client in clients:
            if self.placement.ranks[client] == rank:
                self._membership.on_leave(client)
        here = self.placement.clients_on(self.placement.device_nodes[self.device])
        sends = [*(Send(c, Died(rank, text)) for c in here), *self._to_other_devices(Died(rank, text))]
        told = [send for send in sends if self.placement.ranks[send.endpoint] not in self.dead]
        return [*told, *self._told("on_dead", rank, text), *self._finished()]

    def allocate(
        self, nbytes: int, answer: Callable[[int, str], list[Instruction]], *, is_of_key: bool = False
    ) -> list[Instruction]:
        """Find room for a region and have it made real; `answer` gets its offset, or a refusal."""
        offset = self._allocator.allocate(max(nbytes, 1), is_of_key=is_of_key)
        if offset is None:
            free = self._allocator.free_bytes(is_of_key=is_of_key)
            return answer(-1, f"device {self.device} has {free} bytes free of the {nbytes} wanted")
        self._requests += 1
        self._reservations[self._requests] = (
            offset,
            lambda refusal: answer(-1 if refusal else offset, refusal),
        )
        return [Reserve(self._requests, offset, max(nbytes, 1))]

    def free(self, offset: int) -> None:
        """Free a region that `allocate` found."""
        self._allocator.free(offset)

    @property
    def versions(self) -> VersionTable:
        """Number of results that each key has had here."""
        return self._sync.versions

    @property
    def used_bytes(self) -> int:
        """Bytes of this device's memory that are in use."""
        return self._allocator.used_bytes - sum(map(self._allocator.size_of, self._arenas))

    # --- registration

    def _on_register(self, register: Register) -> list[Instruction]:
        if register.device == self.device and register.offset in self._arenas:
            self._arenas.discard(register.offset)
            rest = self._allocator.carve(register.offset, register.descriptor.nbytes)
            if rest >= 0:
                self._arenas.add(rest)
            return self._locate(register, self.device, register.offset)
        if register.offset >= 0:
            return self._place(register, register.device, register.offset)

        def placed(offset: int, refusal: str) -> list[Instruction]:
            if refusal:
                name = register.descriptor.name
                text = (
                    f"rank {register.client}: {name!r} needs {register.descriptor.nbytes} bytes but "
                    f"{refusal}; raise device_capacity_bytes or add a memory device to the partition"
                )
                failed = Failed(register.key, register.epoch, "CapacityError", text)
                return [Send(register.client, failed), *self._fail(failed)]
            return self._place(register, self.device, offset)

        return self.allocate(register.descriptor.nbytes, placed, is_of_key=True)

    def _fail(self, failed: Failed) -> list[Instruction]:
        return [*self._to_other_devices(failed), *self._sync.on_failed(failed)]

    def _place(self, register: Register, device: int, offset: int) -> list[Instruction]:
        registered = Registered(register.key, register.epoch, device, offset)
        return [Send(register.client, registered), *self._locate(register, device, offset)]

    def _locate(self, register: Register, device: int, offset: int) -> list[Instruction]:
        """Tell the other devices that a client's region is there."""
        client, key, epoch, descriptor, _, _ = register
        located = Located(client, key, epoch, descriptor, device, offset)
        return [*self._to_other_devices(located), *self._sync.on_located(located, serve=True)]

    def _on_deregister(self, deregister: Deregister) -> list[Instruction]:
        """Process a deregistration (see [Note: deregistration] in synchronisation.py).

        Each device frees the regions that it holds.
        """
        forwarded: list[Instruction] = []
        if deregister.teller == self.device:
            forwarded += self._to_other_devices(deregister)
        complete = self._membership.on_deregister(deregister)
        if not complete:
            self._sync.on_deregister(deregister.client, deregister.key)
            return forwarded
        self._sync.deregister(deregister.key)
        for one in complete:
            if one.device == self.device:
                self._allocator.free(one.offset)
        return forwarded

    def _on_located(self, located: Located) -> list[Instruction]:
        return self._sync.on_located(located, serve=False)

    def _on_allocate(self, request: Allocate) -> list[Instruction]:
        def answer(offset: int, refusal: str) -> list[Instruction]:
            allocated = Allocated(self.device, request.token, offset, refusal)
            if request.is_arena and offset >= 0:
                self._arenas.add(offset)
            return [Send(request.client, allocated)]

        if request.is_arena and request.nbytes * _ARENA_OF_FREE > self._allocator.free_bytes(is_of_key=True):
            return answer(-1, "what is free may be wanted for tensors")
        return self.allocate(request.nbytes, answer, is_of_key=request.is_arena or request.is_of_key)

    def _on_free(self, free: Free) -> list[Instruction]:
        self._arenas.discard(free.offset)
        self._allocator.free(free.offset)
        return []

    # --- tables, joining, leaving

    def _on_table(self, table: Table) -> list[Instruction]:
        forwarded = self._forward(table.client, table)
        complete = self._membership.on_table(table)
        if complete is None:
            return forwarded
        tables = Tables(table.epoch, complete)
        told = [Send(c, tables) for c in self._membership.own_clients]
        return [*forwarded, *told, *self._sync.use_facts(table.epoch, complete)]

    def _on_join(self, join: Join) -> list[Instruction]:
        forwarded = self._forward(join.client, join)
        joined = self._membership.on_join(join)
        excused = self._sync.excuse(join.client, join.round)
        if joined is None:
            return [*forwarded, *excused, *self._failed_join()]
        return [*forwarded, *excused, *self._to_other_devices(joined), *self._on_joined(joined)]

    def _failed_join(self) -> list[Instruction]:
        """Tell all own clients and all other devices if a round cannot be completed any more."""
        failed = self._membership.take_failed_join()
        return [*self._to_other_devices(failed), *self._on_join_failed(failed)] if failed else []

    def _on_join_failed(self, failed: JoinFailed) -> list[Instruction]:
        return [Send(c, failed) for c in self._membership.own_clients]

    def _on_joined(self, joined: Joined) -> list[Instruction]:
        self._sync.begin_round(joined.round + 1)
        return [Send(c, joined) for c in self._membership.own_clients]

    def _on_leave(self, leave: Leave) -> list[Instruction]:
        forwarded = self._forward(leave.client, leave, are_near_told=True)
        self._membership.on_leave(leave.client)
        forwarded += [Send(client, leave) for client in self._membership.own_clients if client != leave.client]
        self._membership.on_resigned(leave.client)
        self._left.append(leave.client)
        of_features = self._told("on_leave", leave.client)
        failed = [*self._sync.on_leave(leave.client), *self._failed_join(), *of_features]
        told = [] if self.dead else failed  # who waits knows of a death, for which this client may have left
        return [*forwarded, *told, *self._finished()]

    def _finished(self) -> list[Instruction]:
        return [Finished()] if self._membership.all_left else []

    # --- small answers

    def _on_probe(self, probe: Probe) -> list[Instruction]:
        return [Send(probe.client, Echo(self.device, probe.token))]

    def _on_query(self, query: Query) -> list[Instruction]:
        missing = self._sync.missing(query.key)
        status = Status(query.client, query.key, self.device, missing)
        return [*self._forward(query.client, query), *self._on_status(status)]

    def _on_status(self, status: Status) -> list[Instruction]:
        """Send a status to the client if it is of this node, else to its own device, which passes it on."""
        nodes = self.placement
        if nodes.client_nodes[status.client] == nodes.device_nodes[self.device]:
            return [Send(status.client, status)]
        return [Send(nodes.num_clients + nodes.local_proxies[status.client], status)]

    def _on_died(self, died: Died) -> list[Instruction]:
        return self.on_dead(died.rank, died.text)

    def _forward(
        self, client: int, record: Record, *, are_near_told: bool = False
    ) -> list[Instruction]:
        """Return the records that pass a client's facts on; none if this is not the client's own device.

        [Note: forwarding] has the details.
        """
        if client not in self._membership.own_clients:
            return []
        sends = self._to_other_devices(record)
        here = self.placement.device_nodes[self.device]
        near = [self.placement.num_clients + d for d in self.placement.devices_on(here)]
        return [send for send in sends if not are_near_told or send.endpoint not in near]

    def _to_other_devices(self, record: Record) -> list[Send]:
        first = self.placement.num_clients
        devices = range(self.placement.num_devices)
        return [Send(first + d, record) for d in devices if d != self.device]


def _handled(feature: str, device: int, handle: Callable[..., object], record: Record) -> list[Instruction]:
    """Return what follows from a feature's record.

    Raises:
        CoarseError: the handler returned something else than a list.
    """
    steps = asked(feature, device, handle, record)
    if not isinstance(steps, list):
        raise CoarseError(
            f"the feature {feature!r} on memory device {device} answered {type(record).__name__} with {steps!r}; "
            "return a list of instructions"
        )
    return steps
