"""Parameters that a worker holds, and an optimizer node in its process that steps them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.tensor import DTensor

import coarse
from coarse.errors import ConfigError, UnsupportedError
from coarse.luwu.client.line import GradientRoom
from coarse.luwu.client.model import RemoteModel
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.store.layout import CHUNK_ELEMENTS, PagedModel, PagedTensor, PagedUnit
from coarse.luwu.torch.declared import owner
from coarse.luwu.torch.optimizer import plain_settings
from coarse.luwu.torch.own_node import DEVICE, OwnNode
from coarse.luwu.torch.values import PARAMETERS, UnitValues
from coarse.protocol.clock import WallClock
from coarse.session import current, is_initialized
from coarse.storage.room import available_bytes
from coarse.torch.fsdp.checksum import checksum

_UNIT_ELEMENTS = 16 * CHUNK_ELEMENTS
"""Most elements of parameters that are pushed together."""
_STALL_TIMEOUT_S = 60.0
"""Stall timeout in seconds where coarse, which has a setting for it, was not initialised."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Storage and steps of parameters and states; see OffloadedOptimizer."""

    optimizer: str
    storage: tuple[str | os.PathLike[str], ...] | None
    memory: int | None
    other_kernel: bool
    kernel: str
    chunk_elements: int


class Member(NamedTuple):
    """Parameter that is stepped."""

    tensor: PagedTensor
    """Description of the tensor that is kept."""
    group: int
    """Place of its group among those that are kept with it."""
    parameter: torch.Tensor


class HeldParameters:
    """Units of parameters in a worker's memory, whose states are on disks.

    [Note: values that count] The worker's memory has the values that count: scripts write to parameters between steps,
    also by `.data`, which leaves no trace. So a step does not update the disks' values of a unit, but those that the
    worker holds then. A unit that is not stepped is written to the disks where its checksum has changed.
    """

    def __init__(
        self, groups: Mapping[int, dict[str, Any]], keeping: Keeping, folder: str, resume_step: int | None
    ) -> None:
        """Open the disks; nothing is written to them or read from them before `begin`.

        Args:
            groups: by its number in the optimizer, each parameter group that is kept here.
            keeping: how it is kept.
            folder: within each of the storage's.
            resume_step: the committed step to go on from; None: a new training.

        Raises:
            ConfigError: no group has a parameter of which this worker has a part.
            UnsupportedError: parameters that cannot be stepped.
            CapacityError, StorageError: what the disks say.
        """
        members = members_of(groups)
        if not members:
            raise ConfigError("this worker has no parameters; give it some, or use fewer workers", key="params")
        self._units = _units(members)
        self._groups = list(groups.values())
        self._kept: list[int | None] = [None] * len(self._units)
        """Checksum of each unit's values on the disks; None where it is not known."""
        num_here = coarse.local_size() if is_initialized() else 1
        stall_timeout_s = current().config.stall_timeout_s if is_initialized() else _STALL_TIMEOUT_S
        declaration = self._declared(keeping, folder, num_here, resume_step)
        self._node = OwnNode(2 * (declaration.memory_bytes or 0), WallClock(), stall_timeout_s, num_here)
        self._node.hands.holder = self
        self.remote = RemoteModel(0, self._node, {DEVICE: self._node.memory})  # type: ignore[arg-type]
        self.values = UnitValues(self.remote, {})
        self._is_closed = False
        try:
            self.remote.open(declaration)
        except BaseException as error:
            self.give_up(error)
            raise

    def _declared(self, keeping: Keeping, folder: str, num_here: int, resume_step: int | None) -> Declaration:
        plain = [plain_settings(group) for group in self._groups]
        storage = keeping.storage
        return Declaration(
            model=PagedModel(
                units=tuple(PagedUnit(unit[0].tensor.name, tuple(one.tensor for one in unit)) for unit in self._units),
                num_states=max(kernel_of(keeping.optimizer, group).num_states for group in plain),
                chunk_elements=keeping.chunk_elements,
            ),
            optimizer=keeping.optimizer,
            groups=tuple(plain),
            group_of=tuple(tuple(one.group for one in unit) for unit in self._units),
            num_workers=1,
            in_backward=True,
            storage=None if storage is None else tuple(f"{os.fspath(one)}/{folder}" for one in storage),
            memory_bytes=keeping.memory or available_bytes() // 2 // num_here,
            resume=resume_step is not None,
            resume_step=resume_step,
            other_kernel=keeping.other_kernel,
            kernel=keeping.kernel,
            owner=owner(),
            run=uuid.uuid4().hex,
        )

    def begin(self, step: int) -> None:
        """Keep the parameters' values as those of a step, or take over the kept ones and the groups' settings."""
        remote = self.remote
        if remote.resumed is None:
            for number in range(len(self._units)):
                self._keep(number)
            remote.commit(step)
            remote.send_state(b"")
            remote.wait_for_commits()
            return
        for number in range(len(self._units)):
            flat, _ = remote.look(number, PARAMETERS)
            self.put(number, 0, flat)
        if remote.state:
            for group, settings in zip(self._groups, json.loads(remote.state), strict=True):
                group.update(settings)

    def require_plain(self) -> None:
        """Raise UnsupportedError where a parameter's memory has changed so that it cannot be stepped."""
        for unit in self._units:
            for member in unit:
                require_plain(member.parameter, member.tensor)

    def step(self, step: int) -> None:
        """Begin to update the parameters that have gradients; `wait` waits for the end."""
        for number, unit in enumerate(self._units):
            if all(member.parameter.grad is None for member in unit):
                self._keep(number)
        settings = json.dumps([plain_settings(group) for group in self._groups], sort_keys=True)
        self.remote.freeze(settings, 1)
        for number in range(len(self._units)):
            self._push(number)
        self.remote.end_pass()
        self.remote.step(step, settings, 1.0, 1)
        self.remote.send_state(settings.encode())

    def wait(self) -> None:
        """Return once the last step is on the disks, and its values are in the parameters."""
        self.remote.wait_for_commits()

    def close(self) -> None:
        """Close the folders; the parameters stay as they are."""
        if not self._is_closed:
            self._is_closed = True
            self.remote.close()
            self._node.close()

    def give_up(self, error: BaseException) -> None:
        """Close a node that could not begin."""
        self._is_closed = True
        self.remote.close(f"{type(error).__name__}: {error}")
        self._node.close()

    # --- values

    def take(self, unit: int, first: int, values: np.ndarray) -> None:
        """Fill (n,) float32 with a unit's live values; see [Note: values that count]."""
        for live, part in self._parts(unit, first, values):
            part.copy_(live)

    def put(self, unit: int, first: int, values: np.ndarray) -> None:
        """Copy updated values into the live parameters."""
        for live, part in self._parts(unit, first, values):
            live.copy_(part)

    def _parts(self, number: int, first: int, values: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pieces of a unit's parameters, each with its piece of `values`.

        `values` is (n,) float32 of the unit from element `first` on.
        """
        past = first + len(values)
        begins = self.remote.declaration.model.units[number].begins
        for (tensor, _, parameter), begin in zip(self._units[number], begins, strict=True):
            low, high = max(begin, first), min(begin + tensor.num_elements, past)
            if low < high:
                live = local_part(parameter).detach().view(-1)[low - begin : high - begin]
                yield live, torch.from_numpy(values[low - first : high - first])

    def _keep(self, number: int) -> None:
        """Write a unit to the disks, where they have other values."""
        parts = [local_part(member.parameter) for member in self._units[number]]
        found = checksum(parts)
        if found != self._kept[number]:
            self.values.write(number, dict(enumerate(parts)))
            self._kept[number] = found

    def _push(self, number: int) -> None:
        """Push the gradients of a unit."""
        unit, model = self._units[number], self.remote.declaration.model.units[number]
        present = sum(1 << place for place, one in enumerate(unit) if one.parameter.grad is not None)
        if not present:
            return
        self._kept[number] = None
        room: GradientRoom | None = self.remote.room_for(number)
        flat = np.zeros(model.num_elements, np.float32) if room is None else room.values
        for (tensor, _, parameter), begin in zip(unit, model.begins, strict=True):
            if parameter.grad is not None:
                gradient = torch.from_numpy(flat[begin : begin + tensor.num_elements])
                gradient.copy_(local_part(parameter.grad).reshape(-1))
        self.remote.push_gradients(number, present, is_last=True, room=room, source=flat if room is None else None)


def _units(members: list[Member]) -> list[list[Member]]:
    """Return neighbours together, up to a size."""
    units: list[list[Member]] = [[]]
    elements = 0
    for member in members:
        count = member.tensor.num_elements
        if units[-1] and elements + count > _UNIT_ELEMENTS:
            units.append([])
            elements = 0
        units[-1].append(member)
        elements += count
    return units


def members_of(groups: Mapping[int, dict[str, Any]]) -> list[Member]:
    """Return the parameters of some of an optimizer's groups of which this worker has a part.

    `groups` has the groups by their numbers.
    """
    found = []
    for number_here, (number, group) in enumerate(groups.items()):
        for place, parameter in enumerate(group["params"]):
            tensor = PagedTensor(f"{number}.{place}", tuple(local_part(parameter).shape))
            require_plain(parameter, tensor)
            if tensor.num_elements:  # a worker may have no part of a small one
                found.append(Member(tensor, number_here, parameter))
    return found


def require_plain(parameter: torch.Tensor, tensor: PagedTensor) -> None:
    """Raise UnsupportedError where a parameter's memory cannot be stepped."""
    local = local_part(parameter)
    what = "parameter {1} of group {0}".format(*tensor.name.split("."))
    if tuple(local.shape) != tensor.shape:
        raise UnsupportedError(
            f"{what} had the shape {list(tensor.shape)} on this worker and has {list(local.shape)} now; make the "
            "optimizer anew"
        )
    if local.dtype is not torch.float32 or local.device.type != "cpu" or not local.is_contiguous():
        raise UnsupportedError(
            f"{what} is {local.dtype} on {local.device} with strides {list(local.stride())}; states on disks step "
            "contiguous float32 on the CPU: keep master copies there, as FSDP2's mixed precision does"
        )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this worker's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
