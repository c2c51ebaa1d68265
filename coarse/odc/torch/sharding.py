"""Sharding by a call of `fully_shard` in mode odc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coarse.errors import CapacityError
from coarse.odc.client.model import OdcModel
from coarse.odc.layout import EVERYTHING, OdcDeclaration
from coarse.odc.torch.minibatch import watch_optimizers
from coarse.odc.torch.tree import OdcTree, trees_in
from coarse.odc.torch.unit import OnDemandUnit
from coarse.session import current
from coarse.strategy.sharding import Sum
from coarse.torch.fsdp import mesh as meshes
from coarse.torch.fsdp.fsdp2 import Fsdp2Unit
from coarse.torch.fsdp.groups import settle, shard_groups

if TYPE_CHECKING:
    from coarse.torch.fsdp.plan import Plan

_NUM_SLOTS = 4
"""Number of pieces of one worker that may be under way."""


def shard_on_demand(plan: Plan, call: str) -> None:
    """Have FSDP2 shard each unit, inner ones first, and open them at the memory devices.

    All members make the same call.

    Raises:
        CapacityError: on all members, if a memory device has no room for its part.
    """
    request = plan.request
    mesh = meshes.default_mesh(plan.sharding) if request.mesh is None else request.mesh
    members = meshes.shard_group_ranks(mesh)
    modules = [module for unit in plan.units for module in unit.modules]
    inner = list(dict.fromkeys(tree for module in modules for tree in trees_in(module)))
    sharded: list[OnDemandUnit] = []
    root = None
    for unit in plan.units:
        root = Fsdp2Unit(unit.modules, {"mesh": mesh, **request.fsdp2_options})
        if root.has_parameters:
            sharded.append(OnDemandUnit(unit.name, root, len(sharded), request.account, plan.sharding))
    assert root is not None
    declaration = OdcDeclaration(
        members=members, units=tuple(unit.shape() for unit in sharded), sum=Sum(request.sum),
        cache_bytes=_cache_bytes(request.cache), top=request.sum_top, num_slots=_NUM_SLOTS,
    )  # fmt: skip
    group = shard_groups().group_of(members, request.collective)
    client = current().require_client()
    number = client.next_model()
    made: list[OdcModel] = []

    def make() -> OdcModel:
        made.append(OdcModel(number, client, declaration, call))
        return made[0]

    try:
        model = settle(group, make)
    except CapacityError:
        for one in made:
            one.release()
        raise
    model.open()
    group.barrier()  # so that every device knows the model
    for own in sharded:
        own.model = model
    tree = OdcTree(root, [(model, sharded)])
    tree.take_over(inner)
    watch_optimizers()
    for own in sharded:
        _watch(own)


def _cache_bytes(cache: object) -> int:
    if cache is None or cache is False:
        return 0
    return EVERYTHING if cache is True else int(cache)  # type: ignore[call-overload]


def _watch(unit: OnDemandUnit) -> None:
    """Tell the unit's tree of forwards and backwards."""

    def tree() -> OdcTree:
        """Return the present tree: another call of fully_shard may have taken it over."""
        assert isinstance(unit.tree, OdcTree)
        return unit.tree

    unit.fsdp.before_forward(lambda: tree().on_forward(), lambda: tree().on_enter(unit))
    unit.fsdp.before_backward(lambda: tree().on_backward())
