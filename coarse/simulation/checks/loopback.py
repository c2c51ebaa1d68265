"""Loopback driver: all clients and proxies of a job in one process, on a virtual clock.

The protocols are those of live training. Messages take the time that the caller's delay function says, and the sync
core sums small real arrays, so that results can be checked. Its messages may also come in any order that a test
chooses.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coarse.client.protocol import ClientProtocol, KeyPhase, ToDevice
from coarse.protocol.clock import VirtualClock
from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType, Op, dtype_of
from coarse.protocol.plan import Facts, Placement
from coarse.protocol.records import Descriptor, Failed
from coarse.proxy.device import Device, ReduceWork
from coarse.proxy.instructions import Region, Reserve, RingSend, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.ring_buffers import RingBuffers
from coarse.simulation.checks.lanes import DelayOf, Lane, LaneKind, Lanes

Message = bytes | np.ndarray | ReduceWork


class Result(NamedTuple):
    """Result of a client's push: the combined array, and whether any client contributed."""

    array: np.ndarray
    present: bool


class _Push(NamedTuple):
    descriptor: Descriptor
    array: np.ndarray
    present: bool


class _Join(NamedTuple):
    pass


class _Profile(NamedTuple):
    facts: Facts


class Loopback:
    """Job of ClientProtocols and ProxyProtocols; give clients their steps, then `run`.

    A client does its steps in order, and each as soon as a worker could: a push waits for its key's region and last
    result, a join and new facts for all its results.
    """

    def __init__(
        self,
        placement: Placement,
        facts: Sequence[Facts],
        *,
        delay_s: DelayOf = lambda source, destination, nbytes: 0.0,
        capacity_bytes: int = 1 << 20,
    ) -> None:
        self.placement = placement
        self.clock = VirtualClock()
        self.clients = [ClientProtocol(c, placement) for c in range(placement.num_clients)]
        devices = range(placement.num_devices)
        self.proxies = [ProxyProtocol(d, placement, capacity_bytes) for d in devices]
        self._rings = [RingBuffers(self._arrays_near(d)) for d in devices]
        self._memories = [np.zeros(capacity_bytes, np.uint8) for _ in devices]
        self._lanes: Lanes[Message] = Lanes(self.clock, delay_s)
        drivers = [_Driver(placement.num_clients + d, d, self._rings[d], self._post, self._lanes) for d in devices]
        self._devices = [Device(self.proxies[d], drivers[d], self._rings[d]) for d in devices]
        self._steps: list[deque[_Push | _Join | _Profile]] = [deque() for _ in self.clients]
        self._under_way: list[_Join | _Profile | None] = [None for _ in self.clients]
        self._results: dict[tuple[int, int], list[Result]] = {}
        for client, row in enumerate(facts):
            self.profile(client, row)
        self.run()

    # --- what clients do

    def push(
        self,
        client: int,
        name: str,
        array: np.ndarray,
        op: Op = Op.SUM,
        *,
        dtype: DType | None = None,
        priority: int = 0,
        present: bool = True,
        hint: int = 0,
    ) -> None:
        """Add a step to a client: push an array. `dtype` says what uint16 stands for."""
        kind = dtype_of(array) if dtype is None else dtype
        descriptor = Descriptor(name, int(kind), int(op), array.shape, priority, hint=hint)
        self._add(client, _Push(descriptor, array, present))

    def join(self, client: int) -> None:
        """Add a step to a client: join. It counts as nothing until all have joined."""
        self._add(client, _Join())

    def profile(self, client: int, facts: Facts) -> None:
        """Add a step to a client: announce its facts of the next epoch."""
        self._add(client, _Profile(facts))

    def ask_who_is_missing(self, client: int, name: str) -> None:
        """Have a client ask now which contributions a name waits for; see ClientProtocol.missing_clients."""
        self.deliver(client, self.clients[client].ask_who_is_missing(self.clients[client].key(name)))

    # --- time

    def run(self) -> None:
        """Deliver messages in the order of their times until there are none."""
        lane = self._lanes.first_due()
        while lane is not None:
            self.step(lane)
            lane = self._lanes.first_due()

    def step_choices(self) -> tuple[Lane, ...]:
        """Return lanes whose first message may come next: for running every interleaving."""
        return self._lanes.choices()

    def step(self, lane: Lane) -> None:
        """Deliver the first message of a lane."""
        self._deliver(lane.destination, self._lanes.take(lane))

    # --- for scripts, which take the clients' steps themselves (tests/support/scripts.py)

    def deliver(self, client: int, records: Sequence[ToDevice]) -> None:
        """Send a client's records."""
        for device, record in records:
            self._post(client, self.placement.num_clients + device, encode(record))

    def announce(self, client: int, key: int, *, present: bool = True) -> None:
        """Begin a client's contribution, which lies in its region, and announce all of its shards."""
        protocol = self.clients[client]
        protocol.begin(key)
        num_shards = protocol.keys[key].plan.num_shards
        self.deliver(client, protocol.announce(key, 0, num_shards, present=present))

    def array(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        """Return a region's elements, on any device."""
        end = region.offset + num_elements * dtype.itemsize
        return self._memories[region.device][region.offset : end].view(dtype.storage)

    # --- what came of it

    def results(self, client: int, name: str) -> list[Result]:
        """Return all results that a client has had of a name, the oldest first."""
        return self._results.get((client, self.clients[client].key(name)), [])

    def result(self, client: int, name: str) -> np.ndarray:
        """Return a client's last result of a name."""
        return self.results(client, name)[-1].array

    def failure(self, client: int, name: str) -> Failed | None:
        """Return the reason why a name cannot be synchronised, as this client was told."""
        state = self.clients[client].keys.get(self.clients[client].key(name))
        return state.failed if state is not None else None

    def unfinished(self) -> tuple[int, ...]:
        """Return the clients that have a step left, or a result to come."""
        return tuple(
            client.client
            for client in self.clients
            if self._steps[client.client] or self._under_way[client.client] or not client.is_quiet
        )

    @property
    def num_rings(self) -> int:
        """Number of devices with a ring under way: none when all is quiet."""
        return sum(rings.in_use for rings in self._rings)

    # --- clients

    def _add(self, client: int, step: _Push | _Join | _Profile) -> None:
        self._steps[client].append(step)
        if len(self._steps[client]) == 1:
            self._proceed(client)

    def _proceed(self, client: int) -> None:
        """Do a client's steps until one must wait."""
        while self._steps[client] and self._under_way[client] is None:
            step = self._steps[client][0]
            if not self._do(client, step):
                return
            self._steps[client].popleft()

    def _do(self, client: int, step: _Push | _Join | _Profile) -> bool:
        """Do a step; return False if it must wait and be tried again."""
        if isinstance(step, _Push):
            return self._do_push(client, step)
        return self._do_wait(client, step)

    def _do_push(self, client: int, push: _Push) -> bool:
        protocol = self.clients[client]
        key = protocol.key(push.descriptor.name)
        state = protocol.keys.get(key)
        if state is None or state.epoch != protocol.epoch:
            self.deliver(client, protocol.register(push.descriptor))
            return False
        if state.phase in (KeyPhase.REGISTERING, KeyPhase.IN_FLIGHT):
            return False
        if state.phase is KeyPhase.IDLE:
            if push.present:
                self._region(client, key)[:] = push.array.reshape(-1)
            self.announce(client, key, present=push.present)
        return True

    def _do_wait(self, client: int, step: _Join | _Profile) -> bool:
        protocol = self.clients[client]
        if not protocol.is_quiet:
            return False
        if isinstance(step, _Profile):
            self.deliver(client, protocol.on_profiled(step.facts))
        else:
            self.deliver(client, protocol.join())
        self._under_way[client] = step
        return True

    def _on_record(self, client: int, frame: bytes) -> None:
        protocol = self.clients[client]
        epoch, in_flight = protocol.epoch, protocol.in_flight
        protocol.on_record(decode(frame))
        for key in sorted(in_flight - protocol.in_flight):
            if protocol.keys[key].phase is KeyPhase.IDLE:
                result = Result(self._region(client, key).copy(), protocol.keys[key].present)
                self._results.setdefault((client, key), []).append(result)
        step = self._under_way[client]
        joined = isinstance(step, _Join) and protocol.last_joined is not None
        if joined or (isinstance(step, _Profile) and protocol.epoch > epoch):
            self._under_way[client] = None
        self._proceed(client)

    def _region(self, client: int, key: int) -> np.ndarray:
        state = self.clients[client].keys[key]
        array_of = self._arrays_near(state.device)
        dtype = DType(state.descriptor.dtype)
        return array_of(Region(state.device, state.offset), dtype, state.descriptor.num_elements)

    # --- messages and work

    def _post(self, source: int, destination: int, message: Message) -> None:
        kind = LaneKind.CHUNK if isinstance(message, np.ndarray) else LaneKind.RECORD
        assert isinstance(message, bytes | np.ndarray)
        self._lanes.post(Lane(kind, source, destination), message, len(message))
        clients = [end for end in (source, destination) if end < self.placement.num_clients]
        nodes = (*self.placement.client_nodes, *self.placement.device_nodes)
        assert not clients or nodes[source] == nodes[destination], (
            "a client speaks to its node only"
        )

    def _deliver(self, destination: int, message: Message) -> None:
        device = destination - self.placement.num_clients
        if device < 0:
            assert isinstance(message, bytes)
            self._on_record(destination, message)
            return
        if isinstance(message, bytes):
            self._devices[device].on_record(decode(message))
        elif isinstance(message, np.ndarray):
            self._devices[device].on_chunk(self._rings[device].keep(message))
        else:
            self._devices[device].reduce(message)

    def _arrays_near(self, device: int) -> Callable[[Region, DType, int], np.ndarray]:
        """Return the arrays that a device has mapped: regions of its own node."""

        def array_of(region: Region, dtype: DType, num_elements: int) -> np.ndarray:
            nodes = self.placement.device_nodes
            assert nodes[region.device] == nodes[device], (
                f"{region} is not on device {device}'s node"
            )
            return self.array(region, dtype, num_elements)

        return array_of


class _Driver:
    """Driver of one device: all that it asks for travels in lanes."""

    def __init__(
        self,
        here: int,
        device: int,
        rings: RingBuffers,
        post: Callable[[int, int, Message], None],
        lanes: Lanes[Message],
    ) -> None:
        self._here = here
        self._device = device
        self._rings = rings
        self._post = post
        self._lanes = lanes

    def send(self, send: Send) -> None:
        """Post a record to a client or to another device."""
        self._post(self._here, send.endpoint, encode(send.record))

    def send_chunk(self, send: RingSend) -> None:
        """Post a chunk to another device."""
        first_device = self._here - self._device
        self._post(self._here, first_device + send.device, self._rings.frame_of(send))

    def reduce(self, work: ReduceWork) -> None:
        """Post a reduce, in a lane of its own."""
        nbytes = work.num_elements * DType(work.dtype).itemsize
        self._lanes.post(Lane(LaneKind.FOLD, self._here, self._here), work, nbytes)

    def reserve(self, reserve: Reserve) -> str:
        """Reserve nothing: all memory is there."""
        return ""

    def finish(self) -> None:
        """Do nothing: the clients share this process."""
