"""Function `fully_shard`: one line picks the way that a model is sharded, gathered and cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy

import coarse
from coarse.errors import CapacityError, ConfigError
from coarse.parallel.sharded.unit_cache import AcceleratorCache
from coarse.protocol.features import part_of
from coarse.session import current
from coarse.strategy.sharding import SUM_TOP, Keeps, Sharding, Sum, name_of
from coarse.torch.fsdp import mesh as meshes
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.accounting import watch_memory
from coarse.torch.fsdp.fsdp2 import Fsdp2Unit
from coarse.torch.fsdp.fsdp2_hooks import require_hooks
from coarse.torch.fsdp.groups import require_same, settle, shard_groups
from coarse.torch.fsdp.kept_units import KeptUnits
from coarse.torch.fsdp.plan import Plan, Request, modules_of
from coarse.torch.fsdp.stale_optimizers import noting_replaced
from coarse.torch.fsdp.tree import watch_forwards
from coarse.torch.fsdp.unit import ShardedUnit, units_of
from coarse.torch.fsdp.units import require_one_mode
from coarse.torch.steps import tell_of_steps

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup

_Model = TypeVar("_Model", bound=nn.Module | Sequence[nn.Module])


def fully_shard(
    model: _Model,
    mode: str | Sharding | None = None,
    *,
    units: Sequence[type[nn.Module]] | Callable[[nn.Module], bool] | None = None,
    collective: str = "hierarchical",
    cache: AcceleratorCache | bool | int | None = None,
    reads: str | None = None,
    quantised: bool = False,
    account: DeviceAccount | None = None,
    mesh: DeviceMesh | None = None,
    sum: str = Sum.INT64,
    sum_top: int = SUM_TOP,
    **fsdp2_options: object,
) -> _Model:
    """Shard a model in place by torch's FSDP2 over coarse's collectives and caches, and return it.

    All workers make the same call.

    Args:
        model: module to shard, on the meta device too; a list becomes one unit. Make its optimizer afterwards.
        mode: "fsdp", "hybrid", "zeropp" or "fcdp": what each moves and keeps stands in docs/sharded.md; "odc": see
            docs/odc.md and `end_minibatch`. MODULE:CLASS, FILE.py:CLASS or an instance: the user's own
            coarse.strategy.Sharding (docs/strategies.md). The default is the configuration's `sharding`, or "fsdp".
        units: classes of modules to gather one by one, or a function that chooses them; by default repeated blocks.
        collective: "hierarchical" moves each byte once between two nodes; "ring" from worker to worker.
        cache: fcdp: an AcceleratorCache, which keeps units on the accelerator as long as less than its tau is in use.
            odc: True, or the bytes that a node may keep of other nodes' shards, and of sums for them.
        reads: fcdp: "parts": each worker reads its part of a unit from the node's memory, and the node gathers (FCDP
            IV-C); "whole": each worker reads all of it, which it may do alone. The default is parts; whole with a
            `cache`, about which each worker decides for itself, and on GPUs, which have no gather among themselves.
        quantised: zeropp only: forward gathers int8 (qwZ); the error that this costs is printed.
        account: counts this rank's accelerator memory.
        mesh: the workers; by default all, for hybrid nodes times the workers of each.
        sum: odc only: "int64" gives the same bits for any order of gradients, "float32" adds them as they come,
            "worker-order" as a collective would, where all push equally many.
        sum_top: odc only, of int64: gradients lie below 2**sum_top in size, and are multiples of 2**(sum_top - 80).
        fsdp2_options: mp_policy, reshard_after_forward, offload_policy and so on, as FSDP2 has them.

    Raises, on all workers:
        ConfigError: a request that cannot work.
        CapacityError: fcdp, and a node's memory devices have no room for the gathered model; odc, and one has none for
            its part.
        MismatchError: workers that shard different models, or in different ways.
        UnsupportedVersionError: a torch without the hooks that this needs.
    """
    require_hooks()
    everyone = _joined(mesh)
    chosen = mode or current().config.sharding or "fsdp"
    request = Request(chosen, units, collective, cache, reads, quantised, account, mesh, fsdp2_options, sum, sum_top)
    plan = settle(everyone, lambda: _planned(request, model))
    require_same(everyone, plan.statement(), "what is sharded")
    _tell_of(plan.sharding, collective)
    with noting_replaced(modules_of(model)):
        call = shard_groups().next_call(everyone.ranks)
        if plan.sharding.meets:
            _take_buffers(_shard(plan, call))
        else:
            part_of(plan.sharding.shards_by)(plan, call)
    _count_memory(model, account, fsdp2_options)
    return model


def _tell_of(sharding: Sharding, collective: str) -> None:
    """Tell an emulated job the mode and its options, and the optimizer's steps."""
    link = current().require_client().link
    link.note_mode(name_of(sharding), collective=collective, **vars(sharding))
    tell_of_steps(link)


def _planned(request: Request, model: nn.Module | Sequence[nn.Module]) -> Plan:
    plan = request.plan_for(model)
    require_one_mode(modules_of(model), plan.sharding)
    return plan


def release_caches(model: nn.Module) -> None:
    """Give back the node memory that holds a model's gathered units in mode fcdp; all workers call it.

    It is free when this returns. A forward of the model takes it anew.
    """
    units = units_of(model)
    for unit in units:
        unit.release_buffer()
    for group in dict.fromkeys(unit.group for unit in units):
        group.barrier()


def _joined(mesh: DeviceMesh | None) -> WorkerGroup:
    """Return all workers that shard now, for their settlements; start coarse and torch.distributed."""
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise ConfigError(f"mesh is a DeviceMesh, got {mesh!r}", key="mesh")
    meshes.join()
    ranks = tuple(range(coarse.size())) if mesh is None else tuple(sorted(set(mesh.mesh.flatten().tolist())))
    return shard_groups().group_of(ranks, "ring")


def _count_memory(
    model: nn.Module | Sequence[nn.Module], account: DeviceAccount | None, fsdp2_options: dict[str, object]
) -> None:
    if account is None:
        return
    is_offloaded = isinstance(fsdp2_options.get("offload_policy"), CPUOffloadPolicy)
    for module in modules_of(model):
        watch_memory(module, account, is_offloaded=is_offloaded)


def _shard(plan: Plan, call: str) -> list[ShardedUnit]:
    """Have FSDP2 shard each unit, inner ones first, and take over its collectives."""
    request = plan.request
    mesh = meshes.default_mesh(plan.sharding) if request.mesh is None else request.mesh
    group = shard_groups().group_of(meshes.shard_group_ranks(mesh), request.collective)
    replicas = meshes.replica_group_ranks(mesh)
    replica_group = shard_groups().group_of(replicas, "ring") if len(replicas) > 1 else None
    kept = None
    if isinstance(request.cache, AcceleratorCache) and request.account is not None:
        kept = KeptUnits(request.cache, request.account)
    sharded = []
    for unit in plan.units:
        fsdp = Fsdp2Unit(unit.modules, {"mesh": mesh, **request.fsdp2_options})
        if not fsdp.has_parameters:
            continue
        own = ShardedUnit(
            unit.name,
            fsdp,
            group,
            plan.sharding,
            call=call,
            replicas=replica_group,
            account=request.account,
            reads=request.node_reads,
        )
        watch_forwards(own)
        if kept is not None:
            kept.manage(own)
        sharded.append(own)
    return sharded


def _take_buffers(units: Sequence[ShardedUnit]) -> None:
    """Take every unit's buffer before training, or none of them.

    Raises:
        CapacityError: with the bytes of all of them.
    """
    buffered = [unit for unit in units if unit.keeps is Keeps.HOST_COPY]
    try:
        for unit in buffered:
            unit.take_buffer(unit.fsdp.gathered_nbytes())
    except CapacityError as refused:
        for unit in buffered:
            unit.release_buffer()
        total_bytes = sum(unit.fsdp.gathered_nbytes() for unit in buffered)
        raise CapacityError(
            f"mode {name_of(buffered[0].sharding)!r} keeps a copy of the gathered model on every node, {total_bytes} "
            f"bytes in all in {len(buffered)} units, for which a node's memory devices have no room: {refused}"
        ) from refused
