"""Runtime of a rank: it opens the rank's parts in order, and closes them in reverse. Start reading here.

A rank is a worker, a memory device, or both. Start-up is the only time at which workers speak MPI;
what they exchange there are arrays of fixed size, and every step's errors are shared, so that all
ranks raise together and none waits for one that has given up.
"""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpi4py import MPI

from coarse.client.client import Client
from coarse.client.link import DeviceLink
from coarse.client.profiler import measured_facts
from coarse.client.protocol import ClientProtocol
from coarse.errors import CapacityError, CoarseError, ConfigError, DeadRankError, GpuError, UnsupportedError
from coarse.protocol.clock import Clock, WallClock
from coarse.protocol.config import Config
from coarse.protocol.features import part_of, use_features
from coarse.protocol.partition import PartitionTable
from coarse.protocol.partition_file import stated_or_default
from coarse.protocol.place import Anywhere
from coarse.protocol.plan import Facts, Placement
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.service import ProxyService
from coarse.storage.device_file import open_device_file
from coarse.storage.gpu_memory import GpuDeviceMemory
from coarse.storage.region import MemoryFile
from coarse.strategy.decisions import Decisions
from coarse.strategy.named import digest_of, placement_of, strategy_of
from coarse.strategy.strategy import Access, Strategy
from coarse.transport.agreement import (
    agree,
    agree_on_config,
    agree_on_decisions,
    agree_on_digest,
    broadcast_run_name,
    gather_hosts,
    made_by_all,
)
from coarse.transport.comm_world import WHOLE, lack_of_threads
from coarse.transport.device_transport import Carrier, DeviceTransport
from coarse.transport.mailbox import Mailbox
from coarse.transport.mpi import MpiTransport
from coarse.transport.mpirun_watch import end_after_abort
from coarse.transport.node import NodeShare, open_node
from coarse.transport.node_rendezvous import spans_hosts

if TYPE_CHECKING:  # few jobs need it
    from coarse.collectives.shared import SharedByGroups

_POOL = "coarse.pool.carrier:PoolCarrier"
_EMULATED = "coarse.emulation.live:TrainingFactory"


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """Data that a rank has when it opens its parts.

    A communicator is MPI's null if the rank has no such role.
    """

    world: MPI.Comm
    workers: MPI.Comm
    devices: MPI.Comm
    config: Config
    partition: PartitionTable
    placement: Placement
    strategy: Strategy
    decisions: Decisions
    run: str
    """Name of the job on its nodes."""
    clock: Clock

    @property
    def world_rank(self) -> int:
        """Number of this rank among all ranks."""
        return self.world.Get_rank()

    @property
    def client_index(self) -> int | None:
        """Number of this worker; None for another rank."""
        return self.partition.client_of(self.world_rank)

    @property
    def device_index(self) -> int | None:
        """Number of this memory device; None for another rank."""
        return self.partition.device_of(self.world_rank)

    def require_device(self) -> int:
        """Return the number of this memory device."""
        assert self.device_index is not None
        return self.device_index

    @property
    def devices_send(self) -> bool:
        """True if devices send to one another: between nodes, or within one."""
        nodes = self.placement.cluster.device_nodes
        return len(set(nodes)) > 1 or self.strategy.meets_within_nodes

    @property
    def ranks_of_devices(self) -> tuple[int, ...]:
        """Rank of each device in the devices' communicator, by device."""
        order = sorted(self.partition.devices)
        return tuple(order.index(rank) for rank in self.partition.devices)


class LiveFactory:
    """Factory of the parts of a live rank. Another driver gives a Runtime its own parts."""

    def strategy(self, world: MPI.Comm, config: Config) -> Strategy:
        """Return the strategy that the configuration asks for, the same on all ranks, or raise on all."""
        strategy = made_by_all(world, lambda: strategy_of(config))
        agree_on_digest(world, digest_of(strategy), "file of the strategy")
        return strategy

    def partition(self, world: MPI.Comm, hosts: list[str], config: Config) -> PartitionTable:
        """Return the table of workers and memory devices, the same on all ranks, or raise on all."""
        partition = made_by_all(world, lambda: stated_or_default(config.partition, hosts))
        agree_on_digest(world, repr(partition), "partition table")
        return partition

    def placement(self, partition: PartitionTable, config: Config, strategy: Strategy) -> Placement:
        """Return the places of workers and devices, by which the strategy plans."""
        return placement_of(partition, config, strategy)

    def share(self, at: RankContext, opened: ExitStack) -> NodeShare:
        """Return the node's memory, mapped; all ranks call it together.

        Raises:
            CapacityError: a rank of the job has no room for it (on all ranks).
        """
        here = _node_of(at.partition, at.world_rank)
        nodes = sorted({place.node for place in at.partition.places})
        comm = at.world.Split(nodes.index(here), at.world_rank)
        comm.Set_name(f"node{nodes.index(here)}")
        carrier = self.carrier(at)
        files, others, error = {}, {}, None
        try:
            if at.device_index is not None:
                files[at.device_index] = _open_own_memory(at, here, at.device_index)
            if carrier is not None and comm.Get_rank() == 0:
                others = carrier.files(claims=nodes.index(here) == 0)
        except CoarseError as refused:
            error = refused
        try:
            agree(at.world, error)
        except CoarseError:
            for descriptor in (*(file.descriptor for file in files.values()), *others.values()):
                os.close(descriptor)
            raise
        share, lack = None, None
        try:
            share = open_node(
                comm,
                run=at.run,
                num_endpoints=len(at.placement.ranks),
                own_files=files,
                others=others,
                world_ranks=tuple(p.rank for p in at.partition.places if p.node == here),
                timeout_s=at.config.startup_timeout_s,
            )
            for memory in share.memories.values():
                opened.callback(memory.close)
            for descriptor in share.others.values():
                opened.callback(os.close, descriptor)
            if carrier is not None:
                carrier.open(share.others)
                share = replace(share, carrier=carrier)
        except (CapacityError, ConfigError, GpuError, UnsupportedError) as refused:
            lack = refused
        agree(at.world, lack)
        assert share is not None
        comm.Free()  # the node's ranks have met
        if carrier is not None:
            agree(at.world, carrier.check())
        return share

    def mailbox(self, at: RankContext, endpoint: int, share: NodeShare) -> Mailbox:
        """Return one endpoint's rings and doorbell; the caller closes it."""
        ranks = at.placement.ranks
        near = [e for e, rank in enumerate(ranks) if rank in share.process_ids and e != endpoint]
        mailbox = Mailbox(endpoint, len(ranks), tuple(near), share.control, at.run)
        for peer in near:
            if ranks[peer] != at.world_rank:
                mailbox.watch(os.pidfd_open(share.process_ids[ranks[peer]]), peer)
        return mailbox

    def client(self, at: RankContext, protocol: ClientProtocol, mailbox: Mailbox, share: NodeShare) -> Client:
        """Return the client by which a worker pushes and pulls."""
        link = DeviceLink(protocol, at.placement, mailbox, at.clock, at.config.stall_timeout_s)
        return Client(link, share.memories)

    def service(self, at: RankContext, protocol: ProxyProtocol, mailbox: Mailbox, share: NodeShare) -> ProxyService:
        """Return the service of this memory device."""
        transport = self.transport(at, share) if at.devices_send else None
        return ProxyService(
            protocol, at.placement, mailbox, share.memories, transport, at.clock, process_ids=share.process_ids
        )

    def transport(self, at: RankContext, share: NodeShare) -> DeviceTransport:
        """Return this device's transport to the other devices."""
        if share.carrier is not None:
            return share.carrier.transport()
        nodes = at.placement.device_nodes
        near = frozenset(device for device, node in enumerate(nodes) if node == nodes[at.require_device()])
        return MpiTransport(at.devices, at.ranks_of_devices, near)

    def carrier(self, at: RankContext) -> Carrier | None:
        """Return the carrier of messages between devices; None if they use MPI, or send none."""
        if at.config.pool is None or not at.devices_send:
            return None
        devices = range(len(at.partition.devices))
        names = tuple(at.placement.describe(at.placement.num_clients + device) for device in devices)
        made: Carrier = part_of(_POOL)(at.config.pool, self.device_hosts(at), names, at.device_index, at.run, at.clock)
        return made

    def device_hosts(self, at: RankContext) -> tuple[int, ...]:
        """Return by device the number of the host whose caches it uses."""
        return at.placement.device_nodes

    def open_fast_paths(self, at: RankContext, client: Client) -> None:
        """Open the client's arenas, and give devices in ordinary machine memory access to its tensors.

        Devices have no such access if their bytes were put in a place of their own, or if workers load from and store
        to them: the user then wants to see the cost of moving bytes there.
        """
        node = at.placement.client_nodes[client.protocol.client]
        near = at.placement.devices_on(node)
        places = {place.rank: place.memory for place in at.partition.places}
        client.arenas.open()
        if at.strategy.access is Access.COHERENT:
            return
        if at.config.lend_from_bytes and all(places[at.partition.devices[d]] == Anywhere() for d in near):
            client.lending.open(near, at.config.lend_from_bytes)

    def facts(self, at: RankContext, client: Client) -> Facts:
        """Return this worker's facts, measured on this machine or read from a file."""
        if at.decisions.facts is not None:
            return at.decisions.facts[client.protocol.client]
        return measured_facts(client, at.strategy, at.placement.cluster, at.clock)


class Runtime:
    """Parts that this rank runs: a client, a proxy, or both.

    The method `close` closes all that was opened, in reverse order. A failed opening closes its parts, too.
    """

    def __init__(
        self, config: Config | Mapping[str, object] | str | Path | None, parts: LiveFactory | None = None
    ) -> None:
        """Open this rank's parts, together with all ranks; `parts` makes those that differ between drivers."""
        self._thread: threading.Thread | None = None
        self.is_closed = False
        with ExitStack() as opened:
            self._at, self._parts = _agreed(config, parts)
            at = self._at
            for communicator in (at.world, at.workers, at.devices):
                opened.callback(self._free, communicator)
            self.world, self.world_rank = at.world, at.world_rank
            self.config, self.partition, self.placement = at.config, at.partition, at.placement
            self.strategy, self.decisions = at.strategy, at.decisions
            self.client_index, self.device_index = at.client_index, at.device_index
            self.worker_comm = at.workers
            """The workers' communicator, for the one thread of a worker that calls MPI while it trains."""
            self._users_comm, self.groups_comm = (
                MPI.COMM_NULL if self.client_index is None else at.workers.Dup() for _ in range(2)
            )
            """Communicator of the workers that groups alone use."""
            for communicator in (self._users_comm, self.groups_comm):
                opened.callback(self._free, communicator)
            share = self._parts.share(at, opened)
            self._service = self._make_service(share, opened)
            self.client = self._make_client(share, opened)
            self.groups: SharedByGroups | None = None
            """What all groups of workers share in this process; None before there are any (coarse.parallel.groups)."""
            agree(at.world, None)  # every endpoint has its doorbell now
            self._leaving(opened)
            self._opened = opened.pop_all()

    @property
    def is_device_only(self) -> bool:
        """True if this rank only serves."""
        return self.client_index is None

    @property
    def has_light_devices(self) -> bool:
        """True if some ranks of the job only serve."""
        return bool(set(self.partition.devices) - set(self.partition.workers))

    def start(self) -> None:
        """Serve to the end on a memory device; on a worker profile, and return when all have."""
        if self._service is not None and self.client is None:
            self._service.serve()
            return
        if self._service is not None:
            self._thread = threading.Thread(
                target=self._serve_beside, name="coarse-proxy", daemon=True
            )
            self._thread.start()
        self._parts.open_fast_paths(self._at, self.require_client())
        self.profile()

    def _serve_beside(self) -> None:
        """Serve in a thread of a worker; an error there ends the job as one in the main thread does."""
        assert self._service is not None
        try:
            self._service.serve()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)

    def profile(self) -> None:
        """Measure routes and switch to the next epoch together with all workers (COARSE III-E).

        After a StallError it may be called again, and waits for the same epoch.
        """
        client = self.require_client()
        protocol = client.protocol
        client.require_quiet()
        if not protocol.is_profiling:  # else this call goes on where one that stalled has stopped
            client.link.tell(protocol.on_profiled(self._parts.facts(self._at, client)))
        client.link.wait_for(lambda: protocol.has_all_tables, self.config.startup_timeout_s, "all workers' facts")
        protocol.end_profile()

    def require_client(self) -> Client:
        """Return the client of this worker."""
        assert self.client is not None
        return self.client

    @property
    def facts(self) -> tuple[Facts, ...]:
        """Facts of the current epoch by worker, which each has measured and sent to all others."""
        return self.require_client().protocol.facts

    def require_users_comm(self) -> MPI.Intracomm:
        """Return a communicator of the workers that coarse itself does not use."""
        assert isinstance(self._users_comm, MPI.Intracomm)
        return self._users_comm

    def close(self) -> None:
        """Leave the job and tell the devices; a device in this process serves until all workers have left."""
        if not self.is_closed:
            self.is_closed = True
            if self.client_index == 0 and not self.has_failed:
                self._opened.callback(self.decisions.write, self.facts)  # devices are told even where it fails
            self._opened.close()

    def carried_between_nodes(self) -> tuple[int, int]:
        """Return the bytes that this rank's device and groups sent to and received from other nodes."""
        by_device = (0, 0) if self._service is None else self._service.carried_between_nodes()
        by_groups = (0, 0) if self.groups is None else self.groups.traffic.total()
        return by_device[0] + by_groups[0], by_device[1] + by_groups[1]

    @property
    def reduced_bytes(self) -> int | None:
        """Bytes that this worker and the others summed by MPI themselves; None if this rank is no worker."""
        return None if self.client is None else self.client.link.reduced_bytes

    @property
    def has_failed(self) -> bool:
        """True if a peer has died, so that MPI can no longer be ended in order."""
        client_failed = self.client is not None and self.client.link.has_failed
        return client_failed or (self._service is not None and self._service.has_failed)

    def warn_peers(self, text: str) -> None:
        """Tell the node's ranks why this one cannot continue."""
        teller = self.client.link if self.client is not None else self._service
        if teller is not None:
            teller.warn_peers(text)

    def follows(self, error: BaseException) -> bool:
        """Return whether another rank's end caused an error, or another rank raised it first."""
        if isinstance(error, DeadRankError):
            return True
        return isinstance(error, CoarseError) and self.client is not None and self.client.link.knows_of_death()

    def hand_on_death(self) -> None:
        """Tell the node's ranks who has died, before this one ends for that reason."""
        if self.client is not None:
            self.client.link.hand_on_death()

    def last_words(self) -> list[str]:
        """Return the known reasons why this rank is being ended."""
        return self.client.link.obituaries() if self.client is not None else []

    # --- opening

    def _make_service(self, share: NodeShare, opened: ExitStack) -> ProxyService | None:
        at, device = self._at, self.device_index
        if device is None:
            return None
        mailbox = self._parts.mailbox(at, at.placement.num_clients + device, share)
        opened.callback(mailbox.close)
        memory = share.memories[device]
        keys = (memory.keys_begin, memory.keys_bytes) if isinstance(memory, GpuDeviceMemory) else None
        protocol = ProxyProtocol(device, at.placement, memory.capacity_bytes, keys)
        return self._parts.service(at, protocol, mailbox, share)

    def _leaving(self, opened: ExitStack) -> None:
        """Register the first steps of `close`, before it closes anything, the last step first."""
        opened.callback(self._join_service)
        if self.client is not None:
            opened.callback(self.client.leave)

    def _join_service(self) -> None:
        """Wait without a limit until a device of this process has served all workers, or one has died."""
        if self._thread is not None:
            self._thread.join()

    def _free(self, communicator: MPI.Comm) -> None:
        """Give a communicator back: all of its ranks do, unless one has died."""
        if communicator != MPI.COMM_NULL and self.is_closed and not self.has_failed:
            communicator.Free()

    def _make_client(self, share: NodeShare, opened: ExitStack) -> Client | None:
        at, index = self._at, self.client_index
        if index is None:
            return None
        mailbox = self._parts.mailbox(at, index, share)
        opened.callback(mailbox.close)
        protocol = ClientProtocol(index, at.placement)
        return self._parts.client(at, protocol, mailbox, share)


def end_job() -> None:
    """End all ranks of the job, this one included, even if they wait for something."""
    if WHOLE.Get_size() == 1:
        os._exit(1)  # nobody to tell; and without mpirun MPI_Abort only adds noise
    if spans_hosts(os.environ):
        end_after_abort(os.environ, os.getpid())
    WHOLE.Abort(1)


def _agreed(
    config: Config | Mapping[str, object] | str | Path | None, given: LiveFactory | None
) -> tuple[RankContext, LiveFactory]:
    """Agree with all ranks on the configuration before any opens its memory.

    Return the agreed data, and the factory of the ranks' parts. All ranks call it together.
    """
    world = WHOLE.Dup()
    agree(world, lack_of_threads())
    hosts = gather_hosts(world)
    settled = agree_on_config(world, config)
    made_by_all(world, lambda: use_features(settled.features))
    parts = given or (LiveFactory() if settled.emulate is None else part_of(_EMULATED)(settled))
    strategy = parts.strategy(world, settled)
    partition = parts.partition(world, hosts, settled)
    placement = parts.placement(partition, settled, strategy)
    rank = world.Get_rank()
    is_worker, is_device = (index is not None for index in (partition.client_of(rank), partition.device_of(rank)))
    opening = RankContext(
        world=world,
        workers=world.Split(0 if is_worker else MPI.UNDEFINED, rank),
        devices=world.Split(0 if is_device else MPI.UNDEFINED, rank),
        config=settled,
        partition=partition,
        placement=placement,
        strategy=strategy,
        decisions=agree_on_decisions(world, settled.decision, placement.cluster),
        run=broadcast_run_name(world),
        clock=WallClock(),
    )
    return opening, parts


def _open_own_memory(at: RankContext, node: str, device: int) -> MemoryFile:
    """Open this rank's memory file, where the partition table puts it."""
    return open_device_file(
        at.world_rank,
        [place for place in at.partition.places if place.node == node],
        f"coarse-{at.run}-{device}",
        at.config.device_capacity_bytes,
        [place for place in at.partition.places if place.node != node],
    )


def _node_of(partition: PartitionTable, rank: int) -> str:
    return next(place.node for place in partition.places if place.rank == rank)
