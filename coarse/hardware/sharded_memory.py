# Pure: no MPI, threads, clock or environment.
"""What one GPU holds at the peak of an iteration of sharded training, row by row, and the batch that fits.

States are FCDP VI-A's and ZeRO's: W/G of everything for full sharding, W/g of the parameters more for a secondary copy
in GPU memory (ZeRO++), W/g of everything for subgroups (MiCS, hybrid), all parameters for ZeRO-2. A cache on the host
takes nothing here (FCDP).
"""

from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.hardware.accelerator import MemoryAccount, MemoryRow
from coarse.hardware.models import Kernels, Model, Precision
from coarse.hardware.quantities import require_positive
from coarse.protocol.units import GIB
from coarse.strategy.sharding import States

_MASTER_BYTES = 4
_ADAM_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ShardedTraining:
    """What is trained, over how many GPUs, and what the framework keeps beside it."""

    model: Model
    num_gpus: int
    num_nodes: int
    held: States
    trainable_numel: int | None = None
    """Parameters that have gradients and optimizer states beside frozen ones (LoRA); None: all of the model's."""
    precision: Precision = Precision.FP16
    kernels: Kernels = Kernels.FUSED
    live_numel: int = 10**9
    """Gathered parameters that may be there at once (DeepSpeed's stage3_max_live_parameters, its default)."""
    reduce_numel: int = 5 * 10**8
    """Of the gradients' bucket (DeepSpeed's reduce_bucket_size, its default)."""
    logit_bytes_per_sample: int = 0
    """Of the head's output, its loss and their gradient."""
    secondary_growth: float = 1.0
    """What a secondary copy takes over W/g."""
    overhead_bytes: int = GIB
    """The CUDA context, libraries and fragmentation: an assumption, as in `accelerator`."""

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
    def trained_numel(self) -> int:
        """Parameters that the optimizer steps."""
        return self.model.num_parameters if self.trainable_numel is None else self.trainable_numel


def sharded_account(training: ShardedTraining, batch: int) -> MemoryAccount:
    """The memory that a batch per GPU needs."""
    if batch < 1:
        raise ConfigError(f"a batch is at least 1 sample, got {batch}", key="batch")
    model, itemsize = training.model, training.precision.itemsize
    activations = model.activation_bytes_per_sample(training.precision, training.kernels)
    bucket = min(training.reduce_numel, training.trained_numel)
    return MemoryAccount(
        batch,
        (
            *_states(training),
            MemoryRow("gathered units", min(training.live_numel, model.num_parameters) * itemsize),
            MemoryRow("gradients' bucket", bucket * itemsize),
            MemoryRow("activations", batch * activations),
            MemoryRow("logits and loss", batch * training.logit_bytes_per_sample),
            MemoryRow("framework", training.overhead_bytes, is_assumption=True),
        ),
    )


def _states(training: ShardedTraining) -> tuple[MemoryRow, ...]:
    itemsize, frozen = training.precision.itemsize, 0
    if training.trainable_numel is not None:
        frozen = training.model.num_parameters
    parameters = (frozen + training.trained_numel) * itemsize
    over_node = training.num_gpus // training.num_nodes
    over = over_node if training.held is States.SUBGROUP else training.num_gpus
    rows = [
        MemoryRow("parameters", parameters if training.held is States.REPLICATED else parameters // over),
        MemoryRow("gradients", training.trained_numel * itemsize // over),
        MemoryRow("optimizer states", training.trained_numel * (_MASTER_BYTES + _ADAM_BYTES) // over),
    ]
    if training.held is States.SECONDARY:
        rows.append(MemoryRow("secondary shards", round(training.secondary_growth * parameters / over_node)))
    return tuple(rows)


def largest_power_of_two(training: ShardedTraining, capacity_bytes: int) -> int:
    """The largest batch per GPU of 1, 2, 4, ... that fits, 0 where none does: how FCDP V-C looks for it."""
    one_bytes = sharded_account(training, 1).total_bytes
    per_sample_bytes = sharded_account(training, 2).total_bytes - one_bytes
    if per_sample_bytes == 0:
        raise ConfigError(f"{training.model.name} keeps nothing per sample, so its batch has no limit", key="model")
    batch = 1
    while one_bytes + (batch - 1) * per_sample_bytes <= capacity_bytes:
        batch *= 2
    return batch // 2
