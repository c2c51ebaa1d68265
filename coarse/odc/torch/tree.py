"""Units under one root in mode odc: the times of their publications, and the end of their minibatch.

[Note: calls] Each call of `fully_shard` makes one model at the memory devices, of that call's units; a call for a
module around others takes their trees over. All models of a tree end their minibatches together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakSet

import torch
from torch import nn

from coarse.errors import ConfigError, GradientRangeError
from coarse.odc.client.model import OdcModel, Other
from coarse.odc.layout import NO_TOKENS
from coarse.odc.records import OdcCommitted
from coarse.odc.torch.unit import OnDemandUnit
from coarse.odc.wide_sum import Unrepresentable
from coarse.session import current
from coarse.torch.fsdp.fsdp2 import Fsdp2Unit, bound_to, is_in_backward
from coarse.torch.fsdp.prefetching import EnteredUnits

_trees: WeakSet[OdcTree] = WeakSet()


class OdcTree:
    """All models under one root, inner calls first."""

    def __init__(self, root: Fsdp2Unit, models: Sequence[tuple[OdcModel, list[OnDemandUnit]]]) -> None:
        self.root = root
        self.models = list(models)
        self._entered = EnteredUnits()
        self._stepped: set[int] | None = None
        """Optimizers that have stepped since the minibatch ended; None while one is under way."""
        self._committed: list[OdcCommitted] = []
        """Models' ends that were committed already, in the models' order, when an end stalled."""
        self._had_pieces = False
        """True if any worker pushed a gradient in the minibatch that ended last; equal on all workers."""
        self._has_said_sync = False
        self._is_told = False
        self._has_begun = False
        """True if a forward was noticed, and so other roots above these units are watched."""
        _trees.add(self)
        for unit in self.units():
            unit.tree = self

    def take_over(self, inner: Sequence[OdcTree]) -> None:
        """Become the root of these trees."""
        for tree in inner:
            self.models = [*tree.models, *self.models]
            _trees.discard(tree)
        for unit in self.units():
            unit.tree = self

    def units(self) -> Iterator[OnDemandUnit]:
        """Yield the units of all models."""
        for _, units in self.models:
            yield from units

    # --- forwards

    def on_forward(self) -> None:
        """Handle the beginning of a forward, of the whole tree or of a part."""
        self.require_sound()
        self._entered.prefetch()
        self.publish()

    def require_sound(self) -> None:
        """Return where every unit has its settings, and its shard is still the published one, or raise.

        Raises:
            ConfigError: a unit has not.
        """
        with self.models[0][0].own_work():
            self._require_sound()

    def _require_sound(self) -> None:
        for unit in self.units():
            if setting := unit.fsdp.foreign_settings():
                raise ConfigError(
                    f"{setting} on {unit.name}: mode 'odc' writes gradients when the minibatch has ended, and not when "
                    "FSDP2 would; change them after coarse.torch.end_minibatch(model)"
                )
            if unit.is_published:
                unit.require_unchanged()

    def on_enter(self, unit: OnDemandUnit) -> None:
        """Handle the beginning of a unit's own forward."""
        if not self._has_begun:
            self._has_begun = True
            unit.fsdp.watch_other_roots(self.on_forward)
            self.on_forward()  # of a root that wasn't watched yet
        self._entered.add(unit)

    def publish(self) -> None:
        """Publish this worker's shards in this minibatch, where that was not done."""
        if all(unit.is_published for unit in self.units()):
            return
        self.publish_where(lambda _: True)

    def publish_where(self, is_due: Callable[[OnDemandUnit], bool]) -> None:
        """Publish some units that were not published; neighbours are announced in one record."""
        if not self.root.is_ready:
            self.root.make_ready()  # before any forward: there was no microbatch, or the script gathers by hand
        for model, units in self.models:
            due = [not unit.is_published and is_due(unit) for unit in units]
            first = 0
            while first < len(units):
                last = first
                while last < len(units) and due[last]:
                    last += 1
                if last > first:
                    with model.own_work():
                        model.publish(first, last, [unit.write_publication() for unit in units[first:last]])
                first = last + 1

    def say_once_that_sync_is_always(self) -> None:
        """Warn once that gradients are always pushed.

        FSDP2's way of gathering gradients locally would add pieces in floating point on the way.
        """
        if not self._has_said_sync:
            self._has_said_sync = True
            warnings.warn(
                "set_requires_gradient_sync(False) has no effect in mode 'odc': every microbatch's gradient goes to "
                "its owner by itself, which takes no meeting",
                stacklevel=2,
            )

    # --- the end of a minibatch

    def end(self, tokens: float, *, keeps_misfits: bool) -> None:
        """End the minibatch; see end_minibatch."""
        if is_in_backward():
            raise ConfigError("end_minibatch was called within backward; call it after the last microbatch")
        if not self._is_told:
            self._is_told = True
            self._tell()
        if not self._committed:  # else this call goes on where one that stalled has stopped
            self.publish()
            for unit in self.units():
                unit.settle()
                unit.require_untouched()
        left = self.models[len(self._committed) :]
        for model, _ in left:
            model.end(tokens)
        others = [Other(model, tree.publish) for tree in _trees if tree is not self for model, _ in tree.models]
        for model, _ in left:
            self._committed.append(model.committed(others))
        committed, self._committed = self._committed, []
        self._stepped = set()
        self._had_pieces = any(mask for one in committed for mask in one.masks)
        if not keeps_misfits and (found := [one for one in zip(self.models, committed, strict=True) if one[1].found]):
            for unit in self.units():
                unit.forget()
            raise GradientRangeError(_misfits(*found[0]))
        for (model, units), one in zip(self.models, committed, strict=True):
            divisor = len(model.layout.members) if one.tokens == NO_TOKENS else one.tokens
            for unit in units:
                unit.write_gradients(one, float(divisor))

    def _tell(self) -> None:
        """Tell an emulated job's account the models that end; units have their names by now."""
        declarations = [model.declaration.to_text() for model, _ in self.models]
        names = [unit.name for unit in self.units()]
        link = current().require_client().link
        link.note_mode("odc", declarations=declarations, units=names, trees=len(_trees))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """End the minibatch where the script has not, since this optimizer has stepped last."""
        if self._stepped is None or id(optimizer) in self._stepped:
            self.end(NO_TOKENS, keeps_misfits=False)
        assert self._stepped is not None
        self._stepped.add(id(optimizer))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Publish the units of which all trained parameters were stepped; others when a forward begins.

        The step of a minibatch without gradients publishes nothing: by such a one torch's `get_state_dict` creates an
        optimizer's states, before a checkpoint is loaded into the parameters.
        """
        if not self._had_pieces:
            return
        stepped = _parameters_of(optimizer)
        self.publish_where(
            lambda unit: all(id(unit.fsdp.parameters()[place]) in stepped for place in unit.trained)
        )

    def on_backward(self) -> None:
        """Note that a microbatch's gradients are about to come."""
        self._stepped = None


def trees_in(model: nn.Module) -> list[OdcTree]:
    """Return the trees of a module's units, in order."""
    units = (bound_to(module) for module in model.modules())
    found = dict.fromkeys(unit.tree for unit in units if isinstance(unit, OnDemandUnit))
    return [tree for tree in found if isinstance(tree, OdcTree)]


def trees_of(optimizer: torch.optim.Optimizer) -> list[OdcTree]:
    """Return the trees that have some of an optimizer's parameters."""
    stepped = _parameters_of(optimizer)
    return [
        tree for tree in _trees
        if any(id(parameter) in stepped for unit in tree.units() for parameter in unit.fsdp.parameters())
    ]  # fmt: skip


def _parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def checked_tokens(num_tokens: object) -> float:
    """Return the number that a worker tells the others.

    Raises:
        ConfigError: it is no number of tokens.
    """
    if num_tokens is None:
        return NO_TOKENS
    try:
        found = float(num_tokens)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise ConfigError(
            f"num_tokens is how many tokens this worker's losses were summed over in this minibatch, 0 or more; got "
            f"{num_tokens!r}", key="num_tokens",
        )  # fmt: skip
    return found


def _misfits(part: tuple[OdcModel, list[OnDemandUnit]], committed: OdcCommitted) -> str:
    """Return text on the first value that did not fit, for people."""
    model, units = part
    owner, place, element, kind = committed.found[0]
    unit, bit, before = units[place], 0, 0
    for bit, size in enumerate(model.declaration.units[place].segments):  # noqa: B007
        if element < before + size:
            break
        before += size
    top = model.declaration.top
    what = {Unrepresentable.NAN: "NaN", Unrepresentable.PLUS_INFINITY: "inf", Unrepresentable.MINUS_INFINITY: "-inf"}
    value = what.get(Unrepresentable(kind), f"a value of 2**{top} or more in size")
    return (
        f"minibatch {committed.minibatch}: {value} came for element {element - before} of worker {owner}'s shard of "
        f"{unit.fsdp.parameter_name(unit.trained[bit])}, which a sum over the window below 2**{top} cannot hold; no "
        "gradient was written. Look for what makes the loss overflow, pass sum_top= to fully_shard for larger "
        'gradients, or misfits="keep" to end_minibatch where a GradScaler is to see them'
    )
