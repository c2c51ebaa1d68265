"""A ring of equal members as one event: what 1,024 members do alike is simulated once.

In a job whose workers are equal and whose proxies are local, all rings of a shard begin together and
every member sends the same bytes over a link of its own. One client, its proxy and their links then
stand for all; a ring's 2(p-1) steps are a few transfers, and the proxy's machine is handed the chunks of
their steps as they end. A few and not one, since shards take turns at a sync core's port: were each to go
round whole, the first would be pulled long before it is. The other members' registrations are made up.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from coarse.messages import Located, Table
from coarse.proxy.instructions import RingSend
from coarse.simulation.job import DTYPE, Job
from coarse.simulation.proxied import Proxied
from coarse.simulation.worker_ring import WorkerRing

MAX_SLICES = 32
"""Transfers that a shard's ring is made of at most: step by step up to 17 members."""


class ProxiedAlike(Proxied):
    """Memory devices of which the first stands for all."""

    def _register(self, job: Job) -> None:
        first, proxy = self._clients[0], self._proxies[0]
        self._deliver(first.on_profiled(job.tables[0]))
        for client, table in enumerate(job.tables[1:], start=1):
            row = (table.threshold_bytes, table.latency_proxy, table.bandwidth_proxy, table.partition_bytes)
            self._continue(0, proxy.on_record(Table(client, first.epoch + 1, *row)))
        for descriptor in self._descriptors:
            self._deliver(first.register(descriptor))
            key = next(key for key, position in self._positions.items() if self._descriptors[position] is descriptor)
            for client in range(1, job.num_workers):
                located = Located(client, key, first.epoch, descriptor, client, 0)
                self._continue(0, proxy.on_record(located))

    def _ring_send(self, device: int, send: RingSend) -> None:
        if send.header.step:
            return  # a part of the transfer under way
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        num_members = len(self._clients[0].keys[send.ring.key].plan.members(send.ring.shard))
        self._send_slice(send, nbytes, deque(slices_of(num_members)))

    def _send_slice(self, send: RingSend, nbytes: int, slices: deque["Slice"]) -> None:
        """Some steps, then their adding, then the next slice."""
        if not slices:
            return
        steps, num_added = slices.popleft()
        done = partial(self._on_slice, send, nbytes, steps, slices)
        arrived = partial(self._add, 0, nbytes * num_added, done) if num_added else done
        path = self._site.between_devices[0, send.device]
        priority = self._positions[send.ring.key]
        self._engine.move_in_turns(("ring", 0), path, nbytes, len(steps), arrived, priority=priority)

    def _on_slice(self, send: RingSend, nbytes: int, steps: range, slices: deque["Slice"]) -> None:
        for step in steps:
            self._continue(0, self._proxies[0].on_chunk(send.header._replace(step=step)))
        self._send_slice(send, nbytes, slices)


class Slice(NamedTuple):
    """Some steps of a ring, as one transfer."""

    steps: range
    num_added: int
    """How many of them add what they bring; those of the all-gather only store it."""


def slices_of(num_members: int) -> list[Slice]:
    """All steps of a ring, in MAX_SLICES nearly equal parts or else one by one."""
    num_steps = 2 * (num_members - 1)
    num_slices = min(num_steps, MAX_SLICES)
    bounds = [number * num_steps // num_slices for number in range(num_slices + 1)] if num_slices else []
    return [Slice(range(a, b), max(0, min(b, num_members - 1) - a)) for a, b in pairwise(bounds)]


class WorkerRingAlike(WorkerRing):
    """A ring of workers of which the first stands for all."""

    def _send(self, worker: int, send: RingSend) -> None:
        if send.header.step:
            return
        num_steps = 2 * (len(self._members) - 1)
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        arrived: Callable[[], None] = partial(self._on_all_chunks, send, num_steps)
        path = self._paths[0, send.device]
        self._engine.move_in_turns(("workers", 0), path, nbytes, num_steps, arrived)

    def _on_all_chunks(self, send: RingSend, num_steps: int) -> None:
        for step in range(num_steps):
            self._on_chunk(0, send.ring, step)
