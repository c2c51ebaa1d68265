"""Hooks around each site's forward and backward: units are pulled, gradients are born and pushed.

[Note: calls] Every forward of a site is a call of its own, with parameters (leaves of autograd's graph) of its own over
the same memory. So a module that is called twice, or a parameter that two modules share, gives its gradients in parts:
each call pushes the gradients that backward has made of its leaves, in the order in which backward leaves the calls. A
call whose inputs want no gradients is not seen to be left, and is pushed at backward's end. Activation checkpointing
computes a forward again within backward: that is a call, too, whose leaves autograd drops.

[Note: gradients that are not kept] `torch.autograd.grad` towards inputs goes through calls and adds to no leaf. Such a
pass has units pulled, but pushes nothing, ends no pass, and leaves its calls to a backward that comes. With
`create_graph` that backward also goes through the gradients that were made, whose nodes need the units once more: it
enters a call where it reaches the gradients of the call's inputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.weak import WeakTensorKeyDictionary

from coarse.errors import ConfigError, NotKeptError
from coarse.luwu.client.line import GradientRoom
from coarse.luwu.client.model import RemoteModel
from coarse.luwu.torch.plan import ModuleSite
from coarse.luwu.torch.unit import UnitMemories, torch_view
from coarse.torch.fsdp.fsdp2 import backward_task, is_in_backward, will_be_executed
from coarse.torch.structures import kept_tensors, tensors_in, with_tensors


class _Gradients:
    """Gradients of one unit in a call: one flat array, which is made when the first comes."""

    def __init__(self, remote: RemoteModel, unit: int) -> None:
        self._remote = remote
        self._unit = unit
        self.room: GradientRoom | None = None
        self.source: np.ndarray | None = None
        self.present = 0

    def of(self, tensor: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the place of a tensor's gradient: zeros at first."""
        declared = self._remote.declaration
        of_unit = declared.model.units[self._unit]
        if self.room is None and self.source is None:
            self.room = self._remote.room_for(self._unit)
            if self.room is None:
                self.source = np.zeros(of_unit.num_elements, declared.gradients.storage)
        flat = self.room.values if self.room is not None else self.source
        assert flat is not None
        begin, shape = of_unit.begins[tensor], of_unit.tensors[tensor].shape
        part = flat[begin : begin + of_unit.tensors[tensor].num_elements]
        return torch_view(part, dtype).view(shape)


class Call:
    """Forward of a site, until backward has left it."""

    def __init__(self, site: FilledModule) -> None:
        self.site = site
        self.leaves: dict[tuple[int, int], nn.Parameter] = {}
        self._versions: dict[tuple[int, int], int] = {}
        """Versions of the leaves when they were made."""
        self.gradients: dict[int, _Gradients] = {}
        self._accumulators: list[torch.autograd.graph.Node] = []
        """Autograd's nodes that add to the leaves' gradients."""
        self._passed: list[tuple[torch.Tensor, torch.autograd.graph.Node, torch.autograd.graph.Node | None]] = []
        """Views of inputs, their nodes, and those of the inputs, until its forward has ended."""
        self._exits: list[torch.autograd.graph.Node] = []
        """Autograd's nodes by which backward leaves the call towards its inputs."""
        self._num_left = 0
        """Number of those nodes that the pass under way has come to."""
        self.is_entered = False
        self.accumulates = False
        """True if the pass that has entered it adds to gradients of leaves."""
        self.is_pushed = False
        self.begin_s = 0.0
        """Seconds at which its forward or backward began, where that is recorded."""

    def begin(self) -> None:
        """Begin its forward or backward."""
        if (timeline := self.site.backward.memories.timeline) is not None:
            self.begin_s = timeline.now_s()

    def end(self, phase: str) -> None:
        """End its forward or backward."""
        if (timeline := self.site.backward.memories.timeline) is not None:
            timeline.computed(f"{phase} of {self.site.name or 'the root'}", self.begin_s)

    def on_enter(self, *, accumulates: bool) -> None:
        """Enter the call in a pass."""
        self.is_entered, self.accumulates = True, accumulates
        self._num_left = 0

    def make_leaf(self, unit: int, tensor: int, *, requires_grad: bool) -> nn.Parameter:
        """Make a parameter of this call."""
        known = self.leaves.get((unit, tensor))
        if known is not None:
            return known
        leaf = self.site.backward.memories.all[unit].leaf(tensor, requires_grad=requires_grad)
        self.leaves[unit, tensor], self._versions[unit, tensor] = leaf, leaf._version
        if requires_grad:
            call = weakref.ref(self)  # the graph keeps leaf and hooks, and the call keeps the leaf

            def before(gradients: tuple[torch.Tensor | None, ...]) -> None:
                if gradients[0] is not None and (alive := call()) is not None:
                    alive.bear(unit, tensor)

            def after(leaf: torch.Tensor) -> None:
                if leaf.grad is not None and (alive := call()) is not None:
                    alive.gradients[unit].present |= 1 << tensor

            accumulator = get_gradient_edge(leaf).node
            accumulator.register_prehook(before)
            self._accumulators.append(accumulator)
            leaf.register_post_accumulate_grad_hook(after)
        return leaf

    @property
    def is_seen_to_end(self) -> bool:
        """True if backward is seen to leave the call."""
        return bool(self._exits)

    def take_in(self, given: torch.Tensor) -> torch.Tensor:
        """Return another view of an input, by which backward is seen to leave the call.

        It leaves when all within the call that uses the input has been computed.
        """
        if not given.requires_grad or given.layout is not torch.strided:
            return given
        passed = given.view_as(given)
        assert passed.grad_fn is not None
        self._passed.append((passed, passed.grad_fn, given.grad_fn))
        return passed

    def watch_exits(self) -> None:
        """Watch the nodes by which backward leaves the call, whose forward has ended.

        An input that the call has written to in place goes back in the graph to the node that it had before.
        """
        for passed, own, before in self._passed:
            node = own if passed.grad_fn is own else before
            if node is not None:
                call = weakref.ref(self)  # the graph keeps the node, and the call keeps it
                node.register_prehook(_leaving(call))
                self._exits.append(node)
        self._passed.clear()

    def on_exit(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Note that backward has come to one of the nodes by which it leaves."""
        for gradient in gradients:
            if gradient is not None and gradient.requires_grad:  # see [Note: gradients that are not kept]
                gradient.register_hook(_entering(self))
        self._num_left += 1
        if self._num_left == sum(map(will_be_executed, self._exits)):
            self.site.backward.leave(self)

    def is_to_accumulate(self) -> bool:
        """Return whether the pass that is under way adds to gradients of leaves."""
        return any(map(will_be_executed, self._accumulators))

    def require_unwritten(self) -> None:
        """Raise NotKeptError where a parameter of this call was written to.

        Raises:
            NotKeptError: a write that torch counts; the memory was pulled for this call alone.
        """
        for (unit, tensor), leaf in self.leaves.items():
            if leaf._version != self._versions[unit, tensor]:
                name = self.site.backward.memories.all[unit].unit.tensors[tensor].name
                raise NotKeptError(
                    f"{name!r} was written to within a forward, which has a copy of its values that is dropped; write "
                    "it between steps within optimizer.summoned(write=True)"
                )

    def bear(self, unit: int, tensor: int) -> None:
        """Place a leaf's gradient in the unit's flat array, as autograd is about to add to it."""
        self.site.backward.require_open(self)
        self.site.backward.enter(self)  # by a way that nobody has seen, and that needs no values
        leaf = self.leaves[unit, tensor]
        if leaf.grad is None:
            gradients = self.gradients.setdefault(unit, _Gradients(self.site.backward.remote, unit))
            leaf.grad = gradients.of(tensor, leaf.dtype)


class FilledModule:
    """Module whose parameters are there during its forward and backward alone."""

    def __init__(
        self, planned: ModuleSite, backward: Backward, placeholders: dict[tuple[int, int], nn.Parameter]
    ) -> None:
        self.name = planned.name
        self.backward = backward
        self.units = planned.units
        self._uses = planned.uses
        self._placeholders = placeholders
        self._modules = planned.own_modules
        self._calls: list[Call | None] = []
        """Calls of forwards under way, the innermost last."""
        # first, so that others' hooks find parameters: torch's old weight_norm and spectral_norm compute by them
        planned.module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        planned.module.register_forward_hook(self._after, always_call=True)

    def units_within(self, module: nn.Module) -> list[int]:
        """Return the units of parameters that stand in a module, as far as they are this site's."""
        inside = {id(one) for one in module.modules()}
        return [use.unit for use in self._uses if id(use.module) in inside]

    def show(self, parameters: Mapping[tuple[int, int], nn.Parameter]) -> None:
        """Have modules show these parameters in place of those that they show now."""
        for use in self._uses:
            shown = parameters.get((use.unit, use.tensor))
            if shown is not None:
                use.module._parameters[use.attribute] = shown

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        memories = self.backward.memories
        self._calls.append(None)  # whatever comes, `_after` is called
        self._require_none_unfrozen()
        memories.use(self.units)
        call = self._calls[-1] = Call(self)
        call.begin()
        has_graph = torch.is_grad_enabled()
        for use in self._uses:
            placeholder = self._placeholders[use.unit, use.tensor]
            leaf = call.make_leaf(use.unit, use.tensor, requires_grad=has_graph and placeholder.requires_grad)
            use.module._parameters[use.attribute] = leaf
        if not has_graph:
            return args, kwargs
        passed: tuple[tuple[Any, ...], dict[str, Any]] = with_tensors((args, kwargs), call.take_in)
        return passed

    def _require_none_unfrozen(self) -> None:
        """Raise ConfigError where a parameter wants gradients that has no states."""
        for use in self._uses:
            tensor = self.backward.memories.all[use.unit].unit.tensors[use.tensor]
            if self._placeholders[use.unit, use.tensor].requires_grad and not tensor.is_trainable:
                raise ConfigError(
                    f"{tensor.name!r} was frozen when the model was put in the network, so it has no optimizer states "
                    "there; unfreeze it before, and freeze it afterwards by requires_grad_(False) until it is to train",
                    key="model",
                )

    def _after(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
        call = self._calls.pop() if self._calls else None
        if call is None:  # its units did not come
            return
        call.end("forward")
        outer = self._calls[-1] if self._calls else None  # a module that calls itself
        for use in self._uses:
            place = use.unit, use.tensor
            use.module._parameters[use.attribute] = self._placeholders[place] if outer is None else outer.leaves[place]
        self.backward.memories.release(self.units)
        call.require_unwritten()
        if not torch.is_grad_enabled():
            return
        call.watch_exits()
        backward = self.backward
        kept = (one for one in kept_tensors(self._modules) if one.grad_fn is not None and one not in backward.hooked)
        results = {id(one): one for one in (*tensors_in(output), *kept) if one.requires_grad}
        if results:
            backward.await_backward(call)
            for one in results.values():
                one.register_hook(_entering(call))
                backward.hooked[one] = None
                if (base := one._base) is not None and base.grad_fn is not None:
                    # a write to a view of it leaves the view's own node out of the graph
                    base.grad_fn.register_prehook(_entering(call))


def _entering(call: Call) -> Callable[[object], None]:
    """Return the hook of an output, which keeps the call alive as long as the graph."""

    def enter(_: object) -> None:
        call.site.backward.enter(call)

    return enter


def _leaving(call: weakref.ref[Call]) -> Callable[[Sequence[torch.Tensor | None]], None]:
    """Return the hook of a node by which backward leaves a call."""

    def leave(gradients: Sequence[torch.Tensor | None]) -> None:
        if (alive := call()) is not None:
            alive.on_exit(gradients)

    return leave


class Backward:
    """Backward passes of a model: the calls within, the order of their pushes, and the end of a pass."""

    def __init__(
        self,
        remote: RemoteModel,
        memories: UnitMemories,
        before_push: Callable[[], None],
        require_pass: Callable[[], None],
    ) -> None:
        """Start without passes.

        `before_push` is called before pushes, and `require_pass` where a backward begins: it may raise.
        """
        self._require_pass = require_pass
        self.remote = remote
        self.memories = memories
        self._tells_last = remote.declaration.in_backward
        self._before_push = before_push
        self._entered: dict[int, list[Call]] = {}
        """Task of autograd -> calls that its backward has entered and not left."""
        self._accumulating: set[int] = set()
        """Tasks that add to leaves' gradients; see [Note: gradients that are not kept]."""
        self.hooked = WeakTensorKeyDictionary()
        """Tensors by which backward is seen to enter some call."""
        self._waiting: weakref.WeakSet[Call] = weakref.WeakSet()
        """Calls whose gradients no backward has made yet."""
        self.has_pushed = False
        """True if anything was pushed since the last step."""
        self.num_passes = 0
        """Number of passes since the last step."""

    def on_step(self) -> None:
        """Reset the passes, as a step was asked for, or gradients are discarded."""
        self.has_pushed = False
        self.num_passes = 0
        self._entered.clear()
        self._accumulating.clear()

    def await_backward(self, call: Call) -> None:
        """Await the backward of a forward that has ended, unless a backward has computed it again."""
        if not is_in_backward():
            self._waiting.add(call)

    def require_open(self, call: Call) -> None:
        """Raise RuntimeError where a call gets gradients that come too late to be pushed."""
        if call.is_pushed:
            raise RuntimeError(
                f"{call.site.name or 'the model'} gets gradients after they were pushed: a backward goes through its "
                "forward a second time, or reaches it past the module's own output; call the module for each backward"
            )

    def enter(self, call: Call) -> None:
        """Enter a call whose output backward reaches, so that its units are needed again."""
        if call.is_entered:
            return
        task = backward_task()
        is_first = task not in self._entered
        accumulates = self._is_to_accumulate(call) if is_first else task in self._accumulating
        if accumulates:
            self._require_pass()
        call.on_enter(accumulates=accumulates)
        if is_first:
            self._entered[task] = []
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(task))
        self._entered[task].append(call)
        if accumulates:
            self._accumulating.add(task)
        self.memories.use(call.site.units)
        call.begin()

    def _is_to_accumulate(self, first: Call) -> bool:
        """Return whether the pass under way adds to any gradient, also of calls that it will come to.

        It does within another pass that does, as in reentrant checkpointing.
        """
        return bool(self._accumulating) or any(call.is_to_accumulate() for call in (first, *self._waiting))

    def leave(self, call: Call) -> None:
        """Push or release a call, all within which backward has computed."""
        if not call.is_entered or call.is_pushed:
            return
        for calls in self._entered.values():
            if call in calls:
                calls.remove(call)
        self._end_call(call)

    def _end(self, task: int) -> None:
        """End a backward: push the calls that it was not seen to leave, in the order in which it came there."""
        for call in self._entered.pop(task, []):
            self._end_call(call)
        if task in self._accumulating:
            self._accumulating.remove(task)
            self._before_push()
            self.num_passes += 1
            self.remote.end_pass()

    def _end_call(self, call: Call) -> None:
        """End a call in a pass: push its gradients, if the pass makes any."""
        if call.accumulates:
            self._push(call)
            return
        call.end("backward")
        call.is_entered = False
        self.memories.release(call.site.units)

    def _is_awaited(self, unit: int) -> bool:
        """Return whether other calls have gradients of a unit still to come."""
        return any(unit in other.site.units for other in self._waiting)

    def _push(self, call: Call) -> None:
        call.end("backward")
        self._before_push()
        call.is_pushed = True
        self._waiting.discard(call)
        model = self.remote.declaration.model
        for unit in call.site.units:
            if not model.units[unit].is_trainable:
                continue
            gradients = call.gradients.get(unit)
            is_last = self._tells_last and call.is_seen_to_end and not self._is_awaited(unit)
            if gradients is None:
                self.remote.push_gradients(unit, 0, is_last=is_last, room=None)
            else:
                self.remote.push_gradients(
                    unit, gradients.present, is_last=is_last, room=gradients.room, source=gradients.source
                )
        for leaf in call.leaves.values():
            leaf.grad = None
        call.gradients.clear()
        self.has_pushed = True
        self.memories.release(call.site.units)
