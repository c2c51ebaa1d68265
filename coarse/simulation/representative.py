# Pure: no MPI, threads, clock or environment.
"""Ring of equal members as a few events: the equal steps of 1,024 members are simulated once.

In a job whose workers are equal and whose proxies are local, all rings of a shard begin together and every member sends
the same bytes over a link of its own. One client, its proxy and their links then stand for all. Its machine stands in a
ring of a few members, each step of which is one transfer and lasts as long as several steps of the true ring. A few and
not one, since shards take turns at a sync core's port: if each went round whole, the first would be pulled long before
it is. The other members' registrations are made up for it.

[Note: unlike hops] Hops within a node are faster than those between nodes. The slowest hop's port has the next chunk
waiting before it has sent this one, if the way round the ring, in so many steps, takes less time than so many chunks on
that hop; then start-ups are hidden there. So a step of a long ring lasts as long as the chunk streams on the slowest
hop, or as long as a hop takes alone in the mean of all hops, whichever is longer.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from coarse.errors import ConfigError
from coarse.hardware.links import Link, path_alone_s
from coarse.protocol import override
from coarse.protocol.records import Located, Table
from coarse.proxy.instructions import RingSend
from coarse.simulation.devices import SimulatedDevices, SimulatedDriver
from coarse.simulation.engine import Engine
from coarse.simulation.job import DTYPE, Job
from coarse.simulation.proxied import OnSynced, Proxied
from coarse.simulation.sites import Hop, Path, Site
from coarse.simulation.worker_ring import WorkerRing
from coarse.strategy.routing import RoutingTable, local_tables

MOST_MEMBERS = 17
"""Most members of a ring that all take every step; in a larger ring, so many stand for all."""


class ProxiedAlike(Proxied):
    """Memory devices of which the first stands for all."""

    def __init__(self, engine: Engine, job: Job, positions: Sequence[int], on_synced: OnSynced) -> None:
        num_members = job.placement.num_devices
        num_few = min(num_members, MOST_MEMBERS)
        driver = partial(DriverOfFirst, num_few=num_few, num_members=num_members)
        super().__init__(engine, with_few_members(job, num_few), positions, on_synced, driver)

    def register(self) -> None:
        """Register all names, with the records that the other clients would have sent to the first device."""
        job, first, device = self.job, self.clients[0], self.devices[0]
        self.deliver(first.on_profiled(job.facts[0]))
        for client, facts in enumerate(job.facts[1:], start=1):
            device.on_record(Table(client, first.epoch + 1, facts))
            self.follow()
        for position, descriptor in self.descriptors.items():
            self.deliver(first.register(descriptor))
            for client in range(1, job.num_workers):
                device.on_record(Located(client, self.keys[position], first.epoch, descriptor, client, 0))
                self.follow()


class DriverOfFirst(SimulatedDriver):
    """Driver of the device that stands for all: the chunks that it sends come back to it."""

    def __init__(self, job: SimulatedDevices, device: int, *, num_few: int, num_members: int) -> None:
        super().__init__(job, device)
        self._devices = job
        self._num_few = num_few
        self._num_members = num_members
        self._waits = TurnWaits(job.site, job.site.device_hops)

    @override
    def send_chunk(self, send: RingSend) -> None:
        nbytes = true_chunk_bytes(send, self._num_few, self._num_members)
        num_turns = steps_within(send.header.step, self._num_few, self._num_members)
        arrived = self.at_arrival(0, send.header, nbytes * num_turns, None)
        path, (_, priority) = self._devices.site.between_devices[0, send.device], self.chunk_kind(send)
        wait_s = self._waits.between_turns_s(path, nbytes)
        self._devices.engine.move_in_turns(
            ("ring", 0), path, nbytes, num_turns, arrived, priority=priority, wait_s=wait_s
        )


class WorkerRingAlike(WorkerRing):
    """Ring of workers of which the first stands for all.

    Gradients go round one by one, so two members are enough.
    """

    def __init__(self, engine: Engine, job: Job, positions: Sequence[int], on_synced: OnSynced) -> None:
        super().__init__(engine, job, positions, on_synced, num_members=min(2, job.num_workers))
        self._num_workers = job.num_workers
        self._waits = TurnWaits(job.site, job.site.worker_hops)

    @override
    def send(self, worker: int, send: RingSend) -> None:
        nbytes = true_chunk_bytes(send, 2, self._num_workers)
        num_turns = steps_within(send.header.step, 2, self._num_workers)
        arrived = self.at_arrival(worker, send)
        path = self.paths[worker, 1]
        wait_s = self._waits.between_turns_s(path, nbytes)
        self.engine.move_in_turns(("workers", worker), path, nbytes, num_turns, arrived, wait_s=wait_s)


class TurnWaits:
    """Waits in a ring of unlike hops between two chunks on the slowest: see [Note: unlike hops]."""

    def __init__(self, site: Site, hops: Sequence[Hop]) -> None:
        self._links = site.links
        self._alone_links = site.alone_links or site.links
        self._hops = hops
        self._known: dict[tuple[Path, int], float] = {}

    def between_turns_s(self, path: Path, nbytes: int) -> float | None:
        """Return the seconds from the end of a chunk on the slowest hop to the begin of the next.

        None stands for its start-up.
        """
        if not self._hops:
            return None
        if (path, nbytes) not in self._known:
            num_hops = sum(hop.num_alike for hop in self._hops)
            around_s = sum(_alone_s(self._alone_links, hop.path, nbytes) * hop.num_alike for hop in self._hops)
            streaming_s = _alone_s(self._links, path, nbytes) - sum(self._links[link].latency_s for link in path)
            self._known[path, nbytes] = max(0.0, around_s / num_hops - streaming_s)
        return self._known[path, nbytes]


def _alone_s(links: Sequence[Link], path: Path, nbytes: int) -> float:
    return path_alone_s([links[link] for link in path], nbytes)


def steps_within(step: int, num_few: int, num_members: int) -> int:
    """Return how many steps of a ring of all members a step of a ring of few stands for."""
    part = step % (num_few - 1)  # reduce-scatter and all-gather alike
    return (part + 1) * (num_members - 1) // (num_few - 1) - part * (num_members - 1) // (num_few - 1)


def true_chunk_bytes(send: RingSend, num_few: int, num_members: int) -> int:
    """Return the bytes of a chunk if the shard is cut for all members and not for few."""
    return -(-(send.end - send.begin) * DTYPE.itemsize * num_few // num_members)


def with_few_members(job: Job, num_few: int) -> Job:
    """Return the job as the first worker sees it among few others.

    It has its own way to its own device, and along the ring.
    """
    placement, site = job.placement, job.site
    if placement.num_clients != placement.num_devices:
        raise ConfigError(
            f"one worker can stand for all only where each has a device of its own, got {placement.num_clients} "
            f"workers and {placement.num_devices} devices; use as many devices, or few enough workers to simulate each",
            key="num_devices",
        )
    local, last = placement.local_proxies[0], placement.num_devices - 1
    to_next = {(0, 1): site.between_devices[0, 1], (0, num_few - 1): site.between_devices[0, last]} if last else {}
    return replace(
        job,
        site=replace(
            site, push={(0, 0): site.push[0, local]}, pull={(0, 0): site.pull[0, local]}, between_devices=to_next
        ),
        placement=replace(
            placement,
            client_nodes=(0,) * num_few,
            device_nodes=(0,) * num_few,
            local_proxies=tuple(range(num_few)),
            ranks=tuple(range(2 * num_few)),
        ),
        facts=local_tables([RoutingTable(*job.facts[0])] * num_few, range(num_few)),
        slow_downs=(),
    )
