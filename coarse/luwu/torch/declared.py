"""Declaration by workers to optimizer nodes: a model's units, an optimizer's settings, and its steps."""

from __future__ import annotations

import getpass
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from coarse.errors import ConfigError
from coarse.luwu.many_to_one.tree import plan_roles, plan_tree
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.store.layout import PagedModel
from coarse.luwu.torch.optimizer import plain_settings
from coarse.luwu.torch.plan import COMPUTE_TYPES, ModelPlan
from coarse.protocol.dtypes import DType, Op
from coarse.session import current
from coarse.transport.launcher import told_to_this_job

AUTO = "auto"
"""Value of `resume` that resumes where there is a committed step."""
OPTIMIZERS = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a model in the network: its storage and its steps; see model_in_network."""

    storage: Sequence[str | os.PathLike[str]] | None
    """Folders on each memory device's host, best on separate disks; None: device memory keeps the states."""
    update: str
    """Time of updates. "step": step() has all units updated, behind the next forward. "backward": each unit is updated
    as soon as all workers have pushed it, with the settings that backward began with; the step makes it count (the
    paper's way)."""
    accumulate: int
    """Backward passes of each step, which update="backward" has to know."""
    speculative: bool
    """True, with update="backward", if gradients are kept until the step, which may clip them, or use changed settings,
    and then makes the updates anew."""
    op: Op
    """Operation over workers: gradients are averaged, or summed."""
    dtype: torch.dtype | None
    """Type in which workers compute, float32 by default or the model's; states are float32."""
    memory: int | None
    """Bytes that each optimizer node may use for buffers; by default half of those that its machine has left."""
    commit_every: int
    """Number of steps after which a step is made to outlive a crash."""
    resume: bool | str
    """True to resume from the last committed step in `storage`, which `optimizer.steps` names. "auto": resume where
    there is one, and begin in empty folders."""
    other_kernel: bool
    """True to resume also where another kernel has computed the steps."""
    sum: str
    """Way of adding: "float32" adds in the workers' order; "int64" and "int32-switchml" add integers."""
    kernel: str
    """Kernel: "numpy", whose bits are equal on any host; "torch-fused" is faster."""
    chunk_elements: int
    """Number of elements that are read, updated and written at a time."""
    timeline: str | os.PathLike[str] | None
    """Folder for traces of workers and optimizer nodes in time, for Perfetto (ui.perfetto.dev)."""
    optimizers: Sequence[int] | None = None
    """Memory devices that are optimizer nodes; by default all that are no switches."""
    switches: int | Mapping[int, Sequence[int]] | None = None
    """Memory device that adds the pushes of all hosts before the optimizer node has them, and copies their pulls; or,
    for several, the devices below each. Without it each host's device speaks with the optimizer node."""
    network: str = "mpi"
    """Network by which packets go from host to host: "mpi" or "udp"."""
    loss: float = 0.0
    """Share of datagrams of "udp" to be dropped on purpose."""

    def __post_init__(self) -> None:
        if self.update not in ("step", "backward"):
            raise ConfigError(f"update must be 'step' or 'backward', got {self.update!r}", key="update")
        if self.speculative and self.update != "backward":
            raise ConfigError("speculative=True belongs to update='backward'; leave it out", key="speculative")
        require_list(self.storage)
        require_resume(self.resume)


def require_resume(resume: object) -> None:
    """Raise ConfigError for a value that `resume` cannot have."""
    if resume not in (True, False, AUTO):
        raise ConfigError(f"resume is True, False or {AUTO!r}, got {resume!r}", key="resume")


def resume_asked(resume: bool | str, environ: Mapping[str, str]) -> bool | str:
    """Return `resume`, or AUTO where `coarse run` has started the job again.

    In the latter case the folders are this job's own.
    """
    restarts = told_to_this_job(environ).get("COARSE_RESTARTS", "0")
    return AUTO if resume is False and restarts != "0" else resume


def require_list(storage: object) -> None:
    """Raise ConfigError where storage is a single folder, which would be taken for a list of letters."""
    if isinstance(storage, str | os.PathLike):
        raise ConfigError(f"storage is a list of folders, got {storage!r}; write [{str(storage)!r}]", key="storage")


def settings_of(
    optimizer: type[torch.optim.Optimizer],
    settings: dict[str, Any],
    model: nn.Module,
    groups: Callable[[str], dict[str, Any]] | None,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the optimizer's defaults, and each trainable parameter's own settings.

    Parameters come in the model's order.
    """
    if optimizer not in OPTIMIZERS:
        known = ", ".join(kind.__name__ for kind in OPTIMIZERS)
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise ConfigError(f"optimizers of a model in the network are {known}, got {name}", key="optimizer")
    try:
        defaults = optimizer([torch.zeros(1, requires_grad=True, device="cpu")], **settings).defaults
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
    """Return settings that differ, in order of appearance, and each parameter's place among them."""
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
    options: Options,
) -> Declaration:
    """Return the declaration of a model to its optimizer nodes.

    Raises:
        ConfigError: types that differ, or that no worker computes in; options out of range.
    """
    placement = current().placement
    nodes, switches = plan_roles(options.optimizers, options.switches, placement)
    trees = [plan_tree(node, number, placement, dict(switches)) for number, node in enumerate(nodes)]
    is_packed = options.sum != "float32" and any(len(tree.devices) > 1 for tree in trees)
    dtype = _compute_type(plan, options.dtype)
    groups, number_of = grouped(per_parameter)
    plain = tuple(plain_settings(group) for group in groups)
    model = PagedModel(
        units=plan.units,
        pulled=dtype,
        num_states=max(kernel_of(optimizer.__name__, group).num_states for group in plain),
        num_devices=len(nodes),
        chunk_elements=options.chunk_elements,
    )
    return Declaration(
        model=model,
        optimizer=optimizer.__name__,
        groups=plain,
        group_of=tuple(tuple(number_of.get(tensor.name, 0) for tensor in unit.tensors) for unit in plan.units),
        num_workers=placement.num_clients,
        storage=None if options.storage is None else tuple(os.fspath(folder) for folder in options.storage),
        gradients=dtype,
        owner=owner(),
        run=uuid.uuid4().hex,
        memory_bytes=options.memory,
        in_backward=options.update == "backward",
        num_passes=options.accumulate,
        is_speculative=options.speculative,
        wants_norm=options.speculative,
        commit_every=options.commit_every,
        resume=options.resume is True,
        resume_if_there=options.resume == AUTO,
        other_kernel=options.other_kernel,
        sum=options.sum,
        is_packed=is_packed,
        kernel=options.kernel,
        timeline="" if options.timeline is None else os.path.abspath(options.timeline),
        nodes=nodes,
        network=options.network,
        switches=switches,
        loss=options.loss,
    )


def _compute_type(plan: ModelPlan, wanted: torch.dtype | None) -> DType:
    """Return the type that workers compute in."""
    kinds = {parameter.dtype for of_unit in plan.parameters for parameter in of_unit}
    if wanted is None:
        if len(kinds) > 1:
            raise ConfigError(
                f"the model has parameters of {sorted(map(str, kinds))}; pass the dtype that workers compute in",
                key="dtype",
            )
        wanted = next(iter(kinds))
    if wanted not in COMPUTE_TYPES:
        known = ", ".join(map(str, COMPUTE_TYPES))
        raise ConfigError(f"dtype must be one of {known}, got {wanted}", key="dtype")
    return COMPUTE_TYPES[wanted]


def owner() -> str:
    """Return a text for people that names this process."""
    try:
        return f"{getpass.getuser()}, process {os.getpid()}"
    except (KeyError, OSError):
        return f"user {os.getuid()}, process {os.getpid()}"


def statement(declaration: Declaration) -> list[tuple[str, str]]:
    """Return the facts that have to be equal on all workers, name by name."""
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


