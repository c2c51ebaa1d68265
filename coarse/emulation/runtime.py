"""Parts of a rank, opened as in live training, with the fabric's mailboxes and emulated adders."""

import mmap
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from coarse.client.client import Client
from coarse.emulation.device import EmulatedService
from coarse.emulation.fabric import FabricReport
from coarse.emulation.fabric_child import FabricChild
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.profiling import EmulatedProfiler
from coarse.emulation.site_file import FabricOrder
from coarse.emulation.transport import EmulatedTransport
from coarse.emulation.work import EmulatedWork
from coarse.errors import ConfigError
from coarse.protocol.config import Config
from coarse.protocol.partition import PartitionTable
from coarse.protocol.plan import Facts, Placement
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.service import ProxyService
from coarse.runtime import LiveFactory, RankContext, Runtime
from coarse.simulation.adaptation import Adaptation, Decide, Profile
from coarse.simulation.job import Job
from coarse.storage.region import DeviceMemory
from coarse.strategy.strategy import Strategy
from coarse.transport.mailbox import Mailbox, control_bytes
from coarse.transport.node import NodeShare


def shared_files(world: MPI.Comm, root: int, name: str, count: int) -> list[Path]:
    """Make files in a rank's memory, and open them on all.

    The paths are this process's own, and end with their descriptors.
    """
    owner = np.zeros(1 + count, np.int64)
    if world.Get_rank() == root:
        owner[:] = os.getpid(), *(os.memfd_create(f"coarse-emulated-{name}", 0) for _ in range(count))
    world.Bcast(owner, root=root)
    process, *descriptors = owner.tolist()
    if world.Get_rank() != root:
        descriptors = [os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR) for descriptor in descriptors]
    world.Barrier()
    return [Path("/proc/self/fd") / str(descriptor) for descriptor in descriptors]


class EmulatedFactory(LiveFactory):
    """Parts of a rank in emulated time; one host, however many nodes the machine has."""

    job: Job
    """Job as decided last."""

    def __init__(self, job: Job | None, partition: PartitionTable | None, *, decide: Decide | None) -> None:
        """Take a job and a partition; None if they follow from a configuration.

        Then a subclass of this class makes them.
        """
        if job is not None:
            self.job = job
        self.fabric: FabricChild | None = None
        """Fabric process; on worker 0, which starts it."""
        self.box: EmulatedMailbox | None = None
        """Mailbox; on a worker."""
        self.memories: Mapping[int, DeviceMemory] = {}
        self.profiler: EmulatedProfiler | None = None
        self.adaptation: Adaptation | None = None
        """Adaptation; on a worker whose job measures its tables."""
        self.start_profile_s = 0.0
        """Emulated seconds for which all was measured before the first iteration."""
        self.measured_facts: tuple[Facts, ...] = ()
        """Facts that were measured then, of all clients."""
        self._wanted_partition = partition
        self._decide = decide
        self._control = memoryview(b"")
        self._fabric_process = -1

    def strategy(self, world: MPI.Comm, config: Config) -> Strategy:
        """Return the job's strategy."""
        return self.job.strategy

    def partition(self, world: MPI.Comm, hosts: list[str], config: Config) -> PartitionTable:
        """Return the job's partition."""
        wanted = self._wanted_partition
        assert wanted is not None
        if len(wanted.places) != world.Get_size():
            raise ConfigError(
                f"the job has {wanted.num_workers} workers and {wanted.num_devices} memory devices but "
                f"{world.Get_size()} ranks were started; start one for each"
            )
        return wanted

    def placement(self, partition: PartitionTable, config: Config, strategy: Strategy) -> Placement:
        """Return the placement planned by the modelled nodes, while all ranks are on this host."""
        modelled = self.job.placement.cluster
        if not modelled.num_devices:
            return super().placement(partition, config, strategy)
        return replace(super().placement(partition, config, strategy), modelled=modelled)

    def share(self, at: RankContext, opened: ExitStack) -> NodeShare:
        """Share the node's memories; worker 0 starts the fabric.

        The mailboxes' segment has an endpoint more for it.
        """
        share = super().share(at, opened)
        self.memories = share.memories
        nbytes = control_bytes(len(at.placement.ranks) + 1)
        root = at.placement.ranks[0]
        (control,) = shared_files(at.world, root, "control", 1)
        descriptor = int(control.name)
        os.ftruncate(descriptor, nbytes)
        self._control = memoryview(mmap.mmap(descriptor, nbytes))
        process = np.zeros(1, np.int64)
        if at.world_rank == root:
            self.fabric = FabricChild(self._order(at, share), descriptor, root)
            process[0] = self.fabric.process_id
        at.world.Bcast(process, root=root)
        self._fabric_process = int(process[0])
        os.close(descriptor)
        return share

    def _order(self, at: RankContext, share: NodeShare) -> FabricOrder:
        return FabricOrder(
            site=self.job.site,
            run=at.run,
            process_ids=tuple(share.process_ids[rank] for rank in at.placement.ranks),
            worker_nodes=at.placement.cluster.worker_nodes,
            rate_changes=self.job.rate_changes,
        )

    def device_hosts(self, at: RankContext) -> tuple[int, ...]:
        """Return the modelled nodes of devices."""
        return self.job.placement.device_nodes

    def mailbox(self, at: RankContext, endpoint: int, share: NodeShare) -> Mailbox:
        """Return a mailbox whose records that announce bytes go through the fabric."""
        ranks = at.placement.ranks
        fabric = len(ranks)
        peers = tuple(e for e in range(fabric) if e != endpoint)
        box = EmulatedMailbox(
            endpoint,
            fabric + 1,
            (*peers, fabric),
            self._control,
            at.run,
            placement=at.placement,
        )
        if endpoint == at.client_index:
            self.box = box
        for peer in peers:
            box.watch(os.pidfd_open(share.process_ids[ranks[peer]]), peer)
        box.watch_fabric(self._fabric_process, at.world_rank)
        return box

    def service(self, at: RankContext, protocol: ProxyProtocol, mailbox: Mailbox, share: NodeShare) -> ProxyService:
        """Return a service whose sums and chunks take the time of the links and the adder's rate."""
        assert isinstance(mailbox, EmulatedMailbox)
        return EmulatedService(
            protocol,
            at.placement,
            mailbox,
            share.memories,
            EmulatedTransport(self.transport(at, share), protocol, mailbox),
            at.clock,
            EmulatedWork(protocol.device, mailbox),
        )

    def open_fast_paths(self, at: RankContext, client: Client) -> None:
        """Do nothing: bytes that are not pushed, and answers without a waiting rank, take no emulated time."""

    def facts(self, at: RankContext, client: Client) -> Facts:
        """Return the job's facts, measured by all workers when they first profile."""
        if self._decide is not None and self.adaptation is None:
            assert self.box is not None
            self.profiler = EmulatedProfiler(at.workers, client.link, self.box)
            self.adaptation = Adaptation(self.job, self.profiler.agree_on(self._decide))
            self.measured_facts, self.start_profile_s = self.profiler.carry_out(self.adaptation.measure_all())
            self.job = self.adaptation.job
        return self.job.facts[client.protocol.client] if self.job.facts else ()


class EmulatedRank:
    """Rank of an emulated job: a runtime of emulated parts, and their measurements."""

    def __init__(
        self,
        job: Job,
        partition: PartitionTable,
        *,
        decide: Decide | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Start the runtime and the fabric.

        With `decide`, by which worker 0 decides anew for all, tables are measured and not the job's own. `settings` add
        to the configuration that follows from the job.
        """
        self.parts = EmulatedFactory(job, partition, decide=decide)
        of_job = {"num_sync_groups": job.placement.num_sync_groups, "stall_timeout_s": 300.0}
        self.runtime = Runtime({**of_job, **(settings or {})}, self.parts)
        if self.parts.fabric is not None:
            self.parts.fabric.await_ready()
        self.runtime.world.Barrier()

    def take_report(self) -> FabricReport | None:
        """Return the fabric's report on worker 0, after the runtime's `close`; None on all others.

        It is that of FabricChild.take_report.
        """
        return None if self.parts.fabric is None else self.parts.fabric.take_report()

    def look(self, iteration: int) -> Profile:
        """Measure again, with nothing under way; all workers together, at one emulated time.

        The parts' `job` is decided anew if links have changed. Its tables are used once the runtime's `profile` has
        been called.
        """
        adaptation, profiler = self.parts.adaptation, self.parts.profiler
        assert adaptation is not None
        assert profiler is not None
        self.runtime.require_client().require_quiet()
        before = self.parts.job
        num_changed, seconds = profiler.carry_out(adaptation.look())
        self.parts.job = adaptation.job
        assert self.parts.box is not None
        end_s = self.parts.box.now_s
        return Profile.between(
            before, self.parts.job, iteration=iteration, begin_s=end_s - seconds, end_s=end_s, num_changed=num_changed
        )
