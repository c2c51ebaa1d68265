"""Parts of a torch script whose state is kept: each one's state at a commit, and its restore."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from coarse.errors import ConfigError
from coarse.faults.parts import Item, Part, PlainPart, Taken, another_model, require_same_tensors
from coarse.plain import Plain
from coarse.torch.ddp.optimizer import DistributedOptimizer
from coarse.torch.groups.objects import TENSORS, blank, pack, unpack
from coarse.torch.own_state import kept_buffers
from coarse.torch.tensors import signature


class ModulePart:
    """Parameters of a module, and buffers that a state dict has."""

    def __init__(self, name: str, module: nn.Module, alike: set[torch.Tensor]) -> None:
        self._name, self._module, self._alike = name, module, alike

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**dict(self._module.named_parameters()), **kept_buffers(self._module)}

    def take(self) -> Taken:
        """Return the parameters and buffers as they are now."""
        tensors = self._tensors()
        for name, tensor in tensors.items():
            if tensor.is_meta:
                raise ConfigError(
                    f"Resumable: {self._name}.{name} is on the meta device, so its values are elsewhere; fill it first"
                )
        items = [Item(f"{self._name}/{name}", local_of(t), t in self._alike) for name, t in tensors.items()]
        return Taken([[item.name, *_kind_of(item.tensor)] for item in items], items)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        """Return host tensors like the kept ones, which must be those of this module."""
        own = [(item.name, _kind_of(item.tensor)) for item in self.take().items]
        require_same_tensors(own, tree)
        return [TENSORS.blank(kind) for _, kind in own]

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        """Copy kept values into the parameters and buffers."""
        with torch.no_grad():
            for own, kept in zip(self._tensors().values(), tensors, strict=True):
                local_of(own).copy_(kept)


class OptimizerPart:
    """Settings and state of an optimizer, whose tensors keep their types (torch's own loading casts them)."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, *, is_alike: bool) -> None:
        self._name, self._optimizer, self._is_alike = name, optimizer, is_alike

    def take(self) -> Taken:
        """Return the settings and the state as they are now."""
        kept = self._optimizer.state_dict()
        sharded = [
            [index, key] for index, state in kept["state"].items() for key, value in state.items() if is_sharded(value)
        ] if _has_dtensors() else []  # fmt: skip
        tensors: list[torch.Tensor] = []
        tree = pack(_localised(kept) if sharded else kept, tensors, self._name)
        items = [Item(f"{self._name}/{number}", each, self._is_alike) for number, each in enumerate(tensors)]
        return Taken({"optimizer": tree, "sharded": sharded}, items)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        """Return host tensors of the types and shapes of a kept state."""
        return blank(tree["optimizer"])

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        """Restore kept settings and state."""
        kept = unpack(tree["optimizer"], iter(tensors))
        own = [p for group in self._optimizer.param_groups for p in group["params"]]
        num_kept = sum(len(group["params"]) for group in kept["param_groups"])
        if num_kept != len(own):
            raise another_model(f"{self._name} of {len(own)} parameters", f"one of {num_kept}")
        numbers = [number for group in kept["param_groups"] for number in group["params"]]
        by_number = dict(zip(numbers, own, strict=True))
        for index, key in tree["sharded"]:
            kept["state"][index][key] = _sharded_like(by_number[index], kept["state"][index][key])
        types = {
            (index, key): value.dtype
            for index, state in kept["state"].items() for key, value in state.items() if isinstance(value, torch.Tensor)
        }  # fmt: skip
        self._optimizer.load_state_dict(kept)
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers warn where no step was made
        states = self._optimizer.state
        for (index, key), dtype in types.items():
            parameter = by_number[index]
            loaded = states[parameter][key]
            if loaded.dtype != dtype:
                states[parameter][key] = kept["state"][index][key].to(loaded.device)


def part_of(name: str, what: object, alike: set[torch.Tensor], shared: set[int]) -> Part:
    """Return the part of an object that `Resumable` was given under a name.

    Args:
        name: the name.
        what: the object.
        alike: parameters whose values are equal on all workers.
        shared: `id` of optimizers whose states are equal on all workers.

    Raises:
        TypeError: nothing of it can be kept.
        ConfigError: it keeps itself, or does not repeat itself.
    """
    if isinstance(what, nn.Module):
        return ModulePart(name, what, alike)
    if getattr(what, "keeps_itself", False):
        raise ConfigError(
            f"Resumable: {name!r} is a {type(what).__name__}, which keeps its steps in `storage` and goes on from "
            "there where the job is started again; leave it out here"
        )
    if isinstance(what, torch.optim.Optimizer):
        return OptimizerPart(name, what, is_alike=id(what) in shared)
    if isinstance(what, torch.Generator | np.random.Generator):
        return PlainPart(name, partial(generator_state, what), partial(set_generator, what), TENSORS)
    if callable(getattr(what, "state_dict", None)) and callable(getattr(what, "load_state_dict", None)):
        return PlainPart(name, what.state_dict, what.load_state_dict, TENSORS)  # type: ignore[attr-defined]
    raise TypeError(
        f"Resumable: {name!r} is a {type(what).__name__}; give a module, an optimizer, a generator of torch or numpy, "
        "or what has state_dict() and load_state_dict(), and put plain values into Resumable.values"
    )


def require_sums_by_order(parts: Mapping[str, object]) -> None:
    """Refuse sharded models whose gradients are added as they come.

    Raises:
        ConfigError: names the model.
    """
    sharding = sys.modules.get("coarse.torch.fsdp.fsdp2")
    for name, what in parts.items():
        modules = what.modules() if sharding is not None and isinstance(what, nn.Module) else ()
        if any(getattr(sharding.bound_to(each), "follows_arrival", False) for each in modules):  # type: ignore[union-attr]
            raise ConfigError(
                f"Resumable: {name!r} sums gradients as they come (mode odc, sum=\"float32\"), so that no two runs "
                'have the same bits; take sum="int64"'
            )


def generator_state(generator: torch.Generator | np.random.Generator) -> Plain:
    """Return the state of a generator."""
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.bit_generator.state


def set_generator(generator: torch.Generator | np.random.Generator, state: Plain) -> None:
    """Restore a generator's state."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def shared_by_all(parts: Mapping[str, object]) -> tuple[set[torch.Tensor], set[int]]:
    """Return the parameters equal on all workers after each step, and `id`s of their optimizers.

    Raises:
        ConfigError: an optimizer that some workers alone share.
    """
    alike: set[torch.Tensor] = set()
    shared: set[int] = set()
    for name, what in parts.items():
        if isinstance(what, nn.parallel.DistributedDataParallel):
            alike |= {p for p in what.parameters() if p.requires_grad}
        elif isinstance(what, DistributedOptimizer):
            if not what.is_of_all:
                raise ConfigError(
                    f"Resumable: {name!r} is a DistributedOptimizer of some workers; states of optimizers that all "
                    "workers share, or none, can be kept"
                )
            if what.is_shared:
                alike |= {p for group in what.param_groups for p in group["params"] if p.requires_grad}
                shared.add(id(what))
    for what in parts.values():
        if isinstance(what, torch.optim.Optimizer) and not isinstance(what, DistributedOptimizer):
            own = {p for group in what.param_groups for p in group["params"] if p.requires_grad}
            if own and own <= alike:
                shared.add(id(what))
    return alike, shared


def _kind_of(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


# --- tensors of which each worker has a shard


def _has_dtensors() -> bool:
    return "torch.distributed.tensor" in sys.modules


def is_sharded(value: object) -> bool:
    """Return whether a value is a DTensor."""
    return _has_dtensors() and isinstance(value, sys.modules["torch.distributed.tensor"].DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or this worker's shard of a DTensor."""
    return tensor.to_local().detach() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


def _localised(value: Any) -> Any:  # noqa: ANN401
    if is_sharded(value):
        return local_of(value)
    if isinstance(value, dict):
        return {key: _localised(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_localised(item) for item in value)
    return value


def _sharded_like(parameter: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """Return a DTensor of this worker's shard, placed as a parameter is."""
    kind = sys.modules["torch.distributed.tensor"].DTensor
    if not is_sharded(parameter):
        raise another_model("a whole parameter", f"one of which each worker has a shard ({signature(shard)})")
    placed: torch.Tensor = kind.from_local(
        shard.to(parameter.device), parameter.device_mesh, parameter.placements,  # type: ignore[attr-defined]
        run_check=False, shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip
    return placed
