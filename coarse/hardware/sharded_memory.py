# Pure: no MPI, threads, clock or environment.
"""Memory of one GPU at the peak of an iteration of sharded training, and the batch that fits.

States are FCDP VI-A's and ZeRO's: W/G of everything for full sharding, W/g of the parameters more for a secondary copy
in GPU memory (ZeRO++), W/F of everything for subgroups (MiCS, hybrid), all parameters for ZeRO-2. A cache on the host
takes nothing here (FCDP). W is of all parameters, G counts GPUs, g those of a node, F those that share parameters.

[Note: units under way] FSDP holds O(W/F + the largest unit) (section 3.2.1 of its paper). FSDP2, as it runs live (an
account of a training on two workers has these bytes): the root's parameters, and of blocks two units, or as many as may
be in flight, since one that arrives is copied out of the buffer that it arrived in; gradients of one unit twice, as
they are and as they are reduced, and of the root. Units that are not freed behind forward all lie there when backward
begins, and go as gradients come.
"""

from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.hardware.accelerator import MemoryAccount, MemoryRow
from coarse.hardware.models import Kernels, Model, Precision
from coarse.hardware.quantities import require_positive
from coarse.protocol.units import GIB
from coarse.strategy.sharding import States


@dataclass(frozen=True, kw_only=True)
class UnitMemory:
    """Units that FSDP2 gathers, see [Note: units under way]; bytes as they are gathered."""

    root_bytes: int
    """Bytes of the parameters outside of blocks, which stay gathered."""
    largest_bytes: int
    """Bytes of the largest block."""
    largest_trained_bytes: int
    """Bytes of the trainable part of the block that has most of it."""
    root_trained_bytes: int = 0
    in_flight: int = 2
    reshards: bool = True
    """True if a block is freed behind its forward."""
    keeps_gradients: bool = False
    """True if gradients stay whole between microbatches (FSDP 3.3.4: accumulation without communication)."""


_MASTER_BYTES = 4
_ADAM_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ShardedTraining:
    """Sharded training of a model: its GPUs, and the framework's memory beside it."""

    model: Model
    num_gpus: int
    num_nodes: int
    held: States
    factor: int | None = None
    """GPUs that share parameters if states are a subgroup's; None: a node's."""
    units: UnitMemory | None = None
    """Units that are gathered; None: as DeepSpeed does, up to constants of its own."""
    trainable_numel: int | None = None
    """Parameters that have gradients and optimizer states; None: all of the model's."""
    frozen_numel: int = 0
    """Parameters beside them: all of the model's if adapters are trained (LoRA)."""
    precision: Precision = Precision.FP16
    kernels: Kernels = Kernels.FUSED
    live_numel: int = 10**9
    """Gathered parameters that may be there at once (DeepSpeed's stage3_max_live_parameters, its default)."""
    reduce_numel: int = 5 * 10**8
    """Elements of the gradients' bucket (DeepSpeed's reduce_bucket_size, its default)."""
    logit_bytes_per_sample: int = 0
    """Bytes of the head's output, its loss and their gradient."""
    secondary_growth: float = 1.0
    """Memory of a secondary copy over W/g."""
    overhead_bytes: int = GIB
    """Bytes of the CUDA context, libraries and fragmentation: an assumption, as in `accelerator`."""

    def __post_init__(self) -> None:
        for key in ("num_gpus", "num_nodes"):
            require_positive(key, getattr(self, key))
        if self.num_gpus % self.num_nodes:
            raise ConfigError(
                f"{self.num_gpus} GPUs cannot be spread evenly over {self.num_nodes} nodes; choose a multiple",
                key="num_gpus",
            )
        if min(self.live_numel, self.reduce_numel, self.logit_bytes_per_sample, self.overhead_bytes) < 0:
            raise ConfigError("live_numel, reduce_numel, logits and overhead must be at least 0")

    @property
    def sharers(self) -> int:
        """GPUs over which gradients and optimizer states are spread."""
        if self.held is not States.SUBGROUP:
            return self.num_gpus
        return self.factor or self.num_gpus // self.num_nodes

    @property
    def trained_numel(self) -> int:
        """Parameters that the optimizer steps."""
        return self.model.num_parameters if self.trainable_numel is None else self.trainable_numel


def sharded_account(training: ShardedTraining, batch: int) -> MemoryAccount:
    """Return the memory that a batch per GPU needs."""
    if batch < 1:
        raise ConfigError(f"a batch is at least 1 sample, got {batch}", key="batch")
    activations = training.model.activation_bytes_per_sample(training.precision, training.kernels)
    return MemoryAccount(
        batch,
        (
            *_states(training),
            *_under_way(training),
            MemoryRow("activations", batch * activations),
            MemoryRow("logits and loss", batch * training.logit_bytes_per_sample),
            MemoryRow("framework", training.overhead_bytes, is_assumption=True),
        ),
    )


def _under_way(training: ShardedTraining) -> tuple[MemoryRow, MemoryRow]:
    """Return rows of gathered units, and of gradients before they are reduced."""
    itemsize, units = training.precision.itemsize, training.units
    trained = training.trained_numel * itemsize
    if units is None:
        gathered = min(training.live_numel, training.model.num_parameters) * itemsize
        unreduced = min(training.reduce_numel * itemsize, trained)
    else:
        gathered = units.root_bytes + max(2, units.in_flight) * units.largest_bytes
        largest, sharers = units.largest_trained_bytes, training.sharers
        beside = 2 * largest + units.root_trained_bytes  # which are not among the sharded ones yet
        unreduced = beside - beside // sharers
        if units.keeps_gradients:
            unreduced = largest + trained - trained // sharers
        if not units.reshards:
            in_all = _parameters_bytes(training) + largest + largest // sharers + units.root_trained_bytes
            gathered = max(gathered, in_all - trained // sharers - unreduced)
    if training.held is States.REPLICATED:
        gathered = 0
    return MemoryRow("gathered units", gathered), MemoryRow("gradients under way", unreduced)


def _parameters_bytes(training: ShardedTraining) -> int:
    """Return the bytes of all parameters, adapters among them."""
    return (training.frozen_numel + training.trained_numel) * training.precision.itemsize


def _states(training: ShardedTraining) -> tuple[MemoryRow, ...]:
    itemsize, parameters, over = training.precision.itemsize, _parameters_bytes(training), training.sharers
    over_node = training.num_gpus // training.num_nodes
    rows = [
        MemoryRow("parameters", parameters if training.held is States.REPLICATED else parameters // over),
        MemoryRow("gradients", training.trained_numel * itemsize // over),
        MemoryRow("optimizer states", training.trained_numel * (_MASTER_BYTES + _ADAM_BYTES) // over),
    ]
    if training.held is States.SECONDARY:
        rows.append(MemoryRow("secondary shards", round(training.secondary_growth * parameters / over_node)))
    return tuple(rows)


def largest_power_of_two(training: ShardedTraining, capacity_bytes: int) -> int:
    """Return the largest batch per GPU of 1, 2, 4, ... that fits, as FCDP V-C searches; 0 if none does."""
    one_bytes = sharded_account(training, 1).total_bytes
    per_sample_bytes = sharded_account(training, 2).total_bytes - one_bytes
    if per_sample_bytes == 0:
        raise ConfigError(f"{training.model.name} keeps nothing per sample, so its batch has no limit", key="model")
    batch = 1
    while one_bytes + (batch - 1) * per_sample_bytes <= capacity_bytes:
        batch *= 2
    return batch // 2
