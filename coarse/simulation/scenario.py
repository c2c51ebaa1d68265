# Pure: no MPI, threads, clock or environment.
"""Question about a training job on a machine, and the simulated job that answers it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from coarse.client.probing import Probing
from coarse.errors import ConfigError
from coarse.hardware.accelerator import EAGER_FRAMEWORK, MemoryAccount, Optimizer, Training, require_fit
from coarse.hardware.compute import ComputeProfile
from coarse.hardware.degradation import Degradation, rate_changes
from coarse.hardware.machine import Machine
from coarse.hardware.models import Model
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind
from coarse.protocol.config import LIVE_COLLECTIVE, MeasuredRouting
from coarse.protocol.fields import check
from coarse.protocol.plan import Cluster, Facts, Placement
from coarse.protocol.units import MIB
from coarse.simulation.cluster import ModelledCluster
from coarse.simulation.jitter import Jitter
from coarse.simulation.job import Gradient, Job, gradients_of
from coarse.simulation.profiling import measured_facts, probe_s
from coarse.simulation.question import JobOptions
from coarse.simulation.sites import STEPWISE_RANKS, Site
from coarse.simulation.training import simulate
from coarse.simulation.view import Simulate, alone, decide, decided_job
from coarse.strategy.named import BUILT_IN, DENSE, strategy_named
from coarse.strategy.rounds import Round, first_to_devices
from coarse.strategy.routing import RoutingTable, local_tables
from coarse.strategy.strategy import Exchanges, Strategy, require_lag


@dataclass(frozen=True, kw_only=True)
class Scenario(JobOptions):
    """Training job on one machine; frozen, so that sweeps are `dataclasses.replace`.

    Without memory devices there are as many as workers, and one for the mode dense. Without `collective` devices sum in
    place, or in a ring if one worker stands for all.
    """

    machine: Machine
    model: Model
    profile: ComputeProfile
    mode: str
    """Name of the mode in `strategy.named.BUILT_IN`, or MODULE:CLASS or FILE.py:CLASS."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Fields of a strategy that is not coarse's own."""
    worker_ring: PathKind = "auto"
    """Paths of the workers' ring within a node; "pcie" leaves NVLink out."""
    copies: PathKind = "pcie"
    """Paths of pushes and pulls; "auto" takes an NVLink where there is one."""
    device_ring: PathKind | None = None
    """Paths between sync cores; by default the CCI links if the machine has any, else "auto"."""
    hold_back: bool | None = None
    """True if the workers' ring waits for the end of backward. By default it does so as live: the part that the mode
    coarse leaves to the workers waits, all-reduce does not. COARSE's evaluation has both wait (II-B, III-F)."""
    ring_slow_down: float = 1.0
    """Factor on a worker's compute time while a ring of the workers shares its processor."""
    bucket_bytes: int = 25 * MIB
    routing: MeasuredRouting = field(default_factory=MeasuredRouting)
    num_sync_groups: int = 2
    slow_downs: tuple[float, ...] = ()
    jitter: Jitter | None = None
    """Random increase of every iteration's compute time."""
    degradations: tuple[Degradation, ...] = ()
    """Changes of links while the job runs; the job learns of them by measurement only."""
    stepwise_ranks: int = STEPWISE_RANKS
    """Most workers of which each is simulated; beyond, the first stands for all (see representative.py)."""

    def __post_init__(self) -> None:
        check(self)
        if self.profile.model != self.model.name:
            raise ConfigError(
                f"the compute times are those of {self.profile.model!r} but the model is {self.model.name!r}; "
                "measure or choose a profile of the same model",
                key="profile",
            )
        if self.mode == DENSE and self.num_nodes > 1:
            raise ConfigError(
                f"the one memory device of dense serves the workers of its node, and there are {self.num_nodes} nodes; "
                "leave dense out, or ask for one node (--nodes 1)",
                key="num_nodes",
            )
        if self.one_stands_for_all and self.mode not in BUILT_IN:
            raise ConfigError(
                f"beyond {self.stepwise_ranks} workers one stands for all, in plans of coarse's own strategies alone, "
                f"got {self.num_workers} with {self.mode}; ask for fewer workers",
                key="num_workers",
            )
        if self.collective not in (None, "ring") and self.one_stands_for_all:
            raise ConfigError(
                f"beyond {self.stepwise_ranks} workers one stands for all in a ring, got {self.num_workers} with "
                f"collective {self.collective!r}; use the ring, or fewer workers",
                key="collective",
            )
        if self.one_stands_for_all and (self.profile_every or self.degradations):
            raise ConfigError(
                f"beyond {self.stepwise_ranks} workers the first stands for all, and so its links for all links, got "
                f"{self.num_workers}; degrade links, and profile while a job runs, with fewer workers",
                key="num_workers",
            )

    @property
    def one_stands_for_all(self) -> bool:
        """True if there are too many workers to simulate each."""
        return self.num_workers > self.stepwise_ranks

    @property
    def device_collective(self) -> str:
        """Collective by which the mode coarse's devices sum."""
        return self.collective or ("ring" if self.one_stands_for_all else LIVE_COLLECTIVE)

    @cached_property
    def strategy(self) -> Strategy:
        """Strategy that plans tensors and decides rounds."""
        return strategy_named(
            self.mode,
            policy=self.policy,
            options=self.options,
            routing=self.routing,
            collective=self.device_collective,
            hold_back=self.hold_back,
        )

    def job(self, run: Simulate = simulate) -> Job:
        """Return the job to simulate; `run` simulates the strategy's trials."""
        return self._as_it_runs(self.decide(self.measured_job(), run))

    def job_of(self, facts: tuple[Facts, ...], decided: Round) -> Job:
        """Return the job to simulate, decided elsewhere."""
        return self._as_it_runs(decided_job(self.job_by(facts), decided))

    def _as_it_runs(self, job: Job) -> Job:
        # Sums that are late leave no moment without any for measuring anew.
        is_adaptive = self.strategy.probes and self.strategy.uses_devices and not job.lag
        return replace(
            job,
            rate_changes=rate_changes(job.site.links, self.degradations),
            profile_every=self.profile_every if is_adaptive else 0,
        )

    def measured_job(self) -> Job:
        """Return the job with facts as measured on its site; the devices sum all gradients."""
        job = self.job_by(())
        if not self.strategy.uses_devices:
            return job
        cluster = job.placement.cluster
        if self.one_stands_for_all:
            return replace(job, facts=self._facts_of_one(job.site, cluster))
        return replace(job, facts=measured_facts(job.site, cluster, self.strategy))

    def job_by(self, facts: tuple[Facts, ...]) -> Job:
        """Return the job with given facts; the devices sum all gradients."""
        site = self.cluster.site(one_stands_for_all=self.one_stands_for_all)
        return self._build(site, self.cluster.placement, facts)

    def decide(self, job: Job, run: Simulate = simulate) -> Job:
        """Return the job as the strategy decides it on the links that it has."""
        return decide(job, self.strategy, run)

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """Tensors that are synchronised, in the order of backward; updates come after backward and a step."""
        every = gradients_of(self.model, self.profile, bucket_bytes=self.bucket_bytes)
        found = tuple(gradient.sent(self.strategy, self.num_workers) for gradient in every)
        if self.strategy.exchanges is Exchanges.GRADIENTS:
            return found
        return tuple(replace(bucket, ready_s=self.profile.total_backward_s) for bucket in found)  # after the step

    @cached_property
    def cluster(self) -> ModelledCluster:
        """Ranks of the job on the machine."""
        return ModelledCluster(
            machine=self.machine, strategy=self.strategy, num_workers=self.num_workers, num_devices=self.num_devices,
            num_nodes=self.num_nodes, worker_ring=self.worker_ring, copies=self.copies, device_ring=self.device_ring,
            num_sync_groups=self.num_sync_groups,
        )  # fmt: skip

    @property
    def places(self) -> EndpointPlacement:
        """Endpoints of the machine that play workers and memory devices, in the order of their rings."""
        return self.cluster.places

    @property
    def slow_down_of_workers(self) -> tuple[float, ...]:
        """Factor on each worker's compute time, its own times its node's; () if all are equal."""
        if not self.slow_downs and all(each.compute_slow_down == 1 for each in self.machine.unlike_nodes):
            return ()
        own = self.slow_downs or (1.0,) * self.num_workers
        machine = self.machine
        nodes = [machine.compute_slow_down(machine.node_of(worker)) for worker in self.places.workers]
        return tuple(factor * of_node for factor, of_node in zip(own, nodes, strict=True))

    def gpu_memory(self, optimizer: Optimizer = Optimizer.ADAM) -> MemoryAccount:
        """Return the account of one worker's GPU at the peak of an iteration.

        Only all-reduce keeps optimizer states there; memory devices hold them otherwise, by COARSE's word (III-B, D).
        Live, a worker of DistributedOptimizer holds them in every mode.

        Raises:
            CapacityError: the GPU has less.
        """
        training = Training(
            model=self.model,
            precision=self.profile.precision,
            optimizer=optimizer,
            framework=EAGER_FRAMEWORK,
            states_on_device=self.strategy.uses_devices,
        )
        return require_fit(training, self.profile.batch, self.machine.accelerator.memory_bytes)

    def _build(self, site: Site, placement: Placement, facts: tuple[Facts, ...]) -> Job:
        gradients, period, lag = self.gradients, self.strategy.period, require_lag(self.strategy)
        return Job(
            site=site,
            placement=placement,
            facts=facts,
            gradients=gradients,
            forward_s=self.profile.total_forward_s,
            backward_s=self.profile.total_backward_s,
            round=first_to_devices(len(gradients), len(gradients)),
            ring_slow_down=self.ring_slow_down,
            slow_downs=self.slow_down_of_workers,
            jitter=self.jitter,
            num_iterations=-(-self.num_iterations // period) * period + 2 * lag,
            lag=lag,
            one_stands_for_all=self.one_stands_for_all,
        )

    def _facts_of_one(self, site: Site, cluster: Cluster) -> tuple[Facts, ...]:
        """Return the facts of equal workers, which measure equal times, each to its local proxy."""
        local = cluster.local_devices[0]
        probing = Probing(devices=(local,), local=local, sizes=self.strategy.probes)
        seconds = {probe: probe_s(alone(site), 0, probe) for probe in probing.probes()}
        first = RoutingTable(*probing.facts(seconds, self.strategy, 0, cluster))
        return local_tables((first,) * self.num_workers, cluster.local_devices)
