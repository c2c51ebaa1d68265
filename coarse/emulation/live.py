"""Training of a user on an absent machine: live ranks whose communication takes emulated time."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.client.protocol import ClientProtocol
from coarse.emulation.absences import LineTeller
from coarse.emulation.account import Iteration, Logged, OwnStep, WorkerLog, last_of_each, read_logs, report_of
from coarse.emulation.compute import ComputeClock, Stretches, flops_per_cpu_s, scale_of
from coarse.emulation.compute_file import ComputeTimes, own_script, read_compute_times, write_compute_times
from coarse.emulation.link import EmulatedLink, WorkerClock
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.modelled import modelled_cluster
from coarse.emulation.own_calls import is_gathered, own_calls
from coarse.emulation.own_sharded_step import own_sharded_step
from coarse.emulation.own_step import own_step
from coarse.emulation.ranges import with_range
from coarse.emulation.runtime import EmulatedFactory, shared_files
from coarse.emulation.timeline import TRACE_FILE, LastIterations
from coarse.errors import ConfigError, UnsupportedError
from coarse.gpu.interface import is_on_gpu
from coarse.gpu.staging import host_staging
from coarse.hardware.machine import Machine
from coarse.hardware.presets import machine_named
from coarse.protocol import override
from coarse.protocol.clock import WallClock, replace_sleep, replace_time
from coarse.protocol.config import BY_WALL, Config, EmulateSettings
from coarse.protocol.costs import no_cost
from coarse.protocol.features import costs_of, part_of, use_features
from coarse.protocol.partition import PartitionTable
from coarse.protocol.place import GpuMemory
from coarse.protocol.plan import Facts, Placement
from coarse.protocol.records import Descriptor
from coarse.runtime import LiveFactory, RankContext
from coarse.simulation.adaptation import keep_tables
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.job import Job
from coarse.strategy.named import BUILT_IN
from coarse.strategy.rounds import Round
from coarse.strategy.sharding import SHARDINGS
from coarse.strategy.strategy import Strategy
from coarse.transport.agreement import made_by_all
from coarse.transport.comm_world import wait_within
from coarse.transport.mailbox import Mailbox
from coarse.transport.node import NodeShare

Part = TypeVar("Part")
_FEW = 2
"""Number of iterations of each worker that are simulated for ranges."""
_STALL_FACTOR = 10.0
"""Factor on the longest wait of live training. Ranks share this machine's cores, and all compute for real."""


class EmulatedClient(Client):
    """Client of a worker, whose calls are coarse's own work."""

    link: EmulatedLink

    @override
    def push_pull(
        self, descriptor: Descriptor, array: np.ndarray | None, out: np.ndarray | None, *, present: bool = True,
        is_waited: bool = False,
    ) -> Handle:  # fmt: skip
        if is_on_gpu(array) or is_on_gpu(out):
            raise UnsupportedError(
                f"rank {self.protocol.client}: {descriptor.name!r} is on a GPU, and emulated runs compute on the CPU; "
                "leave out --machine, or run the model on the CPU"
            )
        with self.link.worker_clock.own_work(f"push {descriptor.name}"):
            self.link.note(descriptor, is_workers=False)
            return super().push_pull(descriptor, array, out, present=present, is_waited=is_waited)

    def part(self, make: Callable[[Client], Part]) -> Part:
        """Make a feature's part of the client.

        Raises:
            UnsupportedError: the feature states the cost of none of its records.
        """
        for spec in use_features(()):
            module, records = spec.records.partition(":")[0], part_of(spec.records)
            is_its = make.__module__.startswith(f"{module.rpartition('.')[0]}.")
            if is_its and not set(records) & set(costs_of(spec.name)):
                raise no_cost(records[0])
        return super().part(make)

    @override
    def take(self, key: int, out: np.ndarray | None, timeout_s: float | None) -> tuple[np.ndarray, bool]:
        with self.link.worker_clock.own_work():
            return super().take(key, out, timeout_s)

    def is_complete(self, key: int) -> bool:
        """Return whether a key is complete, with all messages up to now.

        A look that finds nothing takes a moment.
        """
        with self.link.worker_clock.own_work():
            self.link.catch_up()
            found = super().is_complete(key)
            if not found:
                self.link.look_in_vain()
            return found


class TrainingFactory(EmulatedFactory):
    """Parts of a rank that runs a user's script: see EmulatedFactory."""

    def __init__(self, config: Config) -> None:
        """Take the machine's name from the configuration; `strategy` looks it up."""
        assert config.emulate is not None
        self._settings: EmulateSettings = config.emulate
        self._scale = 1.0
        self._times: ComputeTimes | None = None
        self._config: Config | None = None
        self._has_begun = False
        self._logs: list[Path] = []
        """Logs of each worker, in the memory of the first."""
        super().__init__(None, None, decide=None)

    @cached_property
    def _machine(self) -> Machine:
        return machine_named(self._settings.machine)

    def strategy(self, world: MPI.Comm, config: Config) -> Strategy:
        """Return the configuration's strategy."""
        return LiveFactory.strategy(self, world, config)

    def partition(self, world: MPI.Comm, hosts: list[str], config: Config) -> PartitionTable:
        """Return the configuration's partition; all ranks are on this host, and none has two roles."""
        partition = LiveFactory.partition(self, world, hosts, config)
        made_by_all(world, lambda: _require_emulated(partition, hosts, config))
        if self._settings.compute_file is not None:
            path, accelerator = Path(self._settings.compute_file), self._machine.accelerator.name
            script = own_script() if world.Get_rank() in partition.workers else None
            self._times = made_by_all(world, lambda: read_compute_times(path, accelerator, script))
        return partition

    def placement(self, partition: PartitionTable, config: Config, strategy: Strategy) -> Placement:
        """Return the placement planned by the modelled nodes."""
        self._config = config
        counts = partition.num_workers, partition.num_devices
        self.job = _job_on(modelled_cluster(self._machine, self._settings, *counts, config, strategy))
        self._decide = keep_tables if strategy.probes else None
        return super().placement(partition, config, strategy)

    def share(self, at: RankContext, opened: ExitStack) -> NodeShare:
        """Share the node's memories; at the end worker 0 prints the account of the run."""
        share = super().share(at, opened)
        self._logs = shared_files(at.world, at.placement.ranks[0], "log", at.placement.num_clients)
        for path in self._logs:
            opened.callback(os.close, int(path.name))
        self._scale = self._settled_scale(at)
        if self.fabric is not None:
            self.fabric.await_ready()
            opened.callback(self._say, at)
        return share

    @override
    def client(self, at: RankContext, protocol: ClientProtocol, mailbox: Mailbox, share: NodeShare) -> Client:
        assert isinstance(mailbox, EmulatedMailbox)
        stretches = Stretches(self._times)
        compute = ComputeClock(self._scale, is_by_wall=self._settings.compute == BY_WALL)
        clock = WorkerClock(mailbox, compute, stretches)
        stall_s = _STALL_FACTOR * at.config.stall_timeout_s
        log = WorkerLog(self._logs[protocol.client], stretches)
        link = EmulatedLink(protocol, at.placement, mailbox, at.clock, stall_s, clock, log)
        client = EmulatedClient(link, share.memories)
        client.before_leaving.append(log.write)
        if self._settings.touches == "tensors" and (protocol.client, client.states.device) in self.job.site.load:
            link.charge_touches(client.states.device)
        client.before_leaving.append(LineTeller(at.run, protocol.client).close)
        wait_within(link.within_world)
        host_staging().refusal = (
            f"rank {protocol.client}: tensors on a GPU have no emulated times, since emulated runs compute on the CPU; "
            "leave out --machine, or run the model on the CPU"
        )
        replace_sleep(partial(_sleep, link))  # what a script models by sleeping is emulated
        return client

    def facts(self, at: RankContext, client: Client) -> Facts:
        """Return a worker's facts, measured when all first profile, before the run begins."""
        assert isinstance(client.link, EmulatedLink)
        with client.link.worker_clock.own_work():  # workers measure at equal times
            facts = super().facts(at, client)
            if not self._has_begun:
                self._has_begun = True
                client.link.begin_run()
                if self._settings.script_clock == "emulated":
                    client.before_leaving.append(replace_time(client.link.worker_clock.now_s))
        return facts

    def _settled_scale(self, at: RankContext) -> float:
        """Return the scale as stated, or of the file of compute times, or measured by the first rank.

        It is the same on all.
        """
        scale = np.array([self._settings.compute_scale or (self._times.scale if self._times is not None else 0.0)])
        if at.world_rank == 0 and not scale[0]:
            scale[0] = scale_of(self._machine.accelerator, flops_per_cpu_s())
        at.world.Bcast(scale, root=0)
        return float(scale[0])

    def _own_step(self, mode: str, logs: Sequence[Logged], iterations: Sequence[Iteration]) -> OwnStep | str:
        """Return the last iterations, simulated; or the reason why they are not."""
        sharding = SHARDINGS.get(logs[0].mode)
        replays: partial[OwnStep | str]
        if sharding is not None and sharding.replays_by:
            replays = partial(part_of(sharding.replays_by), logs=logs)
            own = replays(self.job, iterations=iterations, with_others=True)
        elif logs[0].options and is_gathered(logs[0], iterations):
            replays = partial(own_sharded_step, logs=logs)
            own = replays(self.job, iterations=iterations, with_others=True)
        elif is_gathered(logs[0], iterations):
            replays = partial(own_calls, logs=logs)
            own = replays(self.job, iterations=iterations)
        elif mode in BUILT_IN:
            replays = partial(own_step, num_workers=len(logs))
            own = replays(self.job, iterations=iterations, cluster_of=self._cluster_of)
        else:
            return "a strategy of a file"
        if isinstance(own, str):
            return own
        few = [row for rows in last_of_each(iterations, len(logs), _FEW) for row in rows]
        return with_range(
            own, self.job, lambda job, compute: replays(job, iterations=few, compute=compute), self._settings.machine,
            lambda machine: self._cluster_of(self.job.strategy, machine),
            is_share_assumed=self._settings.compute_scale is None and self._settings.compute_file is None,
            slows_rings=replays.func in (own_step, own_sharded_step),
        )  # fmt: skip

    def _cluster_of(self, strategy: Strategy, machine: Machine | None = None) -> ModelledCluster:
        """Return the places of these ranks under another strategy, or on another machine."""
        assert self._config is not None
        workers, devices = self.job.num_workers, self.job.placement.num_devices
        count = strategy.num_devices(devices, workers)
        return modelled_cluster(machine or self._machine, self._settings, workers, count, self._config, strategy)

    def _say(self, at: RankContext) -> None:
        """Print the account of the run and write it, once all ranks have left."""
        assert self.fabric is not None
        if read_logs(self._logs[:1]) is None:
            return  # this worker has failed, and said why
        fabric = self.fabric.take_report()
        logs = read_logs(self._logs)
        if logs is None:  # others have failed, and said why
            return
        links = [(link.name, link.bytes_per_s) for link in self.job.site.links]
        simulated = partial(self._own_step, at.config.mode, logs)
        report = report_of(self._settings, self._scale, logs, fabric, links, simulated, at.config, self._times)
        if self._settings.save_compute is not None:
            accelerator = self._machine.accelerator.name
            measured = [log.stretches_s for log in logs]
            write_compute_times(Path(self._settings.save_compute), own_script(), accelerator, self._scale, measured)
        print(report.text(), flush=True)
        out = Path(self._settings.out)
        if not report.rows():
            report.write(out)
            return
        drawn = LastIterations(logs, report.iterations, fabric.recent)
        report.write(out, [drawn.timeline(report.mode)])
        drawn.write_trace(out / TRACE_FILE, report.mode)


def _job_on(cluster: ModelledCluster) -> Job:
    """Return the job's links and places, without gradients: these are the script's."""
    return Job(
        site=cluster.site(), placement=cluster.placement, facts=(), gradients=(), forward_s=0.0, backward_s=0.0,
        round=Round(by=()),
    )  # fmt: skip


def _require_emulated(partition: PartitionTable, hosts: list[str], config: Config) -> None:
    """Raise ConfigError for settings that an emulated run cannot have."""
    if len(set(hosts)) > 1:
        raise ConfigError(
            f"an emulated run has all ranks on one host, got {sorted(set(hosts))}; state its nodes by --nodes",
            key="emulate",
        )
    if both := sorted(set(partition.workers) & set(partition.devices)):
        raise ConfigError(
            f"ranks {both} are worker and memory device at once, and an emulated run tells their times apart; give "
            "each role ranks of its own, as --workers 2 --devices 2 does",
            key="partition",
        )
    if config.pool is not None:
        raise ConfigError("an emulated run has no [pool] of this host's; state one in the machine's file", key="pool")
    if any(isinstance(place.memory, GpuMemory) for place in partition.places):
        raise ConfigError(
            "memory devices of an emulated run lie in this host's memory; leave cuda: out", key="partition"
        )


def _sleep(link: EmulatedLink, seconds: float) -> None:
    """Let emulated time pass for the main thread; other threads sleep really."""
    if threading.current_thread() is not threading.main_thread():
        WallClock().sleep_s(seconds)
        return
    WallClock().sleep_s(min(seconds, 0.0))  # refuses what it always refuses
    link.compute(seconds)

