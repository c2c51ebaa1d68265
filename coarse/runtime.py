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

from coarse.agreement import (
    agree,
    agree_on_config,
    agree_on_digest,
    broadcast_run_name,
    gather_hosts,
)
from coarse.client.client import Client
from coarse.client.link import DeviceLink
from coarse.client.machine import ClientMachine
from coarse.client.profiler import choose_table
from coarse.client.snapshots import ClientSnapshots
from coarse.client.states import DeviceStates
from coarse.clock import WallClock
from coarse.config import Config, FixedRouting
from coarse.errors import CoarseError, ConfigError
from coarse.memory import check_capacity, total_bytes
from coarse.node import NodeShare, open_node
from coarse.plan import Placement
from coarse.proxy.machine import ProxyMachine
from coarse.proxy.service import ProxyService
from coarse.records import Mailbox
from coarse.topology import (
    PartitionTable,
    partition_from_nodes,
    partition_from_text,
    partition_from_toml,
)
from coarse.transport import MpiTransport


class Runtime:
    """All that this rank runs: a client, a proxy, or both."""

    service_type: type[ProxyService] = ProxyService
    """What serves a memory device; emulated runs have their own."""

    def __init__(self, config: Config | Mapping[str, object] | str | Path | None) -> None:
        world = MPI.COMM_WORLD.Dup()
        self.world_rank = world.Get_rank()
        hosts = gather_hosts(world)
        self.config = agree_on_config(world, config)
        self.partition = self._agreed_partition(world, hosts)
        self.placement = _placement_of(self.partition, self.config)
        _require_near_proxies(self.config, self.placement)
        self.client_index = self.partition.client_of(self.world_rank)
        self.device_index = self.partition.device_of(self.world_rank)
        self._clock = WallClock()
        run = broadcast_run_name(world)
        share = self._open_memory(world, run)
        workers = world.Split(0 if self.client_index is not None else MPI.UNDEFINED, self.world_rank)
        self.worker_comm = workers
        """The workers' communicator, for the one thread of a worker that calls MPI (mode "allreduce")."""
        devices = world.Split(0 if self.device_index is not None else MPI.UNDEFINED, self.world_rank)
        self._service = self._make_service(share, run, devices)
        self.client = self._make_client(share, run)
        self._snapshots = self._make_snapshots()
        agree(world, None)  # every endpoint has its doorbell now
        self._thread: threading.Thread | None = None
        self.is_closed = False

    @property
    def is_device_only(self) -> bool:
        """Whether this rank only serves."""
        return self.client_index is None

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
        """Measure routes and switch to the next epoch together with all workers (COARSE III-E)."""
        client, index = self.require_client(), self.client_index
        client.require_quiet()
        assert index is not None
        node = self.placement.client_nodes[index]
        table = choose_table(
            client,
            self.config.routing,
            self.placement.devices_on(node),
            self.placement.local_proxies[index],
            self._clock,
        )
        next_epoch = client.machine.epoch + 1
        client.link.tell(client.machine.on_profiled(table))
        client.link.wait_for(
            lambda: client.machine.epoch == next_epoch,
            self.config.startup_timeout_s,
            "all workers' routing tables",
        )

    def require_client(self) -> Client:
        """The client of this worker."""
        assert self.client is not None
        return self.client

    def require_snapshots(self) -> ClientSnapshots:
        """The snapshots of this worker."""
        assert self._snapshots is not None
        return self._snapshots

    def close(self) -> None:
        """Leave: tell the devices; a device in this process serves until all workers have left."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.client is not None:
            try:
                self.require_snapshots().finish()
            finally:
                self.client.link.leave()
        if self._thread is not None:
            self._thread.join()

    @property
    def has_failed(self) -> bool:
        """Whether a peer has died, so that MPI can no longer be ended in order."""
        client_failed = self.client is not None and self.client.link.has_failed
        return client_failed or (self._service is not None and self._service.has_failed)

    def abort(self, text: str) -> None:
        """Tell the node's ranks why, and end the whole job."""
        teller = self.client.link if self.client is not None else self._service
        if teller is not None:
            teller.warn_peers(text)
        end_job()

    def last_words(self) -> list[str]:
        """What is known of the reason why this rank is being ended."""
        return self.client.link.obituaries() if self.client is not None else []

    # --- opening

    def _agreed_partition(self, world: MPI.Comm, hosts: list[str]) -> PartitionTable:
        partition, error = None, None
        try:
            partition = _partition_of(self.config, hosts)
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
        wanted = self.config.device_capacity_bytes
        error = None
        try:
            if wanted is not None:
                check_capacity(wanted, len(self.partition.devices_on(here)))
        except CoarseError as refused:
            error = refused
        agree(world, error)
        return open_node(
            comm,
            run=run,
            num_endpoints=len(self.placement.ranks),
            own_devices=() if self.device_index is None else (self.device_index,),
            capacity_bytes=wanted or total_bytes(),
            world_ranks=on_node,
            timeout_s=self.config.startup_timeout_s,
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
        machine = ProxyMachine(device, self.placement, memory.capacity_bytes)
        mailbox = self._mailbox(self.placement.num_clients + device, share, run)
        return self.service_type(
            machine, self.placement, mailbox, share.memories, transport, self._clock
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
            ClientMachine(index, self.placement),
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


def _partition_of(config: Config, hosts: list[str]) -> PartitionTable:
    if config.partition is None:
        return partition_from_nodes(hosts)
    if config.partition.endswith(".toml"):
        return partition_from_toml(config.partition, hosts)
    return partition_from_text(config.partition, hosts)


def _require_near_proxies(config: Config, placement: Placement) -> None:
    """Refuse fixed routes to devices that a worker cannot reach through mapped memory."""
    if not isinstance(config.routing, FixedRouting):
        return
    for key in ("latency_proxy", "bandwidth_proxy"):
        proxy = getattr(config.routing, key)
        for node in placement.nodes:
            near = placement.devices_on(node)
            if proxy is not None and proxy not in near:
                raise ConfigError(
                    f"routing.{key} must be a memory device of every worker's node, one of {near} for "
                    f"worker {placement.clients_on(node)[0]}, got {proxy}; leave it out for the local one",
                    key=key,
                )


def _node_of(partition: PartitionTable, rank: int) -> str:
    return next(place.node for place in partition.places if place.rank == rank)


def _placement_of(partition: PartitionTable, config: Config) -> Placement:
    nodes = sorted({place.node for place in partition.places})
    return Placement(
        client_nodes=tuple(
            nodes.index(partition.node_of_client(c)) for c in range(partition.num_workers)
        ),
        device_nodes=tuple(
            nodes.index(partition.node_of_device(d)) for d in range(partition.num_devices)
        ),
        local_proxies=partition.local_proxies,
        ranks=(*partition.workers, *partition.devices),
        collective=config.collective,
        num_sync_groups=config.num_sync_groups,
    )
