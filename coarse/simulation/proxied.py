"""Synchronisation by memory devices: clients' and proxies' machines, their instructions carried out on links.

A record takes no time of its own: it travels with the bytes that it announces. Registration happens
before time begins, as in live training it happens before the first iteration.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from coarse.client.machine import ClientMachine, ToDevice
from coarse.dtypes import DType
from coarse.messages import Ready, Record, RingChunk, key_of
from coarse.proxy.instructions import (
    Fold,
    Instruction,
    Reserve,
    RingFold,
    RingSend,
    Send,
)
from coarse.proxy.machine import ProxyMachine
from coarse.simulation.engine import Engine
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
        self._clients = [ClientMachine(c, job.placement) for c in range(self._num_clients)]
        self._proxies = [ProxyMachine(d, job.placement, _CAPACITY_BYTES) for d in range(job.placement.num_devices)]
        self._descriptors = [gradient.descriptor(position) for position, gradient in enumerate(gradients)]
        self._positions = {key_of(one.name): position for position, one in enumerate(self._descriptors)}
        self._unread: dict[tuple[int, int], int] = {}
        """(client, key) -> shards that it has still to pull."""
        self._register(job)

    def push(self, worker: int, position: int) -> None:
        """A worker has a gradient: its shards go out one by one, and are announced as they arrive."""
        machine, descriptor = self._clients[worker], self._descriptors[position]
        key = key_of(descriptor.name)
        machine.begin(key)
        state = machine.keys[key]
        self._unread[worker, key] = state.plan.num_shards
        path = self._site.push[worker, state.device]
        for shard in range(state.plan.num_shards):
            nbytes = self._nbytes(worker, key, shard, shard + 1)
            arrived = partial(self._announce, worker, key, shard)
            self._engine.move(("push", worker), path, nbytes, arrived, priority=descriptor.priority)

    def _announce(self, worker: int, key: int, shard: int) -> None:
        self._deliver(self._clients[worker].announce(key, shard, shard + 1, present=True))

    def _pull(self, client: int, ready: Ready) -> None:
        state = self._clients[client].keys[ready.key]
        path = self._site.pull[client, state.device]
        for shard in range(ready.first, ready.last):
            nbytes = self._nbytes(client, ready.key, shard, shard + 1)
            pulled = partial(self._on_pulled, client, ready.key)
            self._engine.move(("pull", client), path, nbytes, pulled, priority=state.descriptor.priority)

    def _on_pulled(self, client: int, key: int) -> None:
        self._unread[client, key] -= 1
        if not self._unread[client, key]:
            self._on_synced(client, self._positions[key])

    def _nbytes(self, client: int, key: int, first: int, last: int) -> int:
        begin, end = self._clients[client].keys[key].plan.bounds(first, last)
        return (end - begin) * DTYPE.itemsize

    # --- records and instructions

    def _register(self, job: Job) -> None:
        for client, machine in enumerate(self._clients):
            self._deliver(machine.on_profiled(job.tables[client]))
        for machine in self._clients:
            for descriptor in self._descriptors:
                self._deliver(machine.register(descriptor))

    def _deliver(self, records: Sequence[ToDevice]) -> None:
        """Hand records to proxies, and carry out what follows until nothing more follows at once."""
        steps: deque[tuple[int, Instruction]] = deque()
        for device, record in records:
            steps.extend((device, step) for step in self._proxies[device].on_record(record))
        self._carry_out(steps)

    def _continue(self, device: int, instructions: list[Instruction]) -> None:
        self._carry_out(deque((device, step) for step in instructions))

    def _carry_out(self, steps: deque[tuple[int, Instruction]]) -> None:
        while steps:
            device, step = steps.popleft()
            match step:
                case Send(endpoint, record) if endpoint < self._num_clients:
                    self._tell_client(endpoint, record)
                case Send(endpoint, record):
                    other = endpoint - self._num_clients
                    steps.extend((other, more) for more in self._proxies[other].on_record(record))
                case Reserve(request, _, _):
                    steps.extend((device, more) for more in self._proxies[device].on_reserved(request, ""))
                case Fold():
                    self._fold(device, step)
                case RingFold():
                    self._ring_fold(device, step)
                case RingSend():
                    self._ring_send(device, step)

    def _tell_client(self, client: int, record: Record) -> None:
        self._clients[client].on_record(record)
        if isinstance(record, Ready):
            self._pull(client, record)

    # --- sync cores

    def _fold(self, device: int, fold: Fold) -> None:
        """Fetch what lies on other devices, add, and write the sum back to where it came from."""
        nbytes = fold.num_elements * DType(fold.dtype).itemsize
        done = partial(self._on_folded, device, fold)
        back = [self._site.between_devices[device, to.device] for to in fold.targets if to.device != device]
        write = partial(self._move_all, ("ring", device), back, nbytes, done, fold.priority)
        add = partial(self._add, device, nbytes * len(fold.sources), write)
        fetch = [self._site.between_devices[at.device, device] for at in fold.sources if at.device != device]
        self._move_all(("fetch", device), fetch, nbytes, add, fold.priority)

    def _on_folded(self, device: int, fold: Fold) -> None:
        self._continue(device, self._proxies[device].on_folded(fold))

    def _ring_fold(self, device: int, fold: RingFold) -> None:
        nbytes = fold.num_elements * DType(fold.dtype).itemsize * len(fold.sources)
        self._add(device, nbytes, partial(self._on_ring_folded, device, fold))

    def _on_ring_folded(self, device: int, fold: RingFold) -> None:
        self._continue(device, self._proxies[device].on_ring_folded(fold.ring))

    def _ring_send(self, device: int, send: RingSend) -> None:
        path = self._site.between_devices[device, send.device]
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        priority = self._positions[send.ring.key]
        arrived = partial(self._on_arrived, send.device, send.header, nbytes)
        self._engine.move(("ring", device), path, nbytes, arrived, priority=priority)

    def _on_arrived(self, device: int, header: RingChunk, nbytes: int) -> None:
        taken = partial(self._on_chunk, device, header)
        num_members = len(self._clients[0].keys[header.key].plan.members(header.shard))
        if header.step < num_members - 1:
            self._add(device, nbytes, taken)  # reduce-scatter adds; all-gather only stores
        else:
            taken()

    def _on_chunk(self, device: int, header: RingChunk) -> None:
        self._continue(device, self._proxies[device].on_chunk(header))

    def _add(self, device: int, nbytes: int, done: Callable[[], None]) -> None:
        self._engine.work(("adder", device), nbytes / self._site.adder_bytes_per_s, done)

    def _move_all(
        self,
        port: tuple[str, int],
        paths: Sequence[tuple[int, ...]],
        nbytes: int,
        done: Callable[[], None],
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
