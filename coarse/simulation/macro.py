"""A ring of equal members as one event: what 1,024 members do alike is simulated once.

In a job whose workers are equal and whose proxies are local, all rings of a shard begin together and
every member sends the same bytes over a link of its own. One client, its proxy and their links then
stand for all; a ring's 2(p-1) steps are one transfer, and the proxy's machine is
handed the chunks of all steps when it ends. The other members' registrations are made up for it.
"""

from collections.abc import Callable
from functools import partial

from coarse.messages import Located, Table
from coarse.proxy.instructions import RingSend
from coarse.simulation.job import DTYPE, Job
from coarse.simulation.proxied import Proxied
from coarse.simulation.worker_ring import WorkerRing


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
        num_members = len(self._clients[0].keys[send.ring.key].plan.members(send.ring.shard))
        nbytes = (send.end - send.begin) * DTYPE.itemsize
        num_steps = 2 * (num_members - 1)
        added = partial(self._on_all_chunks, send, num_steps)
        arrived = partial(self._add, 0, nbytes * (num_members - 1), added)
        path = self._site.between_devices[0, send.device]
        priority = self._positions[send.ring.key]
        self._engine.move_in_turns(("ring", 0), path, nbytes, num_steps, arrived, priority=priority)

    def _on_all_chunks(self, send: RingSend, num_steps: int) -> None:
        for step in range(num_steps):
            self._continue(0, self._proxies[0].on_chunk(send.header._replace(step=step)))


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
