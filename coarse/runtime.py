"""Opens this rank's parts in order, and closes them in reverse. Start reading here.

A rank is a worker, a memory device, or both. Start-up is the only time at which workers speak MPI;
what they exchange there are arrays of fixed size, and every step's errors are shared, so that all
ranks raise together and none waits for one that has given up.
"""

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from mpi4py import MPI

from coarse.client.client import Client
from coarse.client.link import DeviceLink
from coarse.client.profiler import choose_table
from coarse.client.protocol import ClientProtocol
from coarse.client.snapshots import ClientSnapshots
from coarse.client.states import DeviceStates
from coarse.collectives.shared import SharedByGroups
from coarse.errors import CapacityError, CoarseError, DeadRankError, UnsupportedError
from coarse.protocol.clock import WallClock
from coarse.protocol.composition import placement_of, routing_of
from coarse.protocol.config import Config
from coarse.protocol.partition import PartitionTable
from coarse.protocol.partition_file import stated_or_default
from coarse.protocol.plan import RoutingTable
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.service import ProxyService
from coarse.storage.device_file import open_device_file
from coarse.storage.region import MemoryFile
from coarse.transport.agreement import (
    agree,
    agree_on_config,
    agree_on_digest,
    broadcast_run_name,
    gather_hosts,
)
from coarse.transport.mailbox import Mailbox
from coarse.transport.mpi import MpiTransport
from coarse.transport.node import NodeShare, open_node


class Runtime:
    """All that this rank runs: a client, a proxy, or both."""

    service_type: type[ProxyService] = ProxyService
    """What serves a memory device; emulated runs have their own."""

    def __init__(self, config: Config | Mapping[str, object] | str | Path | None) -> None:
        world = MPI.COMM_WORLD.Dup()
        self.world_rank = world.Get_rank()
        agree(world, _lack_of_threads())
        hosts = gather_hosts(world)
        self.config = agree_on_config(world, config)
        self.partition = self._agreed_partition(world, hosts)
        self.placement = placement_of(self.partition, self.config)
        self.client_index = self.partition.client_of(self.world_rank)
        self.device_index = self.partition.device_of(self.world_rank)
        self._clock = WallClock()
        run = broadcast_run_name(world)
        share = self._open_memory(world, run)
        workers = world.Split(0 if self.client_index is not None else MPI.UNDEFINED, self.world_rank)
        self.worker_comm = workers
        """The workers' communicator, for the one thread of a worker that calls MPI while it trains."""
        devices = world.Split(0 if self.device_index is not None else MPI.UNDEFINED, self.world_rank)
        self._service = self._make_service(share, run, devices)
        self.client = self._make_client(share, run)
        self.groups = None if self.client is None else SharedByGroups(self.client, workers, self.placement)
        """What all groups of workers share in this process; None where this rank is no worker."""
        self._snapshots = self._make_snapshots()
        agree(world, None)  # every endpoint has its doorbell now
        self._thread: threading.Thread | None = None
        self.is_closed = False

    @property
    def is_device_only(self) -> bool:
        """Whether this rank only serves."""
        return self.client_index is None

    @property
    def has_light_devices(self) -> bool:
        """Whether some ranks of the job only serve."""
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
            table = self._choose_table(client)
            client.link.tell(protocol.on_profiled(table))
        client.link.wait_for(
            lambda: protocol.has_all_tables, self.config.startup_timeout_s, "all workers' routing tables"
        )
        protocol.end_profile()

    def _choose_table(self, client: Client) -> RoutingTable:
        """As configured, or as measured on this machine."""
        index = client.protocol.client
        return choose_table(
            client,
            routing_of(self.config),
            self.placement.devices_on(self.placement.client_nodes[index]),
            self.placement.local_proxies[index],
            self._clock,
        )

    def require_client(self) -> Client:
        """The client of this worker."""
        assert self.client is not None
        return self.client

    def require_groups(self) -> SharedByGroups:
        """What all groups of workers share in this process."""
        assert self.groups is not None
        return self.groups

    def require_snapshots(self) -> ClientSnapshots:
        """The snapshots of this worker."""
        assert self._snapshots is not None
        return self._snapshots

    def close(self) -> None:
        """Leave: tell the devices; a device in this process serves until all workers have left."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.groups is not None:
            self.groups.close()
        if self.client is not None:
            try:
                self.require_snapshots().finish()
            finally:
                self.client.link.leave()
        if self._thread is not None:
            self._thread.join()

    def carried_between_nodes(self) -> tuple[int, int]:
        """Bytes that this rank's device, and its groups of workers, sent to and received from other nodes."""
        by_device = (0, 0) if self._service is None else self._service.carried_between_nodes()
        by_groups = (0, 0) if self.groups is None else self.groups.traffic.total()
        return by_device[0] + by_groups[0], by_device[1] + by_groups[1]

    @property
    def reduced_bytes(self) -> int | None:
        """Bytes that this worker and the others summed by MPI themselves; None where this rank is no worker."""
        return None if self.client is None else self.client.link.reduced_bytes

    @property
    def has_failed(self) -> bool:
        """Whether a peer has died, so that MPI can no longer be ended in order."""
        client_failed = self.client is not None and self.client.link.has_failed
        return client_failed or (self._service is not None and self._service.has_failed)

    def warn_peers(self, text: str) -> None:
        """Tell the node's ranks why this one cannot go on."""
        teller = self.client.link if self.client is not None else self._service
        if teller is not None:
            teller.warn_peers(text)

    def follows(self, error: BaseException) -> bool:
        """Whether an error has come because another rank has ended, or of ranks that raised it together not first."""
        if isinstance(error, DeadRankError):
            return True
        return isinstance(error, CoarseError) and self.client is not None and self.client.link.knows_of_death()

    def hand_on_death(self) -> None:
        """Tell the node's ranks who has died, before this one ends for that."""
        if self.client is not None:
            self.client.link.hand_on_death()

    def last_words(self) -> list[str]:
        """What is known of the reason why this rank is being ended."""
        return self.client.link.obituaries() if self.client is not None else []

    # --- opening

    def _agreed_partition(self, world: MPI.Comm, hosts: list[str]) -> PartitionTable:
        partition, error = None, None
        try:
            partition = stated_or_default(self.config.partition, hosts)
        except (CoarseError, OSError) as refused:
            error = refused
        agree(world, error)
        assert partition is not None
        agree_on_digest(world, repr(partition), "partition table")
        return partition

    def _open_memory(self, world: MPI.Comm, run: str) -> NodeShare:
        here = _node_of(self.partition, self.world_rank)
        nodes = sorted({place.node for place in self.partition.places})
        on_node = tuple(p.rank for p in self.partition.places if p.node == here)
        comm = world.Split(nodes.index(here), self.world_rank)
        comm.Set_name(f"node{nodes.index(here)}")
        files: dict[int, MemoryFile] = {}
        error = None
        try:
            if self.device_index is not None:
                files[self.device_index] = self._open_own_memory(here, run)
        except CoarseError as refused:
            error = refused
        try:
            agree(world, error)
        except CoarseError:
            for file in files.values():
                os.close(file.descriptor)
            raise
        share, error = None, None
        try:
            share = open_node(
                comm,
                run=run,
                num_endpoints=len(self.placement.ranks),
                own_files=files,
                world_ranks=on_node,
                timeout_s=self.config.startup_timeout_s,
            )
        except CapacityError as refused:
            error = refused
        agree(world, error)
        assert share is not None
        return share

    def _open_own_memory(self, node: str, run: str) -> MemoryFile:
        """This rank's memory file, where the partition table puts it."""
        return open_device_file(
            self.world_rank,
            [place for place in self.partition.places if place.node == node],
            f"coarse-{run}-{self.device_index}",
            self.config.device_capacity_bytes,
        )

    def _mailbox(self, endpoint: int, share: NodeShare, run: str) -> Mailbox:
        ranks = self.placement.ranks
        near = [e for e, rank in enumerate(ranks) if rank in share.process_ids and e != endpoint]
        mailbox = Mailbox(endpoint, len(ranks), tuple(near), share.control, run)
        for peer in near:
            if ranks[peer] != self.world_rank:
                mailbox.watch(os.pidfd_open(share.process_ids[ranks[peer]]), peer)
        return mailbox

    def _make_service(
        self, share: NodeShare, run: str, devices: MPI.Comm
    ) -> ProxyService | None:
        device = self.device_index
        if device is None:
            return None
        spans_nodes = len(set(self.placement.device_nodes)) > 1
        transport = None
        if spans_nodes or self.placement.collective == "ring":
            order = sorted(self.partition.devices)
            ranks = tuple(order.index(rank) for rank in self.partition.devices)
            transport = MpiTransport(devices, ranks)
        memory = share.memories[device]
        protocol = ProxyProtocol(device, self.placement, memory.capacity_bytes)
        mailbox = self._mailbox(self.placement.num_clients + device, share, run)
        return self.service_type(
            protocol, self.placement, mailbox, share.memories, transport, self._clock
        )

    def _make_snapshots(self) -> ClientSnapshots | None:
        if self.client is None or self.client_index is None:
            return None
        states = DeviceStates(self.client, self.placement.local_proxies[self.client_index])
        return ClientSnapshots(states, self.placement.num_clients)

    def _make_client(self, share: NodeShare, run: str) -> Client | None:
        index = self.client_index
        if index is None:
            return None
        link = DeviceLink(
            ClientProtocol(index, self.placement),
            self.placement,
            self._mailbox(index, share, run),
            self._clock,
            self.config.stall_timeout_s,
        )
        return Client(link, share.memories)


def end_job() -> None:
    """End all ranks of the job, this one too, whatever they wait for."""
    if MPI.COMM_WORLD.Get_size() == 1:
        os._exit(1)  # nobody to tell; and without mpirun MPI_Abort only adds noise
    MPI.COMM_WORLD.Abort(1)


def _lack_of_threads() -> CoarseError | None:
    """Why this MPI cannot be called by a progress thread beside others; None where it can."""
    levels = ("single", "funneled", "serialized", "multiple")
    level = levels[MPI.Query_thread()]
    if level == levels[-1]:
        return None
    return UnsupportedError(
        f"MPI was started with MPI_THREAD_{level.upper()}, and coarse calls it from threads of its own; have mpi4py "
        "start it with thread_level='multiple', its default, or use an MPI library built for that"
    )


def _node_of(partition: PartitionTable, rank: int) -> str:
    return next(place.node for place in partition.places if place.rank == rank)
