"""Unit on a worker: its parameters' memory, which is there while it is used."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from coarse.luwu.client.line import Pulled
from coarse.luwu.client.model import RemoteModel
from coarse.luwu.store.pulls import PullOrder
from coarse.protocol.dtypes import DType

if TYPE_CHECKING:
    from coarse.luwu.torch.timeline import WorkerTimeline

_TORCH = {DType.FLOAT32: torch.float32, DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}


class UnitMemory:
    """Flat array of a unit's parameters, in the type of the workers' compute; empty while it is not used."""

    def __init__(self, remote: RemoteModel, number: int, timeline: WorkerTimeline | None) -> None:
        model = remote.declaration.model
        self._timeline = timeline
        self.number = number
        self.unit = model.units[number]
        self.dtype = _TORCH[model.pulled]
        self._remote = remote
        self._itemsize = model.pulled.itemsize
        self._storage = torch.UntypedStorage(0)
        self._num_users = 0
        self._pulled: Pulled | None = None
        self._leaves: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        """Leaves that backwards still to come have saved."""

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that it takes now."""
        return self._storage.nbytes()

    @property
    def is_here(self) -> bool:
        """True if it was asked for and not released."""
        return self._pulled is not None

    @property
    def is_used(self) -> bool:
        """True if some call needs it now."""
        return self._num_users > 0

    def ask(self) -> None:
        """Begin to pull it, where it was not asked for."""
        if self._pulled is not None:
            return
        nbytes = self.unit.num_elements * self._itemsize
        self._storage.resize_(nbytes)
        # not by .numpy(), after which torch resizes a storage no more
        target = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self._storage.data_ptr()))
        self._pulled = self._remote.pull(self.number, target)

    def use(self) -> None:
        """Have it until `release`: return once all of it is there."""
        self.ask()
        assert self._pulled is not None
        with nullcontext() if self._timeline is None else self._timeline.waiting(f"wait for {self.unit.name}"):
            self._remote.wait_for_pull(self._pulled)
        self._num_users += 1

    def release(self) -> None:
        """Remove one user; without any its memory is given back."""
        self._num_users -= 1
        if not self._num_users:
            self.drop()

    def drop(self) -> None:
        """Give its memory back, unless it is used."""
        if self._pulled is None or self._num_users:
            return
        self._remote.wait_for_pull(self._pulled)  # it is being written to
        self._pulled = None
        self._storage.resize_(0)

    def leaf(self, tensor: int, *, requires_grad: bool) -> nn.Parameter:
        """Make a parameter for one forward, whose memory is this unit's."""
        begin, shape = self.unit.begins[tensor], self.unit.tensors[tensor].shape
        made = torch.empty(0, dtype=self.dtype, device="cpu")
        strides = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
        made.set_(self._storage, begin, shape, strides)
        leaf = nn.Parameter(made, requires_grad=requires_grad)
        if requires_grad:
            self._leaves.add(leaf)
        return leaf

    def outdate(self) -> None:
        """Outdate the leaves after a step.

        Autograd refuses a backward through a forward before it, which would meet other values.
        """
        for leaf in list(self._leaves):
            torch.autograd.graph.increment_version(leaf)
        self._leaves.clear()


class UnitMemories:
    """All units of a model; the one that is foreseen is pulled while another is used."""

    def __init__(
        self, remote: RemoteModel, before_pull: Callable[[], None], timeline: WorkerTimeline | None = None
    ) -> None:
        """Start without units; `before_pull` is called when a forward or backward wants a unit."""
        self.all = [UnitMemory(remote, number, timeline) for number in range(len(remote.declaration.model.units))]
        self.timeline = timeline
        self._order = PullOrder()
        self._before_pull = before_pull
        self._ahead: UnitMemory | None = None
        """Unit that was asked for before it was wanted."""

    def use(self, numbers: list[int]) -> None:
        """Have these units until `release`, and begin to pull the one that comes next."""
        self._before_pull()
        for number in numbers:
            unit = self.all[number]
            if self._ahead is not None and self._ahead is not unit and not unit.is_here:
                self._ahead.drop()
            self._ask(unit)
            unit.use()
            if self._ahead is unit:
                self._ahead = None
        self.look_ahead()

    def release(self, numbers: list[int]) -> None:
        """Release these units, which are not needed any more."""
        for number in numbers:
            self.all[number].release()

    def look_ahead(self) -> None:
        """Begin to pull the next unit, as far as it is foreseen."""
        if self._ahead is not None and self._ahead.is_here and not self._ahead.is_used:
            return
        number = self._order.expected()
        if number is None or self.all[number].is_here:
            return
        self._ahead = self.all[number]
        self._ask(self._ahead)

    def on_step(self) -> None:
        """Drop the unit pulled ahead after a step: pulls from now on have the step's values."""
        self.drop_ahead()
        self._order.on_step()
        for unit in self.all:
            unit.outdate()

    def drop_ahead(self) -> None:
        """Give back the unit that was asked for and not wanted."""
        if self._ahead is not None:
            self._ahead.drop()
            self._ahead = None

    def _ask(self, unit: UnitMemory) -> None:
        if not unit.is_here:
            self._order.on_pull(unit.number)
            unit.ask()


def torch_view(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Return (n,) of a storage type as a tensor of the type that it stands for; it has the same memory."""
    found = torch.from_numpy(values)
    return found if found.dtype == dtype else found.view(dtype)
