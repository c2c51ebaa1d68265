"""Modules of a model that are gathered together: repeated blocks, and adapters beside a frozen base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from coarse.errors import ConfigError
from coarse.strategy.sharding import Sharding, name_of
from coarse.torch.fsdp.fsdp2 import bound_to, is_sharded
from coarse.torch.wrappers import compiled_from, is_compiled, modules_hooked

Units = Sequence[type[nn.Module]] | Callable[[nn.Module], bool] | None
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True)
class PlannedUnit:
    """Modules that become one unit, under the name of the first."""

    name: str
    modules: tuple[nn.Module, ...]


def plan_units(model: nn.Module, units: Units) -> list[PlannedUnit]:
    """Return a model's units in the order in which FSDP2 must be called: inner ones first, the root last.

    Args:
        model: the model.
        units: classes of modules, or a function that tells whether a module is a unit. None finds repeated blocks,
            unless parts of the model are units already. For a compiled module the wrapper is the unit.

    Raises:
        ConfigError: `units` finds no unit, or one that cannot be one.
    """
    blocks = chosen_blocks(model, units)
    planned: list[PlannedUnit] = []
    for name, block in [*reversed(blocks), ("", model)]:
        planned += _with_adapters(name, block, [other for _, other in blocks])
    return planned


def chosen_blocks(model: nn.Module, units: Units) -> list[tuple[str, nn.Module]]:
    """Return blocks with their names, outer before inner, without the root."""
    if units is None:
        found = [] if any(is_sharded(module) for module in model.modules()) else list(repeated_blocks(model))
    else:
        chosen = _predicate(units)
        plain = compiled_from(model)  # parts of a model that is compiled as a whole are hooked within its graph
        hooked = [(name, module) for name, module in modules_hooked(plain) if module is not plain]
        found = [(name, module) for name, module in hooked if chosen(module) or chosen(compiled_from(module))]
        if not found and units:
            raise ConfigError(f"units={units!r} names no module of {type(model).__name__}", key="units")
    for name, module in found:
        if is_sharded(module):
            raise _sharded_twice(name or type(module).__name__)
    return [(name, block) for name, block in found if _has_parameters(block) and not _shares_outside(model, block)]


def _predicate(units: Sequence[type[nn.Module]] | Callable[[nn.Module], bool]) -> Callable[[nn.Module], bool]:
    if not isinstance(units, Sequence):
        if not callable(units):
            raise ConfigError(f"units is a list of module classes or a function, got {units!r}", key="units")
        return units
    for kind in units:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ConfigError(f"units lists classes of modules, got {kind!r}", key="units")
    kinds = tuple(units)
    return lambda module: isinstance(module, kinds)


def repeated_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules of a class that a container has at least twice, outermost only, in order.

    Modules without children count where the container is a ModuleList or the model itself: the layers of an MLP, but
    not the two linear layers in the Sequential of a larger block.
    """
    yield from _repeated("", model, is_root=True)


def _repeated(name: str, module: nn.Module, *, is_root: bool = False) -> Iterator[tuple[str, nn.Module]]:
    module = compiled_from(module) if is_root else module
    children = [(child_name, child, compiled_from(child)) for child_name, child in module.named_children()]
    repeated: set[type[nn.Module]] = set()
    if isinstance(module, _CONTAINERS):
        counts = Counter(type(plain) for _, _, plain in children if _has_parameters(plain))
        takes_leaves = is_root or isinstance(module, nn.ModuleList)
        repeated = {kind for kind, count in counts.items() if count > 1}
        if not takes_leaves:
            repeated = {type(p) for _, _, p in children if type(p) in repeated and any(p.children())}
    for child_name, child, plain in children:
        full = f"{name}.{child_name}" if name else child_name
        if type(plain) in repeated and can_run(plain):
            yield full, child
        elif not is_compiled(child):
            yield from _repeated(full, child)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def can_run(module: nn.Module) -> bool:
    """Return whether a module has a forward of its own, whose hooks gather it."""
    return type(module).forward is not nn.Module.forward


def _shares_outside(model: nn.Module, block: nn.Module) -> bool:
    """Return whether a parameter of a block is tied to one elsewhere: then the root gathers both."""
    inside = {id(module) for module in block.modules()}
    own = {id(parameter) for parameter in block.parameters()}
    for module in model.modules():
        if id(module) in inside:
            continue
        if own & {id(parameter) for parameter in module.parameters(recurse=False)}:
            return True
    return False


def _with_adapters(name: str, block: nn.Module, others: Sequence[nn.Module]) -> Iterator[PlannedUnit]:
    """Yield a block, and before it one unit of its trainable modules where the rest of it is frozen."""
    adapters = _adapters(block, others)
    if adapters:
        yield PlannedUnit(f"{name}.adapters" if name else "adapters", adapters)
    yield PlannedUnit(name, (block,))


def _adapters(block: nn.Module, others: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    """Return trainable modules within a block, not within `others`, where other modules are frozen.

    All parameters of such a module are trainable. None within a compiled module is among them, nor of
    nn.MultiheadAttention, which uses the parameters of its parts without calling them.
    """
    within = {id(module) for module in block.modules() if module is not block}
    inner = [other for other in others if id(other) in within]
    inner += [module for module in block.modules() if is_sharded(module)]
    elsewhere = {id(module) for other in inner for module in other.modules()}
    hidden = {
        id(part) for module in block.modules() if isinstance(module, nn.MultiheadAttention) for part in module.modules()
    }
    hooked = {id(compiled_from(module)): module for _, module in modules_hooked(block)}
    owners = [
        (module, list(module.parameters(recurse=False)))
        for module in block.modules()
        if id(module) not in elsewhere
    ]
    if all(parameter.requires_grad for _, own in owners for parameter in own):
        return ()
    shared = _tied(owners)
    return tuple(
        hooked[id(module)]
        for module, own in owners
        if own
        and module is not block
        and id(module) in hooked
        and id(module) not in hidden
        and can_run(module)
        and not any(module.children())
        and all(parameter.requires_grad and id(parameter) not in shared for parameter in own)
    )


def _tied(owners: Sequence[tuple[nn.Module, list[nn.Parameter]]]) -> set[int]:
    """Return the parameters that several modules own."""
    counts = Counter(id(parameter) for _, own in owners for parameter in own)
    return {parameter for parameter, count in counts.items() if count > 1}


def _sharded_twice(name: str) -> ConfigError:
    return ConfigError(
        f"{name} is sharded already; call fully_shard once for each module, or once for the whole model", key="model"
    )


def require_one_mode(modules: Sequence[nn.Module], sharding: Sharding) -> None:
    """Return where modules sharded within these already are of a mode that goes with this one, or raise.

    Raises:
        ConfigError: a mode in which workers meet for gathers within one in which they do not, or the other way round.
    """
    for module in modules:
        for name, part in module.named_modules():
            bound = bound_to(part)
            if bound is not None and bound.sharding.meets != sharding.meets:
                raise ConfigError(
                    f"{name} was sharded in mode {name_of(bound.sharding)!r}, and the module around it in mode "
                    f"{name_of(sharding)!r}; use one for the whole model",
                    key="mode",
                )


def require_unsharded(model: nn.Module) -> None:
    """Raise ConfigError where the model itself is sharded already."""
    if is_sharded(model):
        raise _sharded_twice(f"this {type(model).__name__}")
