"""Opens a rank's parts as live training does, with the fabric's mailboxes and the adders in emulated time."""

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from coarse.emulated.adder import Adder
from coarse.emulated.mailbox import EmulatedMailbox
from coarse.emulated.pace import Pace
from coarse.emulated.service import EmulatedService, Work
from coarse.emulated.site_file import FabricOrder, order_text
from coarse.errors import CoarseError, ConfigError
from coarse.node import NodeShare
from coarse.plan import RoutingTable
from coarse.proxy.service import ProxyService
from coarse.records import Mailbox, control_bytes
from coarse.runtime import Runtime
from coarse.simulation.job import Job
from coarse.topology import PartitionTable
from coarse.units import MIB

_NO_ROUTE = RoutingTable(threshold_bytes=0, latency_proxy=0, bandwidth_proxy=0, partition_bytes=8 * MIB)
"""Of a job whose workers synchronise by themselves."""


class EmulatedRuntime(Runtime):
    """All that this rank runs in an emulated job; one host, whatever the machine is."""

    service_type = EmulatedService
    _fabric: "subprocess.Popen[str] | None" = None
    """Of worker 0, which starts it."""

    def __init__(self, job: Job, partition: PartitionTable, *, dilation: float) -> None:
        if len(set(job.placement.device_nodes) | set(job.placement.client_nodes)) > 1:
            raise ConfigError("an emulated job has one node; simulate jobs of several (coarse predict)")
        self.job = job
        self._wanted_partition = partition
        self._dilation = dilation
        settings: Mapping[str, object] = {
            "collective": "ring",
            "num_sync_groups": job.placement.num_sync_groups,
            "stall_timeout_s": 300.0,
        }
        super().__init__(settings)
        if self._fabric is not None:
            self._await_fabric(self._fabric)
        self.world.Barrier()

    def take_punctuality(self, since_s: float) -> tuple[int, int, float] | None:
        """On worker 0 after `close`: transfers that began at an emulated time or later, how many of them
        overran, and by how many emulated seconds at worst."""
        if self._fabric is None:
            return None
        assert self._fabric.stdout is not None
        begins_s, lates_s = json.loads(self._fabric.stdout.readline())
        self._fabric.wait(timeout=60)
        counted = [late_s for begin_s, late_s in zip(begins_s, lates_s, strict=True) if begin_s >= since_s]
        return len(counted), sum(late_s > 0 for late_s in counted), max(counted, default=0.0)

    def profile(self) -> None:
        """Take the tables of the job, which were measured on the model of its links."""
        client, index = self.require_client(), self.client_index
        assert index is not None
        next_epoch = client.machine.epoch + 1
        table = self.job.tables[index] if self.job.tables else _NO_ROUTE
        client.link.tell(client.machine.on_profiled(table))
        client.link.wait_for(
            lambda: client.machine.epoch == next_epoch,
            self.config.startup_timeout_s,
            "all workers' routing tables",
        )

    # --- opening

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
        if self.world_rank == root:
            self._start_fabric(descriptor, run, share, origin_s)
        os.close(descriptor)
        return memoryview(control)

    def _start_fabric(self, descriptor: int, run: str, share: NodeShare, origin_s: float) -> None:
        order = FabricOrder(
            site=self.job.site,
            run=run,
            process_ids=tuple(share.process_ids[rank] for rank in self.placement.ranks),
            origin_s=origin_s,
            dilation=self._dilation,
        )
        self._fabric = subprocess.Popen(
            [sys.executable, "-m", "coarse.emulated.fabric_process", str(descriptor)],
            pass_fds=(descriptor,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._fabric.stdin is not None
        self._fabric.stdin.write(order_text(order))
        self._fabric.stdin.close()

    @staticmethod
    def _await_fabric(fabric: "subprocess.Popen[str]") -> None:
        assert fabric.stdout is not None
        if fabric.stdout.readline() != "ready\n":
            raise CoarseError("the fabric process could not start; what it printed above says why")

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
        return box

    def _make_service(self, share: NodeShare, run: str, devices: MPI.Comm) -> ProxyService | None:
        service = super()._make_service(share, run, devices)
        if isinstance(service, EmulatedService):
            service.emulate(Adder[Work](self.pace, self.job.site.adder_bytes_per_s))
        return service
