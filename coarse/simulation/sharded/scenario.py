# Pure: no MPI, threads, clock or environment.
"""Question about sharded training of a GPT on a machine: its job, and the memory of a GPU."""

from dataclasses import dataclass, field, replace

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.accelerator import MemoryAccount
from coarse.hardware.compute import ComputeProfile
from coarse.hardware.gpt import adapter_numel, gpt, gpt_shape, logit_bytes, logits_numel
from coarse.hardware.machine import Machine
from coarse.hardware.models import Model, Precision
from coarse.hardware.sharded_memory import ShardedTraining, UnitMemory, largest_power_of_two, sharded_account
from coarse.protocol.units import GIB
from coarse.simulation.sharded.disturbed import Disturbances, Pace
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.report import ShardedReport
from coarse.simulation.sharded.routes import Routes
from coarse.simulation.sharded.units import (
    ComputeRate,
    Unit,
    by_block,
    joined,
    root_of,
    trained_parts,
    units_in_profile,
    units_of,
)
from coarse.strategy.sharding import require_factor

PEAK_SHARE = 0.2
"""Share of a GPU's fp16 peak that training reaches. It is an input, with which FCDP's Fig. 9 comes out
(docs/fcdp_evaluation.md)."""
CACHE_SHARE = 0.8
"""Default of FCDP's tau: the share of a GPU's memory in use below which units stay gathered there."""


@dataclass(frozen=True, kw_only=True)
class ShardedScenario:
    """Training on one machine; frozen, so that sweeps are `dataclasses.replace`."""

    machine: Machine
    model_name: str
    policy: ShardedPolicy
    batch: int
    """Samples per GPU and iteration."""
    num_nodes: int
    gpus_per_node: int
    sequence: int = 256
    lora_rank: int = 0
    """Rank of adapters beside q, k, v and o, with everything else frozen; 0: everything is trained."""
    peak_share: float = PEAK_SHARE
    recomputes: bool = False
    in_flight_limit: int = 2
    backward_prefetch: bool = True
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that are not trained."""
    blocks_per_unit: int = 1
    """Neighbouring blocks that are gathered together; 0: the whole model."""
    num_microbatches: int = 1
    """Microbatches of `batch` samples each, between two steps of the optimizer."""
    reduces_each: bool = False
    """True if gradients are reduced behind each microbatch, and kept sharded (FSDP 3.3.4)."""
    ring_slow_down: float = 1.0
    """Factor on a GPU's compute time while a collective is under way on it."""
    schedule: Schedule = Schedule.FSDP2
    bucket_numel: int = 0
    """Gradients that are reduced together; 0: those of a unit."""
    secondary_growth: float = 1.0
    """Memory of zeropp's second shards, over W/g."""
    memory_bytes: int | None = None
    """Memory of a GPU; None: as the machine states."""
    logit_bytes: int = logit_bytes(Precision.FP16)
    disturbances: Disturbances = field(default_factory=Disturbances)
    """Stragglers, jitter and degraded links."""
    precision: Precision = field(default=Precision.FP16)
    own_model: Model | None = None
    """Model in place of the GPT of that name. A unit is one of its blocks, and its layers keep its logits."""
    profile: ComputeProfile | None = None
    """Times of `own_model`'s layers, in place of a share of the GPU's peak. Precision and batch are the profile's."""

    def __post_init__(self) -> None:
        if not 0.0 < self.peak_share <= 1.0:
            raise ConfigError(f"peak_share must lie in (0, 1], got {self.peak_share}", key="peak_share")
        if self.lora_rank < 0 or self.batch < 1:
            raise ConfigError(
                f"wanted a batch of at least 1 and a rank of at least 0, got {self.batch} and {self.lora_rank}"
            )
        if self.profile is not None and (self.own_model is None or self.profile.batch != self.batch):
            raise ConfigError(
                f"a profile is of an own model and of its batch {self.profile.batch}, got {self.model_name!r} and "
                f"batch {self.batch}; give the same of both",
                key="profile",
            )
        if self.lora_rank and self.frozen:
            raise ConfigError("--lora-rank freezes the model already; leave --freeze out", key="freeze")
        if self.lora_rank and self.own_model is not None:
            raise ConfigError(
                "adapters are known of GPT's blocks alone; leave --lora-rank out for a model of yours", key="lora_rank"
            )

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self.num_nodes * self.gpus_per_node

    @property
    def factor(self) -> int:
        """Number of GPUs that share parameters; ConfigError if they fit no nodes."""
        stated = self.policy.sharding.factor_of(self.num_gpus, self.gpus_per_node)
        return require_factor(stated, self.num_nodes, self.gpus_per_node)

    @property
    def _unit_memory(self) -> UnitMemory:
        units = self.units
        blocks = [unit for unit in units if not unit.is_of_root]
        root = root_of(units)
        return UnitMemory(
            root_bytes=root.nbytes,
            largest_bytes=max((unit.nbytes for unit in blocks), default=0),
            largest_trained_bytes=max((unit.trainable_nbytes for unit in blocks), default=0),
            root_trained_bytes=root.trainable_nbytes,
            in_flight=self.in_flight_limit,
            reshards=self.policy.reshards,
            keeps_gradients=self.num_microbatches > 1 and not self.reduces_each,
        )

    @property
    def model(self) -> Model:
        """Model that is trained: the GPT, or `own_model` in blocks."""
        if self.own_model is not None:
            return by_block(self.own_model)
        return gpt(self.model_name, self.sequence)

    @property
    def capacity_bytes(self) -> int:
        """Memory of a GPU."""
        return self.machine.accelerator.memory_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def adapters(self) -> dict[str, int] | None:
        """Trainable numbers beside each block; None if the model itself is trained."""
        if not self.lora_rank:
            return None
        shape = gpt_shape(self.model_name)
        numel = adapter_numel(shape, self.lora_rank)
        return {layer.name: numel for layer in self.model.layers if layer.name.startswith("h.")}

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units that are gathered and computed, by the profile or at the pace of the machine's GPU.

        Their times are those of the slowest node, for which all wait.
        """
        return joined(self._blocks, self.blocks_per_unit, with_root=self.schedule is Schedule.FSDP2)

    @property
    def _blocks(self) -> tuple[Unit, ...]:
        """Units of a block each."""
        slowest = self._slowest_node
        if self.profile is not None and self.own_model is not None:
            return units_in_profile(
                self.own_model, self.profile.slowed(slowest), recomputes=self.recomputes, frozen=self.frozen
            )
        flops_per_s = self.peak_share * self.machine.accelerator.fp16_flops_per_s / slowest
        pace = ComputeRate(flops_per_s=flops_per_s, recomputes=self.recomputes)
        return units_of(
            self.model, batch=self.batch, pace=pace, precision=self.precision, adapters=self.adapters,
            frozen=self.frozen,
        )  # fmt: skip

    @property
    def training(self) -> ShardedTraining:
        """Training as the account of memory takes it."""
        adapters, all_numel = self.adapters, self.model.num_parameters
        trained = sum(part.numel for part in trained_parts(self.model, self.frozen))
        if adapters is not None:
            trained = sum(adapters.values())
        return ShardedTraining(
            model=self.model,
            num_gpus=self.num_gpus,
            num_nodes=self.num_nodes,
            held=self.policy.sharding.states,
            factor=self.factor,
            units=self._unit_memory if self.schedule is Schedule.FSDP2 else None,
            trainable_numel=trained,
            frozen_numel=all_numel - trained if adapters is None else all_numel,
            precision=self.precision,
            logit_bytes_per_sample=0 if self.own_model else self.logit_bytes * logits_numel(self.sequence),
            secondary_growth=self.secondary_growth,
        )

    def job(self) -> ShardedJob:
        """Return the job to simulate."""
        return ShardedJob(
            units=self.units,
            routes=Routes(machine=self.machine, num_nodes=self.num_nodes, gpus_per_node=self.gpus_per_node),
            policy=self.policy,
            in_flight_limit=self.in_flight_limit,
            backward_prefetch=self.backward_prefetch,
            bucket_nbytes=self.bucket_numel * self.precision.itemsize,
            ring_slow_down=self.ring_slow_down,
            schedule=self.schedule,
            num_microbatches=self.num_microbatches,
            reduces_each=self.reduces_each,
        )

    def run(self) -> ShardedReport:
        """Return the report of one simulated iteration; the last where they differ."""
        return self.runs()[-1]

    def runs(self) -> tuple[ShardedReport, ...]:
        """Return the report of every simulated iteration; of one if all are equal."""
        job, begin_s, found = self.job(), 0.0, list[ShardedReport]()
        for iteration in range(self.num_unlike):
            pace = Pace.of(self.factors(iteration))
            report = simulate_sharded(
                replace(
                    job,
                    units=tuple(unit.slowed(pace.slowest) for unit in job.units) if pace.slowest != 1 else job.units,
                    changes=self.disturbances.changes(job.links, begin_s),
                )
            )
            slowest_s = report.compute_s
            report.compute_s = slowest_s * pace.mean / pace.slowest
            report.idle_s = slowest_s - report.compute_s
            found.append(report)
            begin_s += report.iteration_s
        return tuple(found)

    @property
    def num_unlike(self) -> int:
        """Number of iterations that have to be simulated."""
        return self.disturbances.num_iterations if self.disturbances.are_unlike else 1

    def factors(self, iteration: int) -> tuple[float, ...]:
        """Return each GPU's factor in an iteration on the times of `units`, which are the slowest node's."""
        slowest, per_node = self._slowest_node, self.gpus_per_node
        of_nodes = [self.machine.compute_slow_down(node) / slowest for node in range(self.num_nodes)]
        own = self.disturbances.factors(self.num_gpus, iteration)
        return tuple(factor * of_nodes[worker // per_node] for worker, factor in enumerate(own))

    @property
    def _slowest_node(self) -> float:
        return max(self.machine.compute_slow_down(node) for node in range(self.num_nodes))

    def account(self) -> MemoryAccount:
        """Return the account of a GPU at the peak; FCDP-Cache adds nothing that would not fit."""
        return sharded_account(self.training, self.batch)

    def require_fit(self) -> MemoryAccount:
        """Return the account.

        Raises:
            CapacityError: a GPU has less.
        """
        needed = self.account()
        if needed.total_bytes <= self.capacity_bytes:
            return needed
        rows = ", ".join(f"{row.name} {row.nbytes / GIB:.2f}" for row in needed.rows)
        largest = largest_power_of_two(self.training, self.capacity_bytes)
        remedy = f"lower the batch to {largest}" if largest else "take more nodes, or a mode that shards over them all"
        raise CapacityError(
            f"{self.model_name} with {self.policy.mode} at batch {self.batch} per GPU needs "
            f"{needed.total_bytes / GIB:.2f} GiB ({rows}) but the GPU has {self.capacity_bytes / GIB:.2f} GiB; {remedy}"
        )

    def largest_batch(self) -> int:
        """Return the largest power of two that fits, per GPU; 0 if none does."""
        return largest_power_of_two(self.training, self.capacity_bytes)

    @property
    def cached_bytes(self) -> int:
        """Bytes on a GPU of the units that stay gathered (FCDP-Cache)."""
        return sum(map(self._bytes_if_kept, self.units[: self.policy.num_cached_units]))

    def _bytes_if_kept(self, unit: Unit) -> int:
        """Return the bytes of a unit that stays until backward; 0 if it does so in every mode."""
        return 0 if unit.is_of_root and self.schedule is Schedule.FSDP2 else unit.nbytes

    def with_gpu_cache(self, threshold: float) -> "ShardedScenario":
        """Return the scenario with as many units gathered until backward as stay below tau (FCDP-Cache, IV-D)."""
        if not 0.0 <= threshold <= 1.0:
            raise ConfigError(f"tau must lie in [0, 1], got {threshold}", key="gpu_threshold")
        free = int(threshold * self.capacity_bytes) - self.account().total_bytes
        num_cached = 0
        for unit in self.units:
            free -= self._bytes_if_kept(unit)
            if free < 0:
                break
            num_cached += 1
        return replace(self, policy=replace(self.policy, num_cached_units=num_cached))
