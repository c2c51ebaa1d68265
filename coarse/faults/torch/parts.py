"""Parts of a training script whose state is kept: what each has at a commit, and how it is put back.

A part's state is a tree of plain values, as JSON holds it, with tensors beside it, each under a name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from coarse.errors import CheckpointError, ConfigError
from coarse.torch.ddp.optimizer import DistributedOptimizer
from coarse.torch.groups.objects import Plain, blank, pack, unpack
from coarse.torch.own_state import kept_buffers
from coarse.torch.tensors import signature

Values = dict[str, Any]


class Item(NamedTuple):
    """A tensor of a part."""

    name: str
    tensor: torch.Tensor
    is_alike: bool = False
    """True if all workers have the same values after each step."""


class Taken(NamedTuple):
    """A part's state."""

    tree: Plain
    """Values that JSON can hold; tensors stand in it by type and shape."""
    items: list[Item]


class Part(Protocol):
    """Something whose state is kept."""

    def take(self) -> Taken:
        """Return the state as it is now; tensors are the part's own."""
        ...

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        """Return host tensors of the types and shapes that a kept tree has, in its order.

        Raises:
            CheckpointError: the tree is of another part.
        """
        ...

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        """Be as the kept state says; `tensors` are those of `wanted`, filled."""
        ...


class ModulePart:
    """Parameters, and buffers that a state dict has."""

    def __init__(self, name: str, module: nn.Module, alike: set[torch.Tensor]) -> None:
        self._name, self._module, self._alike = name, module, alike

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**dict(self._module.named_parameters()), **kept_buffers(self._module)}

    def take(self) -> Taken:
        tensors = self._tensors()
        for name, tensor in tensors.items():
            if tensor.is_meta:
                raise ConfigError(
                    f"Resumable: {self._name}.{name} is on the meta device, so its values are elsewhere; fill it first"
                )
        items = [Item(f"{self._name}/{name}", local_of(t), t in self._alike) for name, t in tensors.items()]
        return Taken([[item.name, *_kind_of(item.tensor)] for item in items], items)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        own = [(item.name, _kind_of(item.tensor)) for item in self.take().items]
        kept = [(name, [dtype, shape]) for name, dtype, shape in tree]
        for place, (name, kind) in enumerate(own):
            if place >= len(kept) or kept[place] != (name, kind):
                came = "nothing more" if place >= len(kept) else _described(*kept[place])
                raise _another_model(_described(name, kind), came)
        if len(kept) > len(own):
            raise _another_model("nothing more", _described(*kept[len(own)]))
        return [torch.empty(shape, dtype=getattr(torch, dtype), device="cpu") for _, (dtype, shape) in kept]

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for own, kept in zip(self._tensors().values(), tensors, strict=True):
                local_of(own).copy_(kept)


class OptimizerPart:
    """An optimizer's settings and state, whose tensors keep their types (torch's own loading casts them)."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, *, is_alike: bool) -> None:
        self._name, self._optimizer, self._is_alike = name, optimizer, is_alike

    def take(self) -> Taken:
        kept = self._optimizer.state_dict()
        sharded = [
            [index, key] for index, state in kept["state"].items() for key, value in state.items() if is_sharded(value)
        ] if _has_dtensors() else []  # fmt: skip
        tensors: list[torch.Tensor] = []
        tree = pack(_localised(kept) if sharded else kept, tensors, self._name)
        items = [Item(f"{self._name}/{number}", each, self._is_alike) for number, each in enumerate(tensors)]
        return Taken({"optimizer": tree, "sharded": sharded}, items)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        return blank(tree["optimizer"])

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        kept = unpack(tree["optimizer"], iter(tensors))
        own = [p for group in self._optimizer.param_groups for p in group["params"]]
        num_kept = sum(len(group["params"]) for group in kept["param_groups"])
        if num_kept != len(own):
            raise _another_model(f"{self._name} of {len(own)} parameters", f"one of {num_kept}")
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


class StatefulPart:
    """Whatever has `state_dict` and `load_state_dict`: a scheduler, a scaler, a counter."""

    def __init__(self, name: str, stateful: Any) -> None:  # noqa: ANN401
        self._name, self._stateful = name, stateful

    def take(self) -> Taken:
        return packed(self._stateful.state_dict(), self._name)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        return blank(tree)

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        self._stateful.load_state_dict(unpack(tree, iter(tensors)))


class GeneratorPart:
    """A generator of torch's or numpy's that the script has made."""

    def __init__(self, name: str, generator: torch.Generator | np.random.Generator) -> None:
        self._name, self._generator = name, generator

    def take(self) -> Taken:
        return packed(generator_state(self._generator), self._name)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        return blank(tree)

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        set_generator(self._generator, unpack(tree, iter(tensors)))


class ValuesPart:
    """The script's plain values; a dict that it may change between steps."""

    def __init__(self, name: str, values: Values) -> None:
        self._name, self._values = name, values

    def take(self) -> Taken:
        return packed(self._values, self._name)

    def wanted(self, tree: Plain) -> list[torch.Tensor]:
        return blank(tree)

    def put(self, tree: Plain, tensors: list[torch.Tensor]) -> None:
        self._values.clear()
        self._values.update(unpack(tree, iter(tensors)))


def part_of(name: str, what: object, alike: set[torch.Tensor], shared: set[int]) -> Part:
    """Return the part of something that `Resumable` was given under a name.

    Args:
        alike: parameters whose values all workers have alike.
        shared: `id` of optimizers whose states all workers have alike.

    Raises:
        TypeError: nothing of it can be kept.
        ConfigError: it keeps itself, or does not repeat itself.
    """
    if isinstance(what, nn.Module):
        return ModulePart(name, what, alike)
    if getattr(what, "keeps_itself", False):
        raise ConfigError(
            f"Resumable: {name!r} is a {type(what).__name__}, which keeps its steps in `storage`; leave it out here, "
            'and under --restarts pass it resume="auto"'
        )
    if isinstance(what, torch.optim.Optimizer):
        return OptimizerPart(name, what, is_alike=id(what) in shared)
    if isinstance(what, torch.Generator | np.random.Generator):
        return GeneratorPart(name, what)
    if callable(getattr(what, "state_dict", None)) and callable(getattr(what, "load_state_dict", None)):
        return StatefulPart(name, what)
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


def packed(value: Plain, name: str) -> Taken:
    """Return a plain value as a part's state.

    Raises:
        TypeError: it holds what is neither plain value nor tensor, with its name.
    """
    tensors: list[torch.Tensor] = []
    tree = pack(value, tensors, name)
    return Taken(tree, [Item(f"{name}/{number}", each) for number, each in enumerate(tensors)])


def generator_state(generator: torch.Generator | np.random.Generator) -> Plain:
    """Return where a generator is."""
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.bit_generator.state


def set_generator(generator: torch.Generator | np.random.Generator, state: Plain) -> None:
    """Put a generator where it was."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def shared_by_all(parts: Mapping[str, object]) -> tuple[set[torch.Tensor], set[int]]:
    """Return the parameters that all workers have alike after each step, and `id` of the optimizers that make them so.

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


def _another_model(wanted: str, came: str) -> CheckpointError:
    return CheckpointError(
        f"the states that are kept are another model's: {wanted} was wanted, {came} came; go on with the script that "
        "committed them, or begin anew with other memory"
    )


def _described(name: str, kind: list[Any]) -> str:
    return f"{name} of {kind[0]}{kind[1]}"


def _kind_of(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


# --- tensors of which each worker has a shard


def _has_dtensors() -> bool:
    return "torch.distributed.tensor" in sys.modules


def is_sharded(value: object) -> bool:
    """Return whether a value is a DTensor."""
    return _has_dtensors() and isinstance(value, sys.modules["torch.distributed.tensor"].DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or of a DTensor this worker's shard."""
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
        raise _another_model("a whole parameter", f"one of which each worker has a shard ({signature(shard)})")
    placed: torch.Tensor = kind.from_local(
        shard.to(parameter.device), parameter.device_mesh, parameter.placements,  # type: ignore[attr-defined]
        run_check=False, shape=parameter.shape, stride=parameter.stride(),
    )  # fmt: skip
    return placed


def items_of(taken: Mapping[str, Taken]) -> Iterator[Item]:
    """Yield all parts' tensors in their order."""
    for each in taken.values():
        yield from each.items
