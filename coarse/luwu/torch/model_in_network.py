"""Function `model_in_network`: a model whose parameters and states live on memory devices (LuWu)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from coarse.luwu.client.exponents import ExponentAgreement, exponents_of_model
from coarse.luwu.client.model import RemoteModel, new_model
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.layout import CHUNK_ELEMENTS
from coarse.luwu.torch.declared import Options, declare, grouped, resume_asked, settings_of, statement
from coarse.luwu.torch.first_values import FirstValues, Initialise
from coarse.luwu.torch.optimizer import NetworkOptimizer
from coarse.luwu.torch.plan import COMPUTE_TYPES, ModelPlan, plan_model
from coarse.luwu.torch.released import placeholder_parameter
from coarse.luwu.torch.sites import Backward, FilledModule
from coarse.luwu.torch.timeline import WorkerTimeline
from coarse.luwu.torch.unit import UnitMemories
from coarse.parallel.data.equal_values import require_same
from coarse.protocol.dtypes import Op
from coarse.session import current, is_initialized
from coarse.torch.fsdp.units import Units
from coarse.torch.groups.process_sets import init
from coarse.transport.commit_note import commit_note

Model = TypeVar("Model", bound=nn.Module)


def model_in_network(
    model: Model,
    optimizer: type[torch.optim.Optimizer],
    *,
    storage: Sequence[str | os.PathLike[str]] | None,
    units: Units = None,
    groups: Callable[[str], dict[str, Any]] | None = None,
    update: str = "step",
    accumulate: int = 1,
    speculative: bool = False,
    op: Op = Op.AVERAGE,
    dtype: torch.dtype | None = None,
    memory: int | None = None,
    commit_every: int = 1,
    resume: bool | str = False,
    other_kernel: bool = False,
    sum: str = "float32",
    kernel: str = "numpy",
    chunk_elements: int = CHUNK_ELEMENTS,
    timeline: str | os.PathLike[str] | None = None,
    optimizers: Sequence[int] | None = None,
    switches: int | Mapping[int, Sequence[int]] | None = None,
    network: str = "mpi",
    loss: float = 0.0,
    initialise: Initialise | None = None,
    **settings: object,
) -> tuple[Model, NetworkOptimizer]:
    """Put a model in the network; return it and its optimizer. All workers make the same call.

    The model's parameters are from now on pulled and pushed. A worker holds the parameters of the unit that it computes
    and of the next one. Memory devices keep parameters and states, add the workers' gradients, and make the steps
    (LuWu, sections 3.1 to 3.3). Worker 0's values come first.

    Args:
        model: on the CPU, or on the meta device: then each unit is made and initialised in its turn.
        optimizer: torch.optim.AdamW, Adam or SGD; `settings` are its own (lr and so on).
        units: modules that are pulled together, as for fully_shard; by default repeated blocks, modules beside them
            that own matrices, and the rest.
        groups: settings for a parameter's name that differ from `settings`, such as no weight decay for biases.
        initialise: for a meta model, fills a module that owns parameters; by default its reset_parameters().
        storage: folders on each memory device's host; None: device memory keeps the states. Options has more
            about this argument and those below.
        update: "step" or "backward".
        accumulate: backward passes of each step.
        speculative: with update="backward", gradients are kept until the step.
        op: average or sum over workers.
        dtype: type in which workers compute.
        memory: bytes that each optimizer node may use for buffers.
        commit_every: number of steps after which a step is made to outlive a crash.
        resume: True, False or "auto".
        other_kernel: resume also where another kernel has computed the steps.
        sum: "float32", "int64" or "int32-switchml".
        kernel: "numpy" or "torch-fused".
        chunk_elements: number of elements that are read, updated and written at a time.
        timeline: folder for traces.
        optimizers: memory devices that are optimizer nodes.
        switches: memory devices that add and copy on the way.
        network: "mpi" or "udp".
        loss: share of datagrams of "udp" to be dropped on purpose.
        **settings: settings of the optimizer.

    Raises:
        ConfigError, UnsupportedError: a model or options that cannot work.
        CapacityError: disks or memory that are too small, before training.
        StorageError: folders of another model or job, read-only ones and so on.
        MismatchError: workers that differ in model or settings.
    """
    options = Options(
        storage=storage, update=update, accumulate=accumulate, speculative=speculative, op=op, dtype=dtype,
        memory=memory, commit_every=commit_every, resume=resume_asked(resume, os.environ),
        other_kernel=other_kernel, sum=sum, kernel=kernel, chunk_elements=chunk_elements, timeline=timeline,
        optimizers=optimizers, switches=switches, network=network, loss=loss,
    )  # fmt: skip
    if not is_initialized():
        init()
    plan = plan_model(model, units)
    first = FirstValues(plan, initialise)
    first.require_made(model)
    defaults, own = settings_of(optimizer, settings, model, groups)
    return model, _open(model, plan, first, defaults, own, declare(plan, optimizer, own, options), op)


def _open(
    model: nn.Module,
    plan: ModelPlan,
    first: FirstValues,
    defaults: dict[str, Any],
    per_parameter: dict[str, dict[str, Any]],
    declaration: Declaration,
    op: Op,
) -> NetworkOptimizer:
    """Open the model at its optimizer nodes, and begin."""
    require_same(statement(declaration), "model's")
    runtime = current()
    client = runtime.require_client()
    remote = new_model(client)
    try:
        remote.open(declaration)
        if declaration.is_packed:
            _agree_on_exponents(remote, new_model(client))
        divisor = 1 if op is Op.SUM else runtime.placement.num_clients
        made = _attach(model, plan, remote, defaults, per_parameter, divisor)
        _begin(model, made, first)
    except BaseException as error:
        remote.close(f"{type(error).__name__}: {error}")
        raise
    client.before_leaving.append(made.close)
    return made


def _agree_on_exponents(remote: RemoteModel, exponents: RemoteModel) -> None:
    """Open the all-reduce by which workers agree on the exponents of their pushes."""
    try:
        exponents.open(exponents_of_model(remote.declaration))
    except BaseException as error:
        exponents.close(f"{type(error).__name__}: {error}")
        raise
    remote.agreement = ExponentAgreement(remote, exponents)


def _begin(model: nn.Module, made: NetworkOptimizer, first: FirstValues) -> None:
    """Give a new model its first values, or resume with those of a committed step."""
    remote = made.remote
    if current().client_index == 0:
        for line in remote.told:
            print(f"coarse: {line}", file=sys.stderr, flush=True)
        if (note := commit_note(os.environ)) is not None:
            remote.on_committed = note.put
            if remote.committed_step > 0:
                note.put(remote.committed_step)
    first.fill_buffers(model)
    if remote.resumed is None:
        for unit in range(len(remote.declaration.model.units)):
            made.values.write(unit, first.of(unit))
    else:
        assert remote.state is not None
        made.resume(remote.resumed["step"], remote.state)
    made.begin()



def _attach(
    model: nn.Module,
    plan: ModelPlan,
    remote: RemoteModel,
    defaults: dict[str, Any],
    per_parameter: dict[str, dict[str, Any]],
    divisor: int,
) -> NetworkOptimizer:
    """Put placeholders into the model, hooks around its sites, and make the optimizer."""
    made: NetworkOptimizer
    placeholders: dict[tuple[int, int], nn.Parameter] = {}
    by_name: dict[str, nn.Parameter] = {}
    compute = next(kind for kind, own in COMPUTE_TYPES.items() if own is remote.declaration.model.pulled)

    def accepting(unit: int, place: int) -> Callable[[torch.Tensor], bool]:
        return lambda values: made.values.accept(unit, place, values)

    for unit, of in enumerate(plan.units):
        for place, (tensor, parameter) in enumerate(zip(of.tensors, plan.parameters[unit], strict=True)):
            stands = placeholder_parameter(
                tensor.name, parameter, compute, lambda: made.has_pushed, accepting(unit, place)
            )
            placeholders[unit, place] = by_name[tensor.name] = stands
    groups, number_of = grouped(per_parameter)
    members: list[list[nn.Parameter]] = [[] for _ in groups]
    for name, number in number_of.items():
        members[number].append(by_name[name])
    own_groups = [{**group, "params": params} for group, params in zip(groups, members, strict=True)]
    dtypes = {
        tensor.name: parameter.dtype
        for unit, of in enumerate(plan.units)
        for tensor, parameter in zip(of.tensors, plan.parameters[unit], strict=True)
    }
    made = NetworkOptimizer(remote, model, own_groups, defaults, placeholders, divisor, dtypes)
    timeline = None
    if remote.declaration.timeline:
        remote.timeline = timeline = WorkerTimeline(remote.client, remote.declaration.timeline)
    memories = UnitMemories(remote, made.before_pull, timeline)
    backward = Backward(remote, memories, made.before_push, made.require_pass)
    sites = [FilledModule(planned, backward, placeholders) for planned in plan.sites]
    made.attach(memories, backward, sites)
    model.register_state_dict_post_hook(lambda module, state, prefix, meta: made.values.put_into(state, dtypes))
    model.register_load_state_dict_pre_hook(lambda *_: made.values.begin_loading())
    model.register_load_state_dict_post_hook(lambda *_: made.values.end_loading())
    return made

