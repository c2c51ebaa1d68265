# Pure: no MPI, threads, clock or environment.
"""GPU memory that a training iteration needs, row by row, and a check that it fits.

Counted: parameters, gradients and optimizer states (Rajbhandari et al. 2020, "ZeRO", section 3.1: 16 bytes per
parameter with Adam, in fp32 as in mixed precision), and activations (`models`, [Note: saved for backward]). Optimizer
states and master parameters in memory devices don't count, nor the memory that an optimizer there needs.

[Note: labelled assumptions of memory] Three things rest on no measurement. (1) Early products: in google-research/bert
optimization.py Adam is a graph of products, of which three depend on no gradient (decayed first moment, decayed second
moment, weight decay times parameters), so that the executor may compute them, each as large as all parameters, while
backward still runs. (2) 1 GiB for the CUDA context, libraries, communication buffers and fragmentation. (3) If memory
devices keep parameters and optimizer states, the client holds one copy of the parameters, in the type that it computes
in (COARSE III-D: it "maintains local parameters"), so that each is pushed once and pulled once an iteration.

[Note: held against published limits] With GRAPH_FRAMEWORK the account's largest batches of BERT-large in fp32 with Adam
on 12 GiB are 12, 5, 2, 1, 1 and 0 for sequences of 64, 128, 256, 320, 384 and 512; google-research/bert's README has
12, 6, 2, 1, 0 and 0 (one Titan X, TensorFlow 1.11). At sequence 384 it has 3 on 16 GiB and 13 on 32 GiB; NVIDIA
DeepLearningExamples' TensorFlow BERT README has fp32 batch 2 running and 4 out of memory on a V100 of 16 GB, and 7
running on 32 GB. With optimizer states in memory devices the account has 7 on 16 GiB. So COARSE figure 16e's limits
(batch 2 fits and 4 doesn't without memory devices, 4 fits with them) are outcomes for a V100 of 16 GB. They hang on
assumption (1), by 0.4 GiB: without it, or with FUSED_FRAMEWORK, batch 4 fits on 16 GiB; on 32 GiB it fits in every
account.
"""

import enum
from dataclasses import dataclass

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.models import Kernels, Model, Precision
from coarse.protocol.units import GIB

_FP32_BYTES = 4


class Optimizer(enum.StrEnum):
    """Optimizer that steps the parameters."""

    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAM = "adam"

    @property
    def num_states(self) -> int:
        """Numbers that it keeps per parameter, in fp32."""
        return {"sgd": 0, "sgd-momentum": 1, "adam": 2}[self]

    @property
    def num_early_products(self) -> int:
        """Tensors as large as the parameters, see [Note: labelled assumptions of memory]; SGD is one kernel."""
        return {"sgd": 0, "sgd-momentum": 0, "adam": 3}[self]


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Needs of a framework beyond the arithmetic; see [Note: labelled assumptions of memory]."""

    kernels: Kernels
    has_early_products: bool
    """True if parts of the optimizer's step may run beside backward and keep their results."""
    overhead_bytes: int = GIB

    def __post_init__(self) -> None:
        if self.overhead_bytes < 0:
            raise ConfigError(
                f"a framework's overhead must be at least 0, got {self.overhead_bytes}", key="overhead_bytes"
            )


GRAPH_FRAMEWORK = Framework(kernels=Kernels.SEPARATE, has_early_products=True)
"""Framework like TensorFlow without a compiler, as in COARSE's evaluation and the published BERT runs."""
EAGER_FRAMEWORK = Framework(kernels=Kernels.SEPARATE, has_early_products=False)
"""Framework like PyTorch without a compiler: a kernel for every operation, and an optimizer in place."""
FUSED_FRAMEWORK = Framework(kernels=Kernels.FUSED, has_early_products=False)
"""Framework of least need without recomputing: fused kernels, and an optimizer that works in place."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training of a model, apart from the batch."""

    model: Model
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.ADAM
    framework: Framework = GRAPH_FRAMEWORK
    states_on_device: bool = False
    """True if optimizer states and master parameters live in memory devices (COARSE III), not in the GPU."""


@dataclass(frozen=True)
class MemoryRow:
    """Need of memory."""

    name: str
    nbytes: int
    is_assumption: bool = False


@dataclass(frozen=True)
class MemoryAccount:
    """Needs of one GPU's memory at the peak of an iteration."""

    batch: int
    rows: tuple[MemoryRow, ...]

    @property
    def total_bytes(self) -> int:
        """Sum of all rows."""
        return sum(row.nbytes for row in self.rows)


def account(training: Training, batch: int) -> MemoryAccount:
    """Return the memory that a batch needs."""
    if batch < 1:
        raise ConfigError(f"a batch is at least 1 sample, got {batch}", key="batch")
    model, precision, kernels = training.model, training.precision, training.framework.kernels
    layers_bytes = [batch * layer.activation_bytes_per_sample(precision, kernels) for layer in model.layers]
    return MemoryAccount(
        batch,
        (
            *_states(training),
            MemoryRow("gradients", model.num_parameters * precision.itemsize),
            MemoryRow("activations", sum(layers_bytes)),
            MemoryRow("gradients of one layer's activations", max(layers_bytes)),
            MemoryRow("framework", training.framework.overhead_bytes, is_assumption=True),
        ),
    )


def _states(training: Training) -> tuple[MemoryRow, ...]:
    """Return the rows of parameters and the optimizer's states, as far as the GPU holds them."""
    model, itemsize = training.model, training.precision.itemsize
    parameters = MemoryRow("parameters", model.num_parameters * itemsize, is_assumption=training.states_on_device)
    if training.states_on_device:
        return (parameters,)
    num_fp32_copies = training.optimizer.num_states + (training.precision is not Precision.FP32)
    num_products = training.optimizer.num_early_products if training.framework.has_early_products else 0
    return (
        parameters,
        MemoryRow("optimizer states", num_fp32_copies * model.num_parameters * _FP32_BYTES),
        MemoryRow("early products", num_products * model.num_parameters * _FP32_BYTES, is_assumption=True),
    )


def require_fit(training: Training, batch: int, capacity_bytes: int) -> MemoryAccount:
    """Return the account of a batch.

    Raises:
        CapacityError: it exceeds the capacity.
    """
    needed = account(training, batch)
    if needed.total_bytes <= capacity_bytes:
        return needed
    rows = ", ".join(f"{row.name} {_gib(row.nbytes)}" for row in needed.rows)
    keeps_some = training.model.activation_bytes_per_sample(training.precision, training.framework.kernels) > 0
    largest_batch = max_batch(training, capacity_bytes) if keeps_some else 0
    remedies = [f"lower the batch to {largest_batch}"] if largest_batch else ["take a GPU with more memory"]
    if not training.states_on_device:
        remedies.append("keep optimizer states in memory devices")
    raise CapacityError(
        f"{training.model.name} in {training.precision} with {training.optimizer} at batch {batch} needs "
        f"{_gib(needed.total_bytes)} ({rows}) but the GPU has {_gib(capacity_bytes)}; {' or '.join(remedies)}"
    )


def max_batch(training: Training, capacity_bytes: int) -> int:
    """Return the largest batch that fits, 0 if none does."""
    one_bytes = account(training, 1).total_bytes
    per_sample_bytes = account(training, 2).total_bytes - one_bytes
    if per_sample_bytes == 0:
        raise ConfigError(f"{training.model.name} keeps nothing per sample, so its batch has no limit", key="model")
    return max(0, (capacity_bytes - one_bytes) // per_sample_bytes + 1)


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"
