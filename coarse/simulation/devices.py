# Pure: no MPI, threads, clock or environment.
"""Driver on a virtual clock: instructions of clients' and devices' protocols on modelled links.

A record takes no time of its own: it travels with the bytes that it announces, and all other records cost nothing.
Bytes are sizes, or small real arrays if the devices are given memories.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from coarse.client.protocol import ClientProtocol, ToDevice
from coarse.protocol.costs import cost_of
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.protocol.records import Ready, Record, RingChunk
from coarse.proxy.costs import INSTRUCTION_COSTS
from coarse.proxy.device import Device, ReduceWork
from coarse.proxy.instructions import Reduce, Region, Reserve, RingSend, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.reduce_run import Add, ReduceRun, Transfer
from coarse.proxy.ring_buffers import RingBuffers
from coarse.simulation.engine import Action, Engine
from coarse.simulation.sites import Site

OnPulled = Callable[[int, int], None]
"""Function of (client, key), called when that client holds the whole result."""


class SimulatedDevices:
    """Clients and memory devices of a job."""

    def __init__(
        self,
        engine: Engine,
        site: Site,
        placement: Placement,
        on_pulled: OnPulled,
        *,
        capacity_bytes: int = 1 << 62,
        memories: Sequence[np.ndarray] | None = None,
        driver: "Callable[[SimulatedDevices, int], SimulatedDriver] | None" = None,
    ) -> None:
        """Build the protocols of all clients and devices.

        `memories` are (capacity_bytes,) uint8 by device, whose real bytes are then summed. `driver` makes each device's
        driver, if it is not a SimulatedDriver.
        """
        self.engine = engine
        self.site = site
        self.clients = [ClientProtocol(client, placement) for client in range(placement.num_clients)]
        self._on_pulled = on_pulled
        self._memories = memories
        self._unread: dict[tuple[int, int], int] = {}
        """Number of shards that a client has still to pull, by (client, key)."""
        self._sizes: dict[tuple[int, int], list[int]] = {}
        """Bytes of each shard, by (key, epoch)."""
        self._coming: deque[tuple[int, Record]] = deque()
        """Records that are sent and not yet handed over, as (endpoint, record)."""
        self.drivers = [(driver or SimulatedDriver)(self, device) for device in range(placement.num_devices)]
        self.devices = [
            Device(ProxyProtocol(number, placement, capacity_bytes), driver, driver.rings)
            for number, driver in enumerate(self.drivers)
        ]

    @property
    def has_bytes(self) -> bool:
        """True if real bytes are summed."""
        return self._memories is not None

    def push(self, client: int, key: int, *, present: bool = True) -> None:
        """Send a client's shards of a key one by one, and announce them as they arrive."""
        protocol = self.clients[client]
        protocol.begin(key)
        state = protocol.keys[key]
        self._unread[client, key] = state.plan.num_shards
        path = self.site.push[client, state.device]
        for shard, nbytes in enumerate(self.shard_bytes(client, key)):
            arrived = partial(self._announce, client, key, shard, present)
            if present:
                self.engine.move(("push", client), path, nbytes, arrived, priority=state.descriptor.priority)
            else:
                arrived()

    def deliver(self, records: Sequence[ToDevice]) -> None:
        """Hand a client's records over, and all that follows from them at once."""
        first = len(self.clients)
        for device, record in records:
            self._coming.append((first + device, record))
        self.follow()

    def send(self, send: Send) -> None:
        """Queue a device's record, to be handed over by `follow`."""
        self._coming.append(send)

    def follow(self) -> None:
        """Hand over what was sent, until nothing more follows at once."""
        coming, clients = self._coming, self.clients
        while coming:
            endpoint, record = coming.popleft()
            if endpoint < len(clients):
                clients[endpoint].on_record(record)
                if type(record) is Ready:
                    self._pull(endpoint, record)
            else:
                self.devices[endpoint - len(clients)].on_record(record)

    def shard_bytes(self, client: int, key: int) -> Sequence[int]:
        """Return the bytes of each shard of a key, the same for all clients."""
        state = self.clients[client].keys[key]
        sizes = self._sizes.get((key, state.epoch))
        if sizes is None:
            shards, itemsize = range(state.plan.num_shards), DType(state.descriptor.dtype).itemsize
            sizes = self._sizes[key, state.epoch] = [state.plan.nbytes(one, one + 1, itemsize) for one in shards]
        return sizes

    def array(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        """Return a region's elements; the devices must have real bytes."""
        assert self._memories is not None
        end = region.offset + num_elements * dtype.itemsize
        return self._memories[region.device][region.offset : end].view(dtype.storage)

    def _announce(self, client: int, key: int, shard: int, present: bool) -> None:
        self.deliver(self.clients[client].announce(key, shard, shard + 1, present=present))

    def _pull(self, client: int, ready: Ready) -> None:
        state = self.clients[client].keys[ready.key]
        path = self.site.pull[client, state.device]
        pulled = partial(self._on_shard_pulled, client, ready.key)
        for nbytes in self.shard_bytes(client, ready.key)[ready.first : ready.last]:
            self.engine.move(("pull", client), path, nbytes, pulled, priority=state.descriptor.priority)

    def _on_shard_pulled(self, client: int, key: int) -> None:
        left = self._unread[client, key] = self._unread[client, key] - 1
        if not left:
            self._on_pulled(client, key)


class SimulatedDriver:
    """Driver of one device (a DeviceDriver): sums and chunks take the time of links and of its adder."""

    def __init__(self, job: SimulatedDevices, device: int) -> None:
        self.rings = RingBuffers(job.array) if job.has_bytes else None
        self._job = job
        self._device = device
        self._kinds: dict[int, tuple[int, int]] = {}
        """Answers of `chunk_kind`, by key."""
        self._engine = job.engine
        self._site = job.site
        self.send = job.send

    def send_chunk(self, send: RingSend) -> None:
        """Send a chunk over the links to another device, which then takes or adds it."""
        itemsize, priority = self.chunk_kind(send)
        nbytes = cost_of(INSTRUCTION_COSTS, send, itemsize).amount
        path = self._site.between_devices[self._device, send.device]
        frame = None if self.rings is None else self.rings.frame_of(send)
        arrived = self.at_arrival(send.device, send.header, nbytes, frame)
        self._engine.move(("ring", self._device), path, nbytes, arrived, priority=priority)

    def reduce(self, work: ReduceWork) -> None:
        """Carry out a reduce: fetch the sources that lie elsewhere, add, and write the sum back to its places."""
        if isinstance(work, Reduce):
            run = ReduceRun(self._device, work)
            self._follow_run(work, run, run.begin())
            return
        self._add(cost_of(INSTRUCTION_COSTS, work, 0).amount, partial(self._done, work))

    def reserve(self, reserve: Reserve) -> str:
        """Reserve nothing: modelled memory is real."""
        return ""

    def finish(self) -> None:
        """Do nothing: the simulation ends when nothing is due."""

    def chunk_kind(self, send: RingSend) -> tuple[int, int]:
        """Return a chunk's bytes of an element, in the accumulator type, and the key's priority."""
        key = send.ring.key
        kind = self._kinds.get(key)
        if kind is None:
            descriptor = self._job.clients[0].keys[key].descriptor
            kind = self._kinds[key] = DType(descriptor.dtype).accumulator.itemsize, descriptor.priority
        return kind

    def at_arrival(self, target: int, header: RingChunk, nbytes: int, frame: np.ndarray | None) -> Action:
        """Return the action for a chunk that has come: it is added, or only stored."""
        device = self._job.devices[target]
        taken = partial(self._on_chunk, target, header, frame)
        if not device.protocol.adds(header):
            return taken
        seconds = nbytes / self._site.adder_bytes_per_s
        return partial(self._engine.work, ("adder", target), seconds, taken)

    def _on_chunk(self, target: int, header: RingChunk, frame: np.ndarray | None) -> None:
        job = self._job
        if frame is not None and (rings := job.drivers[target].rings) is not None:
            rings.keep(frame)
        job.devices[target].on_chunk(header)
        job.follow()

    def _follow_run(self, work: Reduce, run: ReduceRun, steps: list[Transfer] | list[Add]) -> None:
        for step in steps:
            if isinstance(step, Add):
                self._add(step.nbytes, lambda: self._follow_run(work, run, run.on_added()))
                continue
            port = ("fetch" if step.is_fetch else "ring", self._device)
            path = self._site.between_devices[step.source, step.target]
            self._engine.move(port, path, step.nbytes, partial(self._moved, work, run), priority=work.priority)
        if run.is_done:
            self._done(work)

    def _moved(self, work: Reduce, run: ReduceRun) -> None:
        self._follow_run(work, run, run.on_moved())

    def _add(self, nbytes: int, done: Action) -> None:
        self._engine.work(("adder", self._device), nbytes / self._site.adder_bytes_per_s, done)

    def _done(self, work: ReduceWork) -> None:
        self._job.devices[self._device].reduce(work)
        self._job.follow()
