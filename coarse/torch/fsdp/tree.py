"""Units under one root: their workers' agreement when a forward begins, and the gathers ahead."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from coarse.parallel.sharded.passes import ChangeWatch, Passes
from coarse.parallel.sharded.transfers import Phase
from coarse.protocol.dtypes import DType, Op
from coarse.strategy.sharding import Keeps
from coarse.torch.fsdp.fsdp2 import backward_task
from coarse.torch.fsdp.groups import require_same
from coarse.torch.fsdp.prefetching import EnteredUnits
from coarse.torch.fsdp.unit import ShardedUnit

if TYPE_CHECKING:
    from coarse.collectives.group import WorkerGroup


class UnitTree:
    """All units that one root's forward runs through.

    [Note: units by name] Units are told apart by their names under the root and by the calls of `fully_shard` that made
    them, in any order, and not by their sizes. Node buffers were taken call by call, before there were names, so
    for units that have one each name must have come from the same call everywhere. Roots have no names; a root that
    is called alone is known by its call.
    """

    def __init__(self, units: Sequence[ShardedUnit]) -> None:
        self._units = list(units)
        calls = " ".join(sorted(unit.call for unit in units))
        self._identity = hashlib.sha256(calls.encode()).hexdigest()
        for unit in units:
            unit.identity = f"{unit.name} of {self._identity}"
        self._watch = ChangeWatch()
        self._entered = EnteredUnits()
        self._passes = Passes()
        self._num_forwards = 0
        self._has_reported = False

    def on_forward(self) -> None:
        """Handle the beginning of a forward, here or in one unit alone."""
        if self._num_forwards == 0:
            self._require_same_units()
        self._entered.prefetch()
        if self._drop_changed():
            self._passes.on_step()
        self._passes.on_forward(is_training=torch.is_grad_enabled())
        self._report_quantisation()
        self._num_forwards += 1

    def on_backward(self) -> None:
        """Handle a backward that has reached a unit; see [Note: overtaken forwards]."""
        if self._passes.on_backward(backward_task()):
            self._drop_changed()

    def _require_same_units(self) -> None:
        """Raise MismatchError on all workers where they mean other units; see [Note: units by name]."""
        for indices in self._by_group():
            members = [self._units[index] for index in indices]
            is_matched = any(unit.keeps is Keeps.HOST_COPY for unit in members)
            calls = [f"made by {unit.call}" for unit in members]
            lines = [
                f"{unit.name}, {call}" if is_matched else unit.name for unit, call in zip(members, calls, strict=True)
            ]
            require_same(members[0].group, [*lines, *sorted(calls)], "the model whose forward begins")

    def _drop_changed(self) -> bool:
        """Find the units that have changed, equally on all workers, and drop them.

        Return whether any of them is trainable. In modes that keep nothing, a unit is dropped only where it is still
        gathered, after a forward that no backward followed; these units are the same on all workers.
        """
        marks = [unit.mark() for unit in self._units]
        changed = self._watch.look(marks)
        for index, unit in enumerate(self._units):
            changed[index] |= unit.differs_from_outside(marks[index])
        has_stepped = False
        for indices in self._by_group():
            members = [self._units[index] for index in indices]
            if any(unit.keeps is not Keeps.NOTHING or unit.fsdp.is_gathered() for unit in members):
                agreed = _agree(members[0].group, changed[indices], self._identity)
                for unit, is_changed in zip(members, agreed.tolist(), strict=True):
                    if is_changed:
                        unit.on_changed()
                        has_stepped |= unit.fsdp.trainable_nbytes() > 0
        return has_stepped

    def _by_group(self) -> list[list[int]]:
        """Return the units' places, by the group of workers that share them."""
        by_group: dict[int, list[int]] = {}
        for index, unit in enumerate(self._units):
            by_group.setdefault(id(unit.group), []).append(index)
        return list(by_group.values())

    def _report_quantisation(self) -> None:
        """Print once the difference of int8 gathers from exact ones, when a forward has gathered all units."""
        members = [unit for unit in self._units if unit.quantisation is not None]
        if not members or self._has_reported or self._num_forwards == 0:
            return
        costs = [unit.quantisation for unit in members if unit.quantisation is not None]
        self._has_reported = True
        group = members[0].group
        squares = np.array([(cost.squared_error, cost.squared_norm) for cost in costs])
        group.all_reduce(squares, DType.FLOAT64, Op.SUM, what="agreement on the error of int8 gathers").wait()
        if group.rank == 0:
            print(_quantisation_report([unit.name for unit in members], squares))

    def on_enter(self, unit: ShardedUnit) -> None:
        """Handle the beginning of a unit's own forward."""
        if self._num_forwards == 0:
            self.on_forward()  # of a root that wasn't watched yet
        unit.require_current()
        self._entered.add(unit)


def watch_forwards(unit: ShardedUnit) -> None:
    """Tell the unit's tree of its forwards; the first of them makes the tree."""
    unit.fsdp.bind(unit)

    def tree() -> UnitTree:
        return unit.fsdp.of_tree(grow)

    def grow() -> UnitTree:
        unit.fsdp.watch_other_roots(begins)
        return UnitTree(unit.fsdp.bound_in_tree())

    def begins() -> None:
        tree().on_forward()

    unit.fsdp.before_forward(begins, lambda: tree().on_enter(unit))
    unit.fsdp.before_backward(lambda: tree().on_backward())


def _agree(group: WorkerGroup, changed: np.ndarray, must_match: str) -> np.ndarray:
    """Return the flags that any worker has set, (U,) uint8."""
    agreed = changed.copy()
    group.all_reduce(agreed, DType.UINT8, Op.MAX, what=str(Phase.AGREEMENT), must_match=must_match).wait()
    return agreed


def _quantisation_report(names: Sequence[str], squares: np.ndarray) -> str:
    """Return one line about (U, 2) float64, squared errors and norms of the units."""
    errors = np.sqrt(squares[:, 0] / np.maximum(squares[:, 1], np.finfo(float).tiny))
    total_error, total_norm = squares.sum(0)
    relative = float(np.sqrt(total_error / max(total_norm, np.finfo(float).tiny)))
    worst = int(np.argmax(errors))
    return (
        f"coarse: int8 gathers change the parameters by {100 * relative:.3f} % of their norm "
        f"(most in {names[worst]}, by {100 * errors[worst]:.3f} %)"
    )
