"""What workers declare to optimizer nodes: a model's units, an optimizer's settings, and how steps are made."""

from __future__ import annotations

import getpass
import json
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from coarse.errors import ConfigError
from coarse.protocol.plan import Placement
from coarse.storage.paged.declaration import Declaration
from coarse.storage.paged.kernels import kernel_of
from coarse.storage.paged.layout import PagedModel
from coarse.torch.paged.optimizer import plain_settings
from coarse.torch.paged.plan import COMPUTE_TYPES, ModelPlan

_OPTIMIZERS = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)


def is_in_backward(update: str, speculative: bool) -> bool:
    """Whether units are updated before the step; ConfigError where the two options do not fit."""
    if update not in ("step", "backward"):
        raise ConfigError(f"update must be 'step' or 'backward', got {update!r}", key="update")
    if speculative and update != "backward":
        raise ConfigError("speculative=True belongs to update='backward'; leave it out", key="speculative")
    return update == "backward"


def settings_of(
    optimizer: type[torch.optim.Optimizer],
    settings: dict[str, Any],
    model: nn.Module,
    groups: Callable[[str], dict[str, Any]] | None,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The optimizer's defaults, and each trainable parameter's own settings, in the order of the model's parameters."""
    if optimizer not in _OPTIMIZERS:
        known = ", ".join(kind.__name__ for kind in _OPTIMIZERS)
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise ConfigError(f"optimizers of a model in the network are {known}, got {name}", key="optimizer")
    try:
        defaults = optimizer([torch.zeros(1, requires_grad=True)], **settings).defaults
        own = {
            name: {**defaults, **(groups(name) if groups is not None else {})}
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        for of_parameter in own.values():
            kernel_of(optimizer.__name__, plain_settings(of_parameter))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{optimizer.__name__}: {error}", key="optimizer") from None
    if not own:
        raise ConfigError("the model has no parameter that wants gradients; set requires_grad before", key="model")
    return defaults, own


def grouped(per_parameter: dict[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Settings that differ, in the order in which they come; and each parameter's place among them."""
    found: dict[str, int] = {}
    groups: list[dict[str, Any]] = []
    number_of = {}
    for name, settings in per_parameter.items():
        text = json.dumps(plain_settings(settings), sort_keys=True)
        if text not in found:
            found[text] = len(groups)
            groups.append(settings)
        number_of[name] = found[text]
    return groups, number_of


def declare(
    plan: ModelPlan,
    optimizer: type[torch.optim.Optimizer],
    per_parameter: dict[str, dict[str, Any]],
    placement: Placement,
    storage: Sequence[str | os.PathLike[str]] | None,
    dtype: torch.dtype | None,
    *,
    chunk_elements: int,
    **options: Any,  # noqa: ANN401
) -> Declaration:
    """The declaration of a model and its options.

    Raises:
        ConfigError: types that differ, or that nobody computes in; options out of range.
    """
    kinds = {parameter.dtype for of_unit in plan.parameters for parameter in of_unit}
    if dtype is None:
        if len(kinds) > 1:
            raise ConfigError(
                f"the model has parameters of {sorted(map(str, kinds))}; pass the dtype that workers compute in",
                key="dtype",
            )
        dtype = next(iter(kinds))
    if dtype not in COMPUTE_TYPES:
        known = ", ".join(map(str, COMPUTE_TYPES))
        raise ConfigError(f"dtype must be one of {known}, got {dtype}", key="dtype")
    if isinstance(storage, str | os.PathLike):
        raise ConfigError(f"storage is a list of folders, got {storage!r}; write [{str(storage)!r}]", key="storage")
    groups, number_of = grouped(per_parameter)
    plain = tuple(plain_settings(group) for group in groups)
    model = PagedModel(
        units=plan.units,
        pulled=COMPUTE_TYPES[dtype],
        num_states=max(kernel_of(optimizer.__name__, group).num_states for group in plain),
        num_devices=placement.num_devices,
        chunk_elements=chunk_elements,
    )
    return Declaration(
        model=model,
        optimizer=optimizer.__name__,
        groups=plain,
        group_of=tuple(tuple(number_of.get(tensor.name, 0) for tensor in unit.tensors) for unit in plan.units),
        num_workers=placement.num_clients,
        storage=None if storage is None else tuple(os.fspath(folder) for folder in storage),
        gradients=COMPUTE_TYPES[dtype],
        owner=_owner(),
        run=uuid.uuid4().hex,
        **options,
    )


def _owner() -> str:
    try:
        return f"{getpass.getuser()}, process {os.getpid()}"
    except (KeyError, OSError):
        return f"user {os.getuid()}, process {os.getpid()}"


def statement(declaration: Declaration) -> list[tuple[str, str]]:
    """What all workers have to have alike, name by name."""
    lines = [
        (
            f"parameter {tensor.name}",
            f"{list(tensor.shape)}{'' if tensor.is_trainable else ', frozen'} of unit {unit.name!r}, group {group}",
        )
        for unit, groups in zip(declaration.model.units, declaration.group_of, strict=True)
        for tensor, group in zip(unit.tensors, groups, strict=True)
    ]
    fields = json.loads(declaration.to_json())
    fields |= {name: value for name, value in fields.pop("model").items() if name != "units"}
    left_out = ("run", "owner", "group_of")
    return lines + [(name, str(fields[name])) for name in sorted(fields) if name not in left_out]


