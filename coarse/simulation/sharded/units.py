# Pure: no MPI, threads, clock or environment.
"""Units that are gathered together: a model's layers, with the seconds that computing each takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby
from math import prod
from typing import NamedTuple

from coarse.errors import ConfigError
from coarse.hardware.compute import ComputeProfile
from coarse.hardware.models import Layer, Model, Precision
from coarse.hardware.quantities import require_positive


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Parameters that are gathered, used and freed together; their gradients are as many bytes."""

    name: str
    trainable_nbytes: int
    forward_s: float
    backward_s: float
    """Seconds of backward, with the recomputation of activations."""
    frozen_nbytes: int = 0
    """Bytes of parameters that never change, beside which the trainable ones are adapters."""
    is_of_root: bool = False
    """True if it lies outside of the model's blocks, as embeddings and heads do."""

    def __post_init__(self) -> None:
        amounts = (self.trainable_nbytes, self.frozen_nbytes, self.forward_s, self.backward_s)
        if min(amounts) < 0:
            raise ValueError(f"unit {self.name!r}: bytes and seconds must be at least 0, got {amounts}")

    @property
    def nbytes(self) -> int:
        """Bytes of all its parameters."""
        return self.trainable_nbytes + self.frozen_nbytes

    def slowed(self, factor: float) -> "Unit":
        """Return the unit with its compute time multiplied."""
        return replace(self, forward_s=factor * self.forward_s, backward_s=factor * self.backward_s)


@dataclass(frozen=True, kw_only=True)
class ComputeRate:
    """Rate at which a GPU computes, and whether it computes forward twice."""

    flops_per_s: float
    recomputes: bool = False
    """True if backward computes forward again (activation checkpointing)."""

    def __post_init__(self) -> None:
        require_positive("flops_per_s", self.flops_per_s)


def units_of(
    model: Model,
    *,
    batch: int,
    pace: ComputeRate,
    precision: Precision = Precision.FP16,
    adapters: Mapping[str, int] | None = None,
    frozen: Sequence[str] = (),
) -> tuple[Unit, ...]:
    """Return a unit per layer, in forward order.

    Backward takes twice forward's products, for inputs and for weights. With `adapters` (layer -> trainable numbers
    beside it) the model itself is frozen: backward takes the products for inputs alone, and the adapters' own, below 1
    % of them, are left out. `frozen` names parameters that are not trained: see `trained_parts`.
    """
    if batch < 1:
        raise ConfigError(f"a batch is at least 1 sample, got {batch}", key="batch")
    found = []
    for layer, part in zip(model.layers, trained_parts(model, frozen), strict=True):
        forward_s = batch * layer.flops_per_sample / pace.flops_per_s
        own = layer.num_parameters * precision.itemsize
        trained = part.numel * precision.itemsize
        times = part.products
        if adapters is not None:
            trained, own, times = adapters.get(layer.name, 0) * precision.itemsize, own, 1.0
            own += trained
        found.append(
            Unit(
                name=layer.name,
                trainable_nbytes=trained,
                frozen_nbytes=own - trained,
                forward_s=forward_s,
                backward_s=(times + (pace.recomputes if times else 0)) * forward_s,
                is_of_root=not _is_numbered(layer.name),
            )
        )
    return tuple(found)


class TrainedPart(NamedTuple):
    """Trained part of a layer."""

    numel: int
    products: float
    """Products of its backward, in those of its forward. They are 2 if all of it is trained, for inputs and for
    weights."""


def trained_parts(model: Model, frozen: Sequence[str]) -> tuple[TrainedPart, ...]:
    """Return the trained part of each layer, where patterns with * and ? name parameters that are not trained.

    Autograd computes no gradients of frozen weights, and none of inputs before the first layer that has trained ones.

    Raises:
        ConfigError: a pattern that names nothing, or nothing that is left to be trained.
    """
    names = [name for layer in model.layers for name, _ in layer.parameters]
    for pattern in frozen:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, 3, 0.3) or names[:3]
            raise ConfigError(
                f"--freeze {pattern}: no parameter of {model.name} has such a name; the nearest are {', '.join(near)}",
                key="freeze",
            )
    found, is_behind = [], False
    for layer in model.layers:
        shapes = [shape for name, shape in layer.parameters if not any(fnmatchcase(name, each) for each in frozen)]
        numel = sum(prod(shape) for shape in shapes)
        is_behind = is_behind or numel > 0 or not frozen
        share = numel / layer.num_parameters if layer.num_parameters else 1.0
        found.append(TrainedPart(numel, 1.0 + share if is_behind else 0.0))
    if frozen and not any(part.numel for part in found):
        raise ConfigError(f"--freeze leaves nothing of {model.name} to be trained; name less", key="freeze")
    return tuple(found)


def units_in_profile(
    model: Model, profile: ComputeProfile, *, recomputes: bool = False, frozen: Sequence[str] = ()
) -> tuple[Unit, ...]:
    """Return a unit per block of a model, whose layers take the times of the profile.

    `frozen` is as for `units_of`.
    """
    itemsize = profile.precision.itemsize
    times = {
        name: (forward_s, backward_s)
        for name, forward_s, backward_s in zip(profile.layers, profile.forward_s, profile.backward_s, strict=True)
    }
    parts = {layer.name: part for layer, part in zip(model.layers, trained_parts(model, frozen), strict=True)}
    found = []
    for name, group in groupby(model.layers, lambda layer: _block(layer.name)):
        layers = tuple(group)
        forward_s = sum(times[layer.name][0] for layer in layers)
        backward_s = sum(times[layer.name][1] * parts[layer.name].products / 2 for layer in layers)
        trained = sum(parts[layer.name].numel for layer in layers)
        found.append(
            Unit(
                name=name,
                trainable_nbytes=trained * itemsize,
                frozen_nbytes=(sum(layer.num_parameters for layer in layers) - trained) * itemsize,
                forward_s=forward_s,
                backward_s=backward_s + (forward_s if recomputes and backward_s else 0.0),
                is_of_root=not _is_numbered(name),
            )
        )
    return tuple(found)


def by_block(model: Model) -> Model:
    """Return the model with each block's layers as one layer.

    Neighbours whose names agree up to the first number ("layers.3") are a block.
    """
    layers = (_joined(name, tuple(layers)) for name, layers in groupby(model.layers, lambda layer: _block(layer.name)))
    return replace(model, layers=tuple(layers))


def joined(units: Sequence[Unit], count: int, *, with_root: bool) -> tuple[Unit, ...]:
    """Return units of so many neighbouring blocks each; 0: the whole model is one.

    With the root's parameters (`with_root`), those of a model that is one unit are the root's, and layers are computed
    one by one.
    """
    if count < 0:
        raise ConfigError(f"a unit has at least 1 block, or 0 for all of the model, got {count}", key="blocks")
    if count == 1:
        return tuple(units)
    if not count:
        return tuple(replace(unit, is_of_root=True) for unit in units) if with_root else (_together(units),)
    found: list[Unit] = []
    for is_root, group in groupby(units, lambda unit: unit.is_of_root):
        neighbours = list(group)
        if is_root:
            found += neighbours
            continue
        firsts = range(0, len(neighbours), count)
        found += [_together(neighbours[first : first + count]) for first in firsts]
    return tuple(found)


def _together(units: Sequence[Unit]) -> Unit:
    """Return neighbours as one unit."""
    if len(units) == 1:
        return units[0]
    return Unit(
        name=f"{units[0].name} to {units[-1].name}",
        trainable_nbytes=sum(unit.trainable_nbytes for unit in units),
        frozen_nbytes=sum(unit.frozen_nbytes for unit in units),
        forward_s=sum(unit.forward_s for unit in units),
        backward_s=sum(unit.backward_s for unit in units),
    )


def root_of(units: Sequence[Unit]) -> Unit:
    """Return the parameters outside of the blocks as one unit, FSDP2's root; nothing is computed with it."""
    own = [unit for unit in units if unit.is_of_root]
    return Unit(
        name="root",
        trainable_nbytes=sum(unit.trainable_nbytes for unit in own),
        frozen_nbytes=sum(unit.frozen_nbytes for unit in own),
        forward_s=0.0,
        backward_s=0.0,
        is_of_root=True,
    )


def _is_numbered(name: str) -> bool:
    """Return whether a layer is of one of several similar blocks ("h.3.mlp")."""
    return any(part.isdigit() for part in name.split("."))


def _block(name: str) -> str:
    """Return a layer's name up to its first number; the whole name if there is none."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else name


def _joined(name: str, layers: tuple[Layer, ...]) -> Layer:
    return Layer(
        name=name,
        parameters=tuple(parameter for layer in layers for parameter in layer.parameters),
        flops_per_sample=sum(layer.flops_per_sample for layer in layers),
        saved_numel=sum(layer.saved_numel for layer in layers),
        mask_numel=sum(layer.mask_numel for layer in layers),
        unfused_numel=sum(layer.unfused_numel for layer in layers),
    )
