# Pure: no MPI, threads, clock or environment.
"""Synchronisation by memory devices: clients' and proxies' protocols, their instructions carried out on links.

A record takes no time of its own: it travels with the bytes that it announces. Registration happens
before time begins, as in live training it happens before the first iteration.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from coarse.client.protocol import ClientProtocol, ToDevice
from coarse.protocol.dtypes import DType
from coarse.protocol.records import Ready, RingChunk, key_of
from coarse.proxy.instructions import (
    Instruction,
    Reduce,
    Reserve,
    RingReduce,
    RingSend,
    Send,
)
from coarse.proxy.protocol import ProxyProtocol
from coarse.simulation.engine import Action, Engine
from coarse.simulation.job import DTYPE, Gradient, Job

_CAPACITY_BYTES = 1 << 62
OnSynced = Callable[[int, int], None]
"""(worker, position of the gradient): it holds the combined values."""


class Proxied:
    """The memory devices of a job and the clients that push to them."""

    def __init__(self, engine: Engine, job: Job, gradients: Sequence[Gradient], on_synced: OnSynced) -> None:
        self._engine = engine
        self._site = job.site
        self._on_synced = on_synced
        self._num_clients = job.placement.num_clients
        self._clients = [ClientProtocol(c, job.placement) for c in range(self._num_clients)]
        self._proxies = [ProxyProtocol(d, job.placement, _CAPACITY_BYTES) for d in range(job.placement.num_devices)]
        self._descriptors = [gradient.descriptor(position) for position, gradient in enumerate(gradients)]
        self._positions = {key_of(one.name): position for position, one in enumerate(self._descriptors)}
        self._unread: dict[tuple[int, int], int] = {}
        """(client, key) -> shards that it has still to pull."""
        self._sizes: dict[int, list[int]] = {}
        """Key -> bytes of each shard."""
        self._following: deque[tuple[int, list[Instruction]]] = deque()
        """Instructions of a device that are still to be carried out."""
        self._ways: dict[type, Callable[[int, Any], None]] = {
            Send: self._send,
            Reserve: self._reserve,
            Reduce: self._reduce,
            RingReduce: self._ring_reduce,
            RingSend: self._ring_send,
        }
        """How instructions are carried out that take time, or that bring about others."""
        self._register(job)

    def push(self, worker: int, position: int) -> None:
        """A worker has a gradient: its shards go out one by one, and are announced as they arrive."""
        protocol, descriptor = self._clients[worker], self._descriptors[position]
        key = key_of(descriptor.name)
        protocol.begin(key)
        state = protocol.keys[key]
        self._unread[worker, key] = state.plan.num_shards
        path = self._site.push[worker, state.device]
        for shard, nbytes in enumerate(self._shard_bytes(key)):
            arrived = partial(self._announce, worker, key, shard)
            self._engine.move(("push", worker), path, nbytes, arrived, priority=descriptor.priority)

    def _announce(self, worker: int, key: int, shard: int) -> None:
        self._deliver(self._clients[worker].announce(key, shard, shard + 1, present=True))

    def _pull(self, client: int, ready: Ready) -> None:
        state = self._clients[client].keys[ready.key]
        path = self._site.pull[client, state.device]
        pulled = partial(self._on_pulled, client, ready.key)
        for nbytes in self._shard_bytes(ready.key)[ready.first : ready.last]:
            self._engine.move(("pull", client), path, nbytes, pulled, priority=state.descriptor.priority)

    def _on_pulled(self, client: int, key: int) -> None:
        left = self._unread[client, key] = self._unread[client, key] - 1
        if not left:
            self._on_synced(client, self._positions[key])

    def _shard_bytes(self, key: int) -> Sequence[int]:
        """Bytes of each shard of a key."""
        sizes = self._sizes.get(key)
        if sizes is None:
            plan = self._clients[0].keys[key].plan
            bounds = [plan.bounds(shard, shard + 1) for shard in range(plan.num_shards)]
            sizes = self._sizes[key] = [(end - begin) * DTYPE.itemsize for begin, end in bounds]
        return sizes

    # --- records and instructions

    def _register(self, job: Job) -> None:
        for client, protocol in enumerate(self._clients):
            self._deliver(protocol.on_profiled(job.tables[client]))
        for protocol in self._clients:
            for descriptor in self._descriptors:
                self._deliver(protocol.register(descriptor))

    def _deliver(self, records: Sequence[ToDevice]) -> None:
        """Hand records to proxies, and carry out what follows until nothing more follows at once."""
        for device, record in records:
            self._following.append((device, self._proxies[device].on_record(record)))
        self._follow()

    def _continue(self, device: int, instructions: list[Instruction]) -> None:
        """Carry out what a proxy's protocol answers."""
        self._following.append((device, instructions))
        self._follow()

    def _follow(self) -> None:
        following, ways = self._following, self._ways
        while following:
            device, instructions = following.popleft()
            for step in instructions:
                carry_out = ways.get(type(step))  # what else there is takes no time
                if carry_out is not None:
                    carry_out(device, step)

    def _send(self, device: int, send: Send) -> None:
        endpoint, record = send
        if endpoint >= self._num_clients:
            other = endpoint - self._num_clients
            self._following.append((other, self._proxies[other].on_record(record)))
            return
        self._clients[endpoint].on_record(record)
        if isinstance(record, Ready):
            self._pull(endpoint, record)

    def _reserve(self, device: int, reserve: Reserve) -> None:
        self._following.append((device, self._proxies[device].on_reserved(reserve.request, "")))

    # --- sync cores

    def _reduce(self, device: int, reduce: Reduce) -> None:
        """Fetch what lies on other devices, add, and write the sum back to where it came from."""
        nbytes = reduce.num_elements * DType(reduce.dtype).itemsize
        done = partial(self._on_reduced, device, reduce)
        back = [self._site.between_devices[device, to.device] for to in reduce.targets if to.device != device]
        write = partial(self._move_all, ("ring", device), back, nbytes, done, reduce.priority)
        add = partial(self._add, device, nbytes * len(reduce.sources), write)
        fetch = [self._site.between_devices[at.device, device] for at in reduce.sources if at.device != device]
        self._move_all(("fetch", device), fetch, nbytes, add, reduce.priority)

    def _on_reduced(self, device: int, reduce: Reduce) -> None:
        self._continue(device, self._proxies[device].on_reduced(reduce))

    def _ring_reduce(self, device: int, reduce: RingReduce) -> None:
        nbytes = reduce.num_elements * DType(reduce.dtype).itemsize * len(reduce.sources)
        self._add(device, nbytes, partial(self._on_ring_reduced, device, reduce))

    def _on_ring_reduced(self, device: int, reduce: RingReduce) -> None:
        self._continue(device, self._proxies[device].on_ring_reduced(reduce.ring))

    def _ring_send(self, device: int, send: RingSend) -> None:
        path = self._site.between_devices[device, send.device]
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        arrived = self._at_arrival(send.device, send.header, nbytes)
        self._engine.move(("ring", device), path, nbytes, arrived, priority=self._positions[send.ring.key])

    def _at_arrival(self, device: int, header: RingChunk, nbytes: int) -> Action:
        """What to do with a chunk once it has come: reduce-scatter adds, all-gather only stores."""
        taken = partial(self._on_chunk, device, header)
        num_members = len(self._clients[0].keys[header.key].plan.members(header.shard))
        return partial(self._add, device, nbytes, taken) if header.step < num_members - 1 else taken

    def _on_chunk(self, device: int, header: RingChunk) -> None:
        self._continue(device, self._proxies[device].on_chunk(header))

    def _add(self, device: int, nbytes: int, done: Action) -> None:
        self._engine.work(("adder", device), nbytes / self._site.adder_bytes_per_s, done)

    def _move_all(
        self,
        port: tuple[str, int],
        paths: Sequence[tuple[int, ...]],
        nbytes: int,
        done: Action,
        priority: int,
    ) -> None:
        """Several transfers, then something once."""
        if not paths:
            done()
            return
        left = [len(paths)]

        def arrived() -> None:
            left[0] -= 1
            if not left[0]:
                done()

        for path in paths:
            self._engine.move(port, path, nbytes, arrived, priority=priority)
