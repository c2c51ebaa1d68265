# Pure: no MPI, threads, clock or environment.
"""Memory needs of a training in the network and its baselines by place, and the largest model.

Activations are computed again in backward, and each block's input lies in the host's memory until then (LuWu, figure
5). A GPU holds the unit that it computes and the next one, that unit's gradients, and its activations; zero3 also the
shard of all states, switchml all of them in float32, 16 bytes a parameter (ZeRO, section 3.1).

[Note: host memory of ZeRO-Infinity] Its workers have buffers on the host through which states pass. Their size is not
stated; 8 bytes of each parameter of the shard are calibrated on figure 10, by which 175B fits eight hosts of 256 GB and
276B does not (between 7.4 and 11.7 bytes would do).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coarse.hardware.gpt import OPT_SHAPES, GptShape, gpt, gpt_of, logit_bytes, logits_numel
from coarse.hardware.machine import Disks
from coarse.hardware.models import Layer, Model, Precision
from coarse.luwu.simulation.moves import BF16_BYTES, FP32_BYTES, STATE_BYTES, Baseline
from coarse.protocol.units import GIB

LUWU = "luwu"
MODES = (LUWU, *(mode.value for mode in Baseline))
NUM_SLOTS = 2
"""Number of versions of each chunk on the optimizer node's disks; see coarse/luwu/store/layout.py."""
HELD_UNITS = 3
"""Number of units held: a unit's parameters, its gradients, and the parameters of the next one."""
HOST_BYTES = 8
"""Bytes of host memory for each parameter of the shard; see [Note: host memory of ZeRO-Infinity]."""
OVERHEAD_BYTES = GIB
"""Bytes of the CUDA context, libraries and fragmentation: an assumption, as in coarse/hardware/accelerator.py."""
_MOST_BATCH = 1 << 12


def optimizer_disks_bytes(num_parameters: int) -> int:
    """Return the bytes that a model takes of the optimizer node's disks."""
    return NUM_SLOTS * (STATE_BYTES + BF16_BYTES) * num_parameters


@dataclass(frozen=True)
class MemoryNeed:
    """Memory need of one place."""

    place: str
    nbytes: int
    capacity_bytes: int

    @property
    def is_met(self) -> bool:
        """True if it fits."""
        return self.nbytes <= self.capacity_bytes

    def __str__(self) -> str:
        text = f"{self.place} {self.nbytes / GIB:,.1f} of {self.capacity_bytes / GIB:,.1f} GiB"
        return text if self.is_met else f"{text}, {(self.nbytes - self.capacity_bytes) / GIB:,.1f} too many"


@dataclass(frozen=True)
class LargestModel:
    """Largest model of a mode, at one sample of a worker."""

    named: str
    """Largest OPT; empty where none fits."""
    num_parameters: int
    """Parameters of the largest model that is as wide as an OPT, and as deep as may be."""
    bound_by: str
    """Place that one more layer would not fit."""


@dataclass(frozen=True, kw_only=True)
class ClusterCapacity:
    """Memory that a training has."""

    gpu_bytes: int
    disks: Disks
    num_workers: int
    sequence: int

    def needs(self, mode: str, model: Model, batch: int) -> tuple[MemoryNeed, ...]:
        """Return the needs of a mode, each worker's and the optimizer node's; a worker has `batch` samples."""
        return tuple(self._needs(mode, model, batch))

    def fits(self, mode: str, model: Model, batch: int) -> bool:
        """Return whether all needs of a mode are met."""
        return all(need.is_met for need in self.needs(mode, model, batch))

    def largest_batch(self, mode: str, model: Model) -> int:
        """Return the largest power of two that fits; 0 where not even 1 does."""
        batch = 0
        while batch < _MOST_BATCH and self.fits(mode, model, max(1, 2 * batch)):
            batch = max(1, 2 * batch)
        return batch

    def largest_model(self, mode: str) -> str:
        """Return the largest OPT shape that fits; empty where none does."""
        fitting = [name for name in OPT_SHAPES if self.fits(mode, gpt(name, self.sequence), 1)]
        return fitting[-1] if fitting else ""

    def limit(self, mode: str) -> LargestModel:
        """Return the largest OPT, and the number of parameters of the deepest model with an OPT's width."""
        deepest = max(self._deepest(mode, shape) for shape in OPT_SHAPES.values())
        return LargestModel(self.largest_model(mode), *deepest)

    def _deepest(self, mode: str, shape: GptShape) -> tuple[int, str]:
        """Return the parameters of the deepest model of a width, and the place that bounds it.

        Each place's need grows equally by layer, up to the rounding of shards.
        """
        one, two = (gpt_of(replace(shape, num_layers=depth), f"{depth} layers", self.sequence) for depth in (1, 2))
        depths = []
        for first, second in zip(self.needs(mode, one, 1), self.needs(mode, two, 1), strict=True):
            if not first.is_met:
                return 0, first.place
            if per_layer := second.nbytes - first.nbytes:
                depths.append((1 + (first.capacity_bytes - first.nbytes) // per_layer, first.place))
        depth, place = min(depths)
        return one.num_parameters + (depth - 1) * (two.num_parameters - one.num_parameters), place

    def _needs(self, mode: str, model: Model, batch: int) -> Iterator[MemoryNeed]:
        num, disks = model.num_parameters, self.disks
        shard = -(-num // self.num_workers)
        yield MemoryNeed("a GPU", self._gpu_bytes(mode, model, batch), self.gpu_bytes)
        inputs = sum(batch * self.sequence * _width(layer) * BF16_BYTES for layer in _blocks(model))
        has_disks = mode in MODES[1:] and Baseline(mode).has_disks
        yield MemoryNeed("a host", inputs + (HOST_BYTES * shard if has_disks else 0), disks.host_memory_bytes)
        if has_disks:
            nbytes = (STATE_BYTES + 2 * BF16_BYTES) * shard  # states, parameters, gradients
            yield MemoryNeed("a worker's disks", nbytes, disks.worker_capacity_bytes)
        if mode == LUWU:
            yield MemoryNeed("the optimizer node's disks", optimizer_disks_bytes(num), disks.optimizer_capacity_bytes)

    def _gpu_bytes(self, mode: str, model: Model, batch: int) -> int:
        num, itemsize, states = model.num_parameters, BF16_BYTES, 0
        if mode == Baseline.SWITCHML:
            itemsize, states = FP32_BYTES, (STATE_BYTES + FP32_BYTES) * num
        elif mode == Baseline.ZERO3:
            states = (STATE_BYTES + 2 * BF16_BYTES) * -(-num // self.num_workers)
        held = 0 if mode == Baseline.SWITCHML else HELD_UNITS
        precision = Precision.FP32 if itemsize == FP32_BYTES else Precision.FP16
        blocks = _blocks(model)
        logits = batch * logits_numel(self.sequence, _vocabulary(model)) * logit_bytes(precision)
        units = [(model.layers[0].num_parameters, logits)]  # the embedding's weights are the head's
        units += [(layer.num_parameters, batch * layer.activation_bytes_per_sample(precision)) for layer in blocks]
        return states + max(held * numel * itemsize + activations for numel, activations in units) + OVERHEAD_BYTES


def _blocks(model: Model) -> tuple[Layer, ...]:
    return tuple(layer for layer in model.layers if layer.name.startswith("h."))


def _width(layer: Layer) -> int:
    """Return a block's width, which is that of its first normalisation."""
    return layer.parameters[0][1][0]


def _vocabulary(model: Model) -> int:
    return model.layers[0].parameters[0][1][0]
