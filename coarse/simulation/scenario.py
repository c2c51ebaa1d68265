# Pure: no MPI, threads, clock or environment.
"""A question about a training job on a machine, and the simulated job that answers it."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coarse.client.dual_sync import IterationTimes, SyncRates, best_proxy_bytes, split_keys
from coarse.errors import ConfigError
from coarse.hardware.accelerator import EAGER_FRAMEWORK, MemoryAccount, Optimizer, Training, require_fit
from coarse.hardware.compute import ComputeProfile
from coarse.hardware.degradation import Degradation, rate_changes
from coarse.hardware.links import Link
from coarse.hardware.machine import Machine
from coarse.hardware.models import Model
from coarse.hardware.placement import EndpointPlacement, place
from coarse.hardware.wiring import PathKind
from coarse.protocol.composition import WHOLE_BYTES
from coarse.protocol.config import COLLECTIVES, LIVE_COLLECTIVE, MeasuredRouting
from coarse.protocol.plan import Placement, RoutingTable
from coarse.protocol.units import MIB
from coarse.simulation.jitter import Jitter
from coarse.simulation.job import Gradient, Job, gradients_of
from coarse.simulation.policies import Simulate, with_best_split
from coarse.simulation.profiling import local_tables, measured_tables, ring_bytes_per_s
from coarse.simulation.ring_order import in_ring_order
from coarse.simulation.site_of_one import site_of_one
from coarse.simulation.sites import STEPWISE_RANKS, Path, Site, coarse_site, dense_site, placement_of, reachable_proxies
from coarse.simulation.training import simulate

_RING_BYTES = 4 * MIB
"""What ring neighbours exchange when the profiler measures BW_proxy and BW_GPU."""


class Mode(enum.StrEnum):
    """Who synchronises."""

    DENSE = "dense"
    """One memory device behind coherent loads and stores (COARSE III-B)."""
    ALLREDUCE = "allreduce"
    """The workers, in a ring."""
    COARSE = "coarse"
    """Memory devices, and by dual synchronisation the workers too."""


class Policy(enum.StrEnum):
    """How the mode coarse decides what goes to the memory devices."""

    AUTO = "auto"
    """By simulating the iteration; routes too."""
    PAPER = "paper"
    """By T_train of COARSE III-F, which leaves out push and pull."""
    DEVICES = "devices"
    """Everything."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One training job on one machine; frozen, so that sweeps are `dataclasses.replace`."""

    machine: Machine
    model: Model
    profile: ComputeProfile
    mode: Mode
    num_workers: int
    num_devices: int = 0
    """Memory devices; by default as many as workers (one for the mode dense)."""
    num_nodes: int = 1
    policy: Policy = Policy.AUTO
    worker_ring: PathKind = "auto"
    """What the workers' ring uses within a node; "pcie" leaves NVLink out."""
    copies: PathKind = "pcie"
    """What pushes and pulls use; "auto" takes an NVLink where there is one."""
    device_ring: PathKind | None = None
    """What sync cores use among themselves; by default the CCI links if the machine has any, else "auto"."""
    hold_back: bool | None = None
    """Whether the workers' ring waits for the end of backward. By default as it does live: what the mode coarse leaves
    to the workers waits, all-reduce does not. COARSE's evaluation has both wait (II-B, III-F)."""
    ring_slow_down: float = 1.0
    """How many times longer a worker computes while a ring of the workers shares its processor."""
    bucket_bytes: int = 25 * MIB
    routing: MeasuredRouting = field(default_factory=MeasuredRouting)
    num_sync_groups: int = 2
    collective: str | None = None
    """How the mode coarse's devices sum: "in_place", live training's default, or "ring" (COARSE IV-A). None: in place,
    or in a ring where one worker stands for all."""
    slow_downs: tuple[float, ...] = ()
    jitter: Jitter | None = None
    """By how much every iteration's compute takes longer by chance."""
    num_iterations: int = 3
    profile_every: int = 0
    """Iterations after which the mode coarse profiles again and decides anew; 0: never."""
    degradations: tuple[Degradation, ...] = ()
    """What happens to links while the job runs; nobody is told but by measurement."""
    stepwise_ranks: int = STEPWISE_RANKS
    """Up to so many workers each is simulated; beyond, the first stands for all (see macro.py)."""

    def __post_init__(self) -> None:
        if self.profile.model != self.model.name:
            raise ConfigError(
                f"the compute times are those of {self.profile.model!r} but the model is {self.model.name!r}; "
                "measure or choose a profile of the same model",
                key="profile",
            )
        if self.mode is Mode.DENSE and self.num_nodes > 1:
            raise ConfigError(
                f"the one memory device of dense serves the workers of its node, and there are {self.num_nodes} nodes; "
                "leave dense out, or ask for one node (--nodes 1)",
                key="num_nodes",
            )
        if self.collective not in (None, *COLLECTIVES):
            raise ConfigError(
                f"collective must be one of {', '.join(COLLECTIVES)}, got {self.collective!r}; correct it",
                key="collective",
            )
        if self.collective not in (None, "ring") and self.one_stands_for_all:
            raise ConfigError(
                f"beyond {self.stepwise_ranks} workers one stands for all in a ring, got {self.num_workers} with "
                f"collective {self.collective!r}; use the ring, or fewer workers",
                key="collective",
            )
        if self.profile_every < 0:
            raise ConfigError(
                f"a job profiles every so many iterations, 0 for never, got {self.profile_every}", key="profile_every"
            )
        if self.one_stands_for_all and (self.profile_every or self.degradations):
            raise ConfigError(
                f"beyond {self.stepwise_ranks} workers the first stands for all, and so its links for all links, got "
                f"{self.num_workers}; degrade links, and profile while a job runs, with fewer workers",
                key="num_workers",
            )

    @property
    def one_stands_for_all(self) -> bool:
        """Whether there are too many workers to simulate each."""
        return self.num_workers > self.stepwise_ranks

    @property
    def device_collective(self) -> str:
        """How the mode coarse's devices sum."""
        return self.collective or ("ring" if self.one_stands_for_all else LIVE_COLLECTIVE)

    def job(self, run: Simulate = simulate) -> Job:
        """The job to simulate; `run` simulates what the policy tries on the way."""
        job = self._decided(run)
        return replace(
            job,
            rate_changes=rate_changes(job.site.links, self.degradations),
            profile_every=self.profile_every if self.mode is Mode.COARSE else 0,
        )

    def job_by(self, tables: tuple[RoutingTable, ...]) -> Job:
        """The job of the modes coarse and allreduce with given routing tables; all gradients go to the devices."""
        groups = self.num_sync_groups
        placement = placement_of(self.machine, self.places, num_sync_groups=groups, collective=self.device_collective)
        return self._build(self._site(self.places), placement, tables)

    def decide(self, job: Job, run: Simulate = simulate) -> Job:
        """The job with the tables and the split that the policy chooses on the links that it has."""
        match self.policy:
            case Policy.DEVICES:
                return job
            case Policy.PAPER:
                return replace(job, num_proxy_gradients=modelled_paper_split(job))
            case Policy.AUTO:
                local = local_tables(job.tables, job.placement.local_proxies)
                return with_best_split(job, [] if local == job.tables else [local], run)

    def _decided(self, run: Simulate) -> Job:
        match self.mode:
            case Mode.DENSE:
                return self._dense()
            case Mode.ALLREDUCE:
                return self._allreduce()
            case Mode.COARSE:
                return self._coarse(run)

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """What is synchronised, in the order of backward."""
        return gradients_of(self.model, self.profile, bucket_bytes=self.bucket_bytes)

    @cached_property
    def places(self) -> EndpointPlacement:
        """Which endpoints of the machine play workers and memory devices, in the order of their rings."""
        if self.mode is Mode.DENSE:
            return place(self.machine, num_workers=self.num_workers, num_devices=1)
        num_devices = (self.num_devices or self.num_workers) if self.mode is Mode.COARSE else 0
        places = place(self.machine, num_workers=self.num_workers, num_devices=num_devices, num_nodes=self.num_nodes)
        return in_ring_order(self.machine, places, workers=self.worker_ring, devices=self._device_ring)

    @property
    def slow_down_of_workers(self) -> tuple[float, ...]:
        """Of each worker how many times longer it computes, by itself and by its node; () where all are equal."""
        if not self.slow_downs and all(each.compute_slow_down == 1 for each in self.machine.unlike_nodes):
            return ()
        own = self.slow_downs or (1.0,) * self.num_workers
        machine = self.machine
        nodes = [machine.compute_slow_down(machine.node_of(worker)) for worker in self.places.workers]
        return tuple(factor * of_node for factor, of_node in zip(own, nodes, strict=True))

    @property
    def _device_ring(self) -> PathKind:
        return self.device_ring or ("cci" if self.machine.cci and self.machine.cci_wire else "auto")

    def gpu_memory(self, optimizer: Optimizer = Optimizer.ADAM) -> MemoryAccount:
        """What one worker's GPU holds at the peak of an iteration; CapacityError where that is more than it has.

        Only all-reduce keeps parameters and optimizer states there; memory devices hold them otherwise, by COARSE's
        word (III-B). Live, a worker of DistributedOptimizer holds them in every mode.
        """
        training = Training(
            model=self.model,
            precision=self.profile.precision,
            optimizer=optimizer,
            framework=EAGER_FRAMEWORK,
            parameters_on_device=self.mode is not Mode.ALLREDUCE,
        )
        return require_fit(training, self.profile.batch, self.machine.accelerator.memory_bytes)

    def _dense(self) -> Job:
        places = self.places
        groups = self.num_sync_groups
        placement = placement_of(self.machine, places, num_sync_groups=groups, collective=LIVE_COLLECTIVE)
        table = RoutingTable(
            threshold_bytes=0,
            latency_proxy=0,
            bandwidth_proxy=0,
            partition_bytes=WHOLE_BYTES,
        )
        return self._build(dense_site(self.machine, places), placement, (table,) * self.num_workers)

    def _allreduce(self) -> Job:
        return replace(self.job_by(()), num_proxy_gradients=0)

    def _coarse(self, run: Simulate) -> Job:
        job = self.job_by(())
        site, placement = job.site, job.placement
        if self.one_stands_for_all:
            tables = self._local_tables(site, placement)
        else:
            tables = measured_tables(site, placement.local_proxies, reachable_proxies(placement), self.routing)
        return self.decide(replace(job, tables=tables), run)

    def _site(self, places: EndpointPlacement) -> Site:
        ways = {"device_ring": self._device_ring, "worker_ring": self.worker_ring, "copies": self.copies}
        if self.one_stands_for_all:
            return site_of_one(self.machine, places, **ways, num_sync_groups=self.num_sync_groups)
        return coarse_site(self.machine, places, **ways)

    def _build(self, site: Site, placement: Placement, tables: tuple[RoutingTable, ...]) -> Job:
        gradients = self.gradients
        return Job(
            site=site,
            placement=placement,
            tables=tables,
            gradients=gradients,
            forward_s=self.profile.total_forward_s,
            backward_s=self.profile.total_backward_s,
            num_proxy_gradients=len(gradients),
            hold_back=self.mode is not Mode.ALLREDUCE if self.hold_back is None else self.hold_back,
            ring_slow_down=self.ring_slow_down,
            slow_downs=self.slow_down_of_workers,
            jitter=self.jitter,
            num_iterations=self.num_iterations,
            one_stands_for_all=self.one_stands_for_all,
            routing=self.routing,
        )

    def _local_tables(self, site: Site, placement: Placement) -> tuple[RoutingTable, ...]:
        """Equal workers measure alike, each its local proxy."""
        local = placement.local_proxies[0]
        (first,) = measured_tables(_alone(site), [local], [(local,)], self.routing)
        return local_tables((first,) * self.num_workers, placement.local_proxies)


def modelled_paper_split(job: Job) -> int:
    """Gradients for the memory devices by the paper's estimate, with bandwidths measured on the site (COARSE III-F)."""
    site = _alone(job.site)
    times = IterationTimes(forward_s=job.forward_s, backward_s=job.backward_s)
    nbytes = [gradient.nbytes for gradient in job.gradients]
    rates = SyncRates(
        num_workers=job.num_workers,
        num_devices=job.placement.num_devices,
        worker_bytes_per_s=_ring_rate(site.links, site.between_workers),
        proxy_bytes_per_s=_ring_rate(site.links, site.between_devices),
    )
    best = best_proxy_bytes(sum(nbytes), times, rates)
    return split_keys(nbytes, best)


def _alone(site: Site) -> Site:
    """The site as who measures finds it: before training, when no others use the links."""
    return replace(site, links=site.alone_links or site.links)


def _ring_rate(links: Sequence[Link], paths: Mapping[tuple[int, int], Path]) -> float:
    """Bytes per second of a ring's members; any number for a ring of one, which sends nothing."""
    hops = _ring_hops(paths)
    return ring_bytes_per_s(links, hops, _RING_BYTES) if hops else 1.0


def _ring_hops(paths: Mapping[tuple[int, int], Path]) -> list[Path]:
    """Every member's way to its next, or that of the first where it stands for all."""
    num_members = 1 + max((max(ends) for ends in paths), default=0)
    return [paths[m, (m + 1) % num_members] for m in range(num_members) if (m, (m + 1) % num_members) in paths]
