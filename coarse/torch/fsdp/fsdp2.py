"""Access to FSDP2's private names (torch.distributed.fsdp._fully_shard), which no other file uses.

fsdp2_hooks.py checks that they are there. Public are `fully_shard`, `FSDPModule` and its setters. Private are a
module's parameter group, which its state has, the parameters' shards, and the beginning of a root's forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.weak import WeakTensorKeyDictionary

from coarse.torch.structures import kept_tensors, tensors_in

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

Tree = TypeVar("Tree")


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 has sharded the module as a unit, by any call."""
    return isinstance(module, FSDPModule)


class Fsdp2Unit:
    """Unit of FSDP2: the modules of one call of its `fully_shard`, which are gathered together.

    [Note: set aside] A unit that stays gathered from one use to the next is set aside: its modules show their shards
    again, as after FSDP2's own reshard, while the gathered storage is kept. So a script sees shards between forward and
    backward, and after an evaluation, for anything that a worker happens to keep: it clips, edits, saves and loads
    shards, whose changes are then noticed.
    """

    def __init__(self, modules: nn.Module | Sequence[nn.Module], options: Mapping[str, Any]) -> None:
        """Shard `modules`, one or a list to be gathered together; `options` are FSDP2's."""
        several = [modules] if isinstance(modules, nn.Module) else list(modules)
        first: Any = several[0]
        fully_shard(first if len(several) == 1 else several, **options)
        self.module = first
        self._state: Any = first._get_fsdp_state()
        self._group: Any = self._state._fsdp_param_group
        self._prefetched: object = None
        self._is_aside = False
        self._keeps: Callable[[], bool] = lambda: False
        self._claims: Callable[[], None] = lambda: None
        self._reduced: tuple[int, ...] = ()
        self._before_reduce: Callable[[], None] = lambda: None
        self._after_reduce: Callable[[], None] = lambda: None
        if self._group is not None:
            self._inner_reshard, self._group.reshard = self._group.reshard, self._reshard
            self._inner_unshard, self._group.unshard = self._group.unshard, self._unshard
            self._inner_wait_for_unshard = self._group.wait_for_unshard
            self._group.wait_for_unshard = self._wait_for_unshard
            self._inner_post_backward, self._group.post_backward = self._group.post_backward, self._post_backward
            first.register_forward_hook(self._after_forward)
            for module in several:
                module.register_forward_hook(self._watch_results)

    @property
    def qualified_name(self) -> str | None:
        """Name of the unit from its root, "" for the root; None before the first forward."""
        name: str | None = self._group._module_fqn
        return name

    @property
    def has_parameters(self) -> bool:
        """True if the unit has parameters to shard; False where all lie in other units."""
        return self._group is not None

    def use(self, all_gather: object, reduce_scatter: object) -> None:
        """Move the unit's bytes by these two, which are as FSDP2's AllGather and ReduceScatter.

        FSDP2 then sums, and divides afterwards.
        """
        self.module.set_custom_all_gather(all_gather)
        self.module.set_custom_reduce_scatter(reduce_scatter)
        self.module.set_force_sum_reduction_for_comms(True)

    def reduced_parameters(self) -> tuple[int, ...]:
        """Return the places of the parameters whose gradients are being reduced."""
        return self._reduced

    def _post_backward(self, *unused: object) -> None:
        """Reduce, in FSDP2's place, the gradients that there are, which it sets to None before."""
        reduces_all = getattr(self._group, "reduce_scatter_unused_params", False)  # new in torch 2.13
        self._reduced = tuple(
            place
            for place, parameter in enumerate(self._group.fsdp_params)
            if hasattr(parameter, "_unsharded_param")
            and (_has_gradient(parameter) or (reduces_all and parameter.unsharded_param.requires_grad))
        )
        self._before_reduce()
        self._inner_post_backward(*unused)
        self._after_reduce()

    def around_reduce(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call these around each reduction, whose parameters are `reduced_parameters`, perhaps none."""
        self._before_reduce, self._after_reduce = before, after

    def reduce_always(self) -> bool:
        """Have the next backward reduce; return whether the script had turned that off."""
        is_off = not self._group.reduce_grads
        self._group.reduce_grads = True
        return is_off

    def foreign_settings(self) -> str:
        """Return the name of a setting of FSDP2 that comes between backward and a gradient; empty if none."""
        if self._group.gradient_divide_factor not in (None, 1.0):
            return "set_gradient_divide_factor"
        if self._group._all_reduce_hook is not None:
            return "set_all_reduce_hook"
        hooks = [getattr(one, "_post_accumulate_grad_hooks", None) or {} for one in self.parameters()]
        names = [getattr(hook, "__module__", "") for some in hooks for hook in some.values()]
        is_foreign = any(not name.startswith("coarse.") for name in names)  # a DeviceAccount's own only count
        return "register_post_accumulate_grad_hook" if is_foreign else ""

    def undivided(self) -> None:
        """Have FSDP2 leave gradients as they are."""
        self.module.set_gradient_divide_factor(1.0)

    # --- the parameters, by place

    def parameters(self) -> list[nn.Parameter]:
        """Return the sharded parameters, DTensors, as they are now."""
        return [parameter.sharded_param for parameter in self._group.fsdp_params]

    def parameter_name(self, place: int) -> str:
        """Return a parameter's name, from its root where that is known."""
        parameter = self._group.fsdp_params[place]
        name: str = parameter._param_fqn or parameter._module_info.param_name
        return name

    def row_sizes(self) -> list[int]:
        """Return the number of elements of one worker's padded shard of each parameter."""
        return [parameter.padded_sharded_param_size.numel() for parameter in self._group.fsdp_params]

    def gradient_type(self) -> torch.dtype:
        """Return the type in which gradients are reduced under the mixed precision policy."""
        trained = [one for one in self._group.fsdp_params if one.sharded_param.requires_grad] or self._group.fsdp_params
        reduced: torch.dtype | None = trained[0].mp_policy.reduce_dtype
        return reduced or _gathered_type(trained[0])

    def set_gradient(self, place: int, row: torch.Tensor, earlier: torch.Tensor | None) -> None:
        """Give a parameter its gradient: (n,) of this worker's padded row, plus `earlier`."""
        parameter = self._group.fsdp_params[place]
        sharded = parameter.sharded_param
        values = row.to(device=sharded.device, dtype=sharded.dtype)
        local = torch.as_strided(values, parameter.sharded_size, parameter.contiguous_sharded_stride)
        gradient = parameter.to_sharded_dtensor(local.contiguous())
        sharded.grad = gradient if earlier is None else earlier + gradient

    # --- the shards

    def packed_shards(self) -> list[torch.Tensor]:
        """Return this worker's flat shards in the type in which they are gathered, in order."""
        with torch.no_grad():
            return [shard for parameter in self._group.fsdp_params for shard in parameter.all_gather_inputs]

    def make_ready(self) -> None:
        """Prepare a root as at the beginning of the tree's first forward."""
        self._state._lazy_init()

    @property
    def is_ready(self) -> bool:
        """True if a forward of the tree has begun."""
        return self._state._is_root is not None

    def shard_size(self) -> int:
        """Return the number of workers that share the unit."""
        return int(self._group.mesh_info.shard_mesh_size)

    def gathered_nbytes(self) -> int:
        """Return the bytes of the gathered unit, padded, in the type in which it is gathered."""
        return self.shard_size() * sum(
            parameter.padded_sharded_param_size.numel() * _gathered_type(parameter).itemsize
            for parameter in self._group.fsdp_params
        )

    def trainable_nbytes(self) -> int:
        """Return the bytes of the gathered unit in parameters that want gradients now."""
        return self.shard_size() * sum(
            parameter.padded_sharded_param_size.numel() * _gathered_type(parameter).itemsize
            for parameter in self._group.fsdp_params
            if parameter.sharded_param.requires_grad
        )

    def shards(self) -> list[torch.Tensor]:
        """Return this worker's flat shards, padded, as they are gathered next."""
        return [parameter._sharded_param_data for parameter in self._group.fsdp_params]

    def versions(self) -> tuple[int, ...]:
        """Return numbers of which one differs after every write into a shard that torch counts.

        One also differs after an exchange of a shard.
        """
        found: list[int] = []
        for parameter in self._group.fsdp_params:
            sharded, local = parameter.sharded_param, parameter.sharded_param._local_tensor
            found += (sharded._version, local._version, parameter._sharded_param_data.data_ptr())
        return tuple(found)

    # --- gathered or not

    def is_gathered(self) -> bool:
        """Return whether parameters are gathered, set aside, or about to be gathered."""
        return bool(self._is_aside or self._group.is_unsharded or self._group._all_gather_result is not None)

    def drop_gathered(self) -> None:
        """Free the gathered parameters; the next use gathers again."""
        result = self._group._all_gather_result
        if result is not None:
            if result.all_gather_work is not None:
                result.all_gather_work.wait()
            self._group._all_gather_result = None
        if self._is_aside:
            self._is_aside = False
            for parameter in self._group.fsdp_params:
                parameter.free_unsharded_param()
        self._group._to_sharded()

    def keep_gathered_if(self, keeps: Callable[[], bool], claims: Callable[[], None]) -> None:
        """Set callbacks: `keeps` is asked whenever FSDP2 would free the unit at the end of its forward.

        `claims` is called whenever FSDP2 is about to use the unit.
        """
        self._keeps, self._claims = keeps, claims

    def _reshard(self) -> None:
        """Free the unit, or set it aside, in FSDP2's place."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

        is_forward = self._group._training_state == TrainingState.FORWARD
        if is_forward and self._frees_after_forward and self._keeps():
            self._set_aside()
        else:
            self._inner_reshard()

    def _unshard(self, async_op: bool = False) -> None:
        """Gather the unit, unless it is set aside, in FSDP2's place."""
        self._claims()
        if self._is_aside and not (self.is_in_forward() or is_in_backward()):
            self.drop_gathered()  # nobody has looked whether it has changed
        if not self._is_aside:
            self._inner_unshard(async_op)

    def _wait_for_unshard(self) -> None:
        """Have the modules use the gathered parameters, in FSDP2's place."""
        if self._is_aside:
            self._is_aside = False
            self._group._to_unsharded()
        else:
            self._inner_wait_for_unshard()

    def _set_aside(self) -> None:
        """Keep the gathered parameters for the next use; see [Note: set aside]."""
        from torch.distributed.fsdp._fully_shard._fsdp_param import ShardedState

        for parameter in self._group.fsdp_params:
            parameter._setattr_on_modules(parameter.sharded_param)
            parameter.sharded_state = ShardedState.SHARDED
        self._group._sharded_state = ShardedState.SHARDED
        self._is_aside = True

    def _after_forward(self, _module: nn.Module, _args: object, _output: object) -> None:
        """Set a root aside that FSDP2 leaves gathered for a backward, which never comes without gradients."""
        if self._state._is_root and not torch.is_grad_enabled() and self._group.is_unsharded:
            self._set_aside()

    def _watch_results(self, module: nn.Module, _args: object, output: object) -> None:
        """Have backward reach this unit also by tensors that FSDP2 doesn't see.

        They are those in dataclasses, and those that modules keep, such as losses beside their outputs.
        """
        if not torch.is_grad_enabled():
            return
        for one in (*tensors_in(output), *kept_tensors(_own_modules(module))):
            if one.grad_fn is not None and one not in _watched:
                _watched[one] = None
                one.register_hook(lambda gradient: self._state._pre_backward(gradient))

    @property
    def _frees_after_forward(self) -> bool:
        return self._group.post_forward_mesh_info is not None

    # --- the forward of the tree of units

    def is_in_forward(self) -> bool:
        """Return whether a forward of the tree is under way."""
        return self._state._state_ctx.iter_forward_root is not None

    def before_backward(self, enters: Callable[[], None]) -> None:
        """Call `enters` whenever a backward reaches this unit, before any gather for it."""
        inner = self._state._pre_backward

        def pre_backward(gradient: torch.Tensor) -> torch.Tensor:
            enters()
            found: torch.Tensor = inner(gradient)
            return found

        self._state._pre_backward = pre_backward

    def before_forward(self, begins: Callable[[], None], enters: Callable[[], None]) -> None:
        """Call `begins` when a forward of the whole tree begins here, and `enters` at this unit's forwards.

        `begins` comes before any gather. Neither is called for a recomputation in backward, which is part of the
        forward that it repeats.
        """
        _watch_state(self._state, begins, enters)

    def watch_other_roots(self, begins: Callable[[], None]) -> None:
        """Call `begins` also for modules of the tree that aren't watched yet.

        These are a root without own parameters, or one that torch's own function has sharded.
        """
        for state in self._state._state_ctx.all_states:
            if not hasattr(state, "_is_watched_by_coarse"):
                _watch_state(state, begins, lambda: None)

    def bind(self, bound: object) -> None:
        """Bind an object that `bound_in_tree` shall find."""
        self._state._coarse_bound = bound

    def bound_in_tree(self) -> list[Any]:
        """Return the objects bound to the units under this one's root, the root's first.

        It is called once a forward has begun.
        """
        states = self._state._state_ctx.all_states
        return [state._coarse_bound for state in states if hasattr(state, "_coarse_bound")]

    def of_tree(self, make: Callable[[], Tree]) -> Tree:
        """Return the result of `make` when the first unit under this one's root asked.

        It is called once a forward has begun.
        """
        context = self._state._state_ctx
        if not hasattr(context, "_coarse_tree"):
            context._coarse_tree = make()
        found: Tree = context._coarse_tree
        return found

    def prefetch(self, following: Fsdp2Unit | None) -> None:
        """Gather `following` as soon as this unit's forward begins, unless the user has set the prefetches."""
        chosen = self._state._states_to_forward_prefetch
        if chosen and chosen is not self._prefetched:
            return
        self.module.set_modules_to_forward_prefetch([] if following is None else [following.module])
        self._prefetched = self._state._states_to_forward_prefetch


_watched = WeakTensorKeyDictionary()
"""Tensors by which backward is seen to reach some unit."""


def _own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module, and those within it that are in no unit of their own."""
    yield module
    for child in module.children():
        if not is_sharded(child):
            yield from _own_modules(child)


def _watch_state(state: Any, begins: Callable[[], None], enters: Callable[[], None]) -> None:  # noqa: ANN401
    """Watch a state for `Fsdp2Unit.before_forward`.

    A forward that was refused has not begun, so that the next one begins anew.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    inner = state._root_pre_forward

    def root_pre_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        try:
            state._lazy_init()
            if not is_in_backward():
                if state._state_ctx.iter_forward_root is None:
                    begins()
                enters()
        except BaseException:
            state._training_state = TrainingState.IDLE
            raise
        return inner(module, args, kwargs)

    def restarted(_module: nn.Module, _args: object) -> None:
        """Begin anew after a forward that raised.

        FSDP2 takes the next one for its continuation.
        """
        if state._state_ctx.iter_forward_root is state and not is_in_backward():
            begins()

    state._is_watched_by_coarse = True
    state._root_pre_forward = root_pre_forward
    state._modules[0].register_forward_pre_hook(restarted, prepend=True)


def gather_by_torch(out: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Gather in FSDP2's own way."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # named so from 2.13 on
    return gather(out, own, group=group, async_op=True)


def bound_to(module: nn.Module) -> Any:  # noqa: ANN401
    """Return the object that `Fsdp2Unit.bind` bound to a module's unit; None where the module is none."""
    return getattr(module._get_fsdp_state(), "_coarse_bound", None) if is_sharded(module) else None  # type: ignore[operator]


def is_in_backward() -> bool:
    """Return whether autograd is computing gradients in this thread."""
    return backward_task() != -1


def backward_task() -> int:
    """Return a number of the backward that is under way in this thread; -1 where none is."""
    return torch._C._current_graph_task_id()


def will_be_executed(node: torch.autograd.graph.Node) -> bool:
    """Return whether the backward that is under way in this thread comes to a node.

    It is False where backward only returns the node's gradient, as autograd.grad does for a leaf.
    """
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch cannot tell of a leaf whose gradient is handed out
        return False


def _has_gradient(parameter: FSDPParam) -> bool:
    """Return whether backward has left a gradient, now or before without reducing it."""
    return parameter.unsharded_accumulated_grad is not None or parameter.unsharded_param.grad is not None


def _gathered_type(parameter: FSDPParam) -> torch.dtype:
    """Return the type in which FSDP2 gathers a parameter under its mixed precision policy."""
    stored: torch.dtype = parameter.sharded_param.dtype
    wanted: torch.dtype | None = parameter.mp_policy.param_dtype
    return wanted if wanted is not None and stored.is_floating_point else stored
