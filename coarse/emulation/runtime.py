"""Opens a rank's parts as live training does, with the fabric's mailboxes and the adders in emulated time."""

import mmap
import os
from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from coarse.client.client import Client
from coarse.emulation.adder import Adder
from coarse.emulation.fabric_child import FabricChild
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.pace import Pace
from coarse.emulation.profiling import EmulatedProfiler
from coarse.emulation.service import EmulatedService, Work
from coarse.emulation.site_file import FabricOrder
from coarse.errors import ConfigError
from coarse.protocol.partition import PartitionTable
from coarse.protocol.plan import RoutingTable
from coarse.protocol.units import MIB
from coarse.proxy.service import ProxyService
from coarse.runtime import Runtime
from coarse.simulation.adaptation import Adaptation, Decide, Profile
from coarse.simulation.job import Job
from coarse.transport.mailbox import Mailbox, control_bytes
from coarse.transport.node import NodeShare

_NO_ROUTE = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=8 * MIB)
"""Of a job whose workers synchronise by themselves."""


class EmulatedRuntime(Runtime):
    """All that this rank runs in an emulated job; one host, however many nodes the machine has."""

    service_type = EmulatedService
    _fabric: FabricChild | None = None
    """Of worker 0, which starts it."""
    _adaptation: Adaptation | None = None
    """Of a worker whose job measures its tables."""

    def __init__(
        self, job: Job, partition: PartitionTable, *, dilation: float, decide: Decide | None = None
    ) -> None:
        """With `decide`, by which worker 0 decides anew for all, tables are measured and not the job's own."""
        self.job = job
        self._decide = decide
        self.start_profile_s = 0.0
        """Emulated seconds for which all was measured before the first iteration."""
        self.measured_tables: tuple[RoutingTable, ...] = ()
        """What came out then, of all clients."""
        self._wanted_partition = partition
        self._dilation = dilation
        settings: Mapping[str, object] = {
            "collective": "ring",
            "num_sync_groups": job.placement.num_sync_groups,
            "stall_timeout_s": 300.0,
        }
        super().__init__(settings)
        if self._fabric is not None:
            self._fabric.await_ready()
        self.world.Barrier()

    def take_punctuality(self, since_s: float) -> tuple[int, int, float] | None:
        """On worker 0 after `close`: as FabricChild.take_punctuality; None on all others."""
        return None if self._fabric is None else self._fabric.take_punctuality(since_s)

    # --- opening

    def look(self, iteration: int, run_s: float) -> Profile:
        """Measure again, with nothing under way; all workers alike. `job` is decided anew where links have changed.

        Its tables are used once `profile` has been called.
        """
        assert self._adaptation is not None
        self.require_client().require_quiet()
        before = self.job
        num_changed, seconds = self._profiler.carry_out(self._adaptation.look())
        self.job = self._adaptation.job
        return Profile.between(
            before, self.job, iteration=iteration, begin_s=run_s, end_s=run_s + seconds, num_changed=num_changed
        )

    def _choose_table(self, client: Client) -> RoutingTable:
        """The job's, measured by all workers when they first profile."""
        if self._decide is not None and self._adaptation is None:
            self._profiler = EmulatedProfiler(self.worker_comm, client.link, self.box, self.pace)
            self._adaptation = Adaptation(self.job, self._profiler.agree_on(self._decide))
            self.measured_tables, self.start_profile_s = self._profiler.carry_out(self._adaptation.measure_all())
            self.job = self._adaptation.job
        return self.job.tables[client.protocol.client] if self.job.tables else _NO_ROUTE

    def _agreed_partition(self, world: MPI.Comm, hosts: list[str]) -> PartitionTable:
        wanted = self._wanted_partition
        if len(wanted.places) != world.Get_size():
            raise ConfigError(
                f"the job has {wanted.num_workers} workers and {wanted.num_devices} memory devices but "
                f"{world.Get_size()} ranks were started; start one for each"
            )
        self.world = world
        return wanted

    def _open_memory(self, world: MPI.Comm, run: str) -> NodeShare:
        share = super()._open_memory(world, run)
        origin = np.array([self._clock.now_s()])
        world.Bcast(origin, root=0)
        self.memories = share.memories
        self.pace = Pace(float(origin[0]), self._dilation)
        self._control = self._open_control(run, share, float(origin[0]))
        return share

    def _open_control(self, run: str, share: NodeShare, origin_s: float) -> memoryview:
        """The mailboxes' segment, with an endpoint more for the fabric; worker 0 starts that."""
        nbytes = control_bytes(len(self.placement.ranks) + 1)
        owner = np.zeros(2, np.int64)
        root = self.placement.ranks[0]
        if self.world_rank == root:
            descriptor = os.memfd_create(f"coarse-{run}-emulated", 0)
            os.ftruncate(descriptor, nbytes)
            owner[:] = os.getpid(), descriptor
        self.world.Bcast(owner, root=root)
        if self.world_rank != root:
            descriptor = os.open(f"/proc/{owner[0]}/fd/{owner[1]}", os.O_RDWR)
        control = mmap.mmap(descriptor, nbytes)
        self.world.Barrier()
        process = np.zeros(1, np.int64)
        if self.world_rank == root:
            self._fabric = FabricChild(self._fabric_order(run, share, origin_s), descriptor, root)
            process[0] = self._fabric.process_id
        self.world.Bcast(process, root=root)
        self._fabric_process = int(process[0])
        os.close(descriptor)
        return memoryview(control)

    def _fabric_order(self, run: str, share: NodeShare, origin_s: float) -> FabricOrder:
        return FabricOrder(
            site=self.job.site,
            run=run,
            process_ids=tuple(share.process_ids[rank] for rank in self.placement.ranks),
            origin_s=origin_s,
            dilation=self._dilation,
            rate_changes=self.job.rate_changes,
        )

    def _mailbox(self, endpoint: int, share: NodeShare, run: str) -> Mailbox:
        ranks = self.placement.ranks
        fabric = len(ranks)
        peers = tuple(e for e in range(fabric) if e != endpoint)
        box = EmulatedMailbox(
            endpoint,
            fabric + 1,
            (*peers, fabric),
            self._control,
            run,
            num_clients=self.placement.num_clients,
            pace=self.pace,
        )
        if endpoint == self.client_index:
            self.box = box
        for peer in peers:
            box.watch(os.pidfd_open(share.process_ids[ranks[peer]]), peer)
        box.watch_fabric(self._fabric_process, self.world_rank)
        return box

    def _make_service(self, share: NodeShare, run: str, devices: MPI.Comm) -> ProxyService | None:
        service = super()._make_service(share, run, devices)
        if isinstance(service, EmulatedService):
            service.emulate(Adder[Work](self.pace, self.job.site.adder_bytes_per_s))
        return service
