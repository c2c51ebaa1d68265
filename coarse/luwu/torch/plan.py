"""Plan of the places where a model's parameters are used, and of those that are pulled together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from coarse.errors import ConfigError, UnsupportedError
from coarse.luwu.store.layout import PagedTensor, PagedUnit
from coarse.protocol.dtypes import DType
from coarse.torch.fsdp.units import Units, can_run, chosen_blocks, require_unsharded
from coarse.torch.wrappers import compiled_from, is_compiled, require_no_ddp

COMPUTE_TYPES = {torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16}


@dataclass(frozen=True)
class Use:
    """Place in a module where a parameter stands."""

    module: nn.Module
    attribute: str
    unit: int
    tensor: int


@dataclass(eq=False)
class ModuleSite:
    """Module during whose forward parameters are there."""

    name: str
    module: nn.Module
    uses: list[Use] = field(default_factory=list)
    own_modules: list[nn.Module] = field(default_factory=list)
    """The module, and those within it, without other sites'."""

    @property
    def units(self) -> list[int]:
        """Units that it needs, each once."""
        return list(dict.fromkeys(use.unit for use in self.uses))


@dataclass(frozen=True)
class ModelPlan:
    """Sites and units of a model."""

    sites: list[ModuleSite]
    units: tuple[PagedUnit, ...]
    parameters: tuple[tuple[nn.Parameter, ...], ...]
    """Parameters by unit and tensor."""


def plan_model(model: nn.Module, units: Units) -> ModelPlan:
    """Plan the sites and units of a model.

    Sites are the repeated blocks, or the modules that `units` names; without `units` also modules outside of blocks
    that own matrices, such as embeddings and heads; and the model itself for all the rest. The trainable and the frozen
    parameters of a site are a unit each. A parameter that several sites use is a unit's of the first.

    Raises:
        ConfigError, UnsupportedError: a model that cannot be planned.
    """
    _require_plain(model)
    sites = [ModuleSite(name, module) for name, module in _site_modules(model, units)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places: dict[int, tuple[int, int]] = {}
    made: list[PagedUnit] = []
    parameters: list[tuple[nn.Parameter, ...]] = []
    inner = {id(site.module) for site in sites}
    for site in sites:
        site.own_modules = list(_own_modules(site.module, inner))
        own = [
            (module, attribute, parameter)
            for module in site.own_modules
            for attribute, parameter in module._parameters.items()
            if parameter is not None
        ]
        fresh = {id(p): p for _, _, p in own if id(p) not in places}
        for trains, suffix in ((True, ""), (False, ".frozen")):
            of_unit = [p for p in fresh.values() if p.requires_grad is trains]
            if not of_unit:
                continue
            tensors = tuple(PagedTensor(names[id(p)], tuple(p.shape), trains) for p in of_unit)
            for place, parameter in enumerate(of_unit):
                places[id(parameter)] = len(made), place
            made.append(PagedUnit(site.name + suffix, tensors))
            parameters.append(tuple(of_unit))
        site.uses = [Use(module, attribute, *places[id(p)]) for module, attribute, p in own]
    return ModelPlan([site for site in sites if site.uses], tuple(made), tuple(parameters))


def _require_plain(model: nn.Module) -> None:
    """Refuse parameters that are sharded, on an accelerator, or of a type that is not kept."""
    require_no_ddp(model)
    for module in model.modules():
        require_unsharded(module)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f"{name!r} has no shape yet; run the model once first", key="model")
        if parameter.device.type not in ("cpu", "meta"):
            raise UnsupportedError(
                f"{name!r} is on {parameter.device}: a model in the network computes on CPUs so far; build it on the "
                "CPU, or on the meta device"
            )
        if parameter.dtype not in COMPUTE_TYPES:
            known = ", ".join(str(dtype) for dtype in COMPUTE_TYPES)
            raise ConfigError(f"{name!r} is {parameter.dtype}; a model in the network computes in {known}", key="model")


def _site_modules(model: nn.Module, units: Units) -> Iterator[tuple[str, nn.Module]]:
    """Yield sites in the order of the model's modules, the model itself last."""
    chosen = {id(module) for _, module in chosen_blocks(model, units)}
    yield from _within("", model, chosen, takes_matrices=units is None)
    yield "", model


def _within(name: str, module: nn.Module, chosen: set[int], *, takes_matrices: bool) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in (module if name else compiled_from(module)).named_children():
        full = f"{name}.{child_name}" if name else child_name
        if id(child) in chosen:
            yield full, child
            yield from _within(full, child, chosen, takes_matrices=False)
        elif takes_matrices and _is_matrix(child):
            yield full, child
        else:
            yield from _within(full, child, chosen, takes_matrices=takes_matrices)


def _is_matrix(module: nn.Module) -> bool:
    """Return whether a module owns a matrix; for a compiled one, whether any module within does."""
    if is_compiled(module):
        return any(parameter.dim() > 1 for parameter in module.parameters())
    return can_run(module) and any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))


def _own_modules(module: nn.Module, inner: set[int]) -> Iterator[nn.Module]:
    """Yield a site's module, and those within it that are in no site within the site."""
    yield module
    for child in module.children():
        if id(child) not in inner:
            yield from _own_modules(child, inner)
