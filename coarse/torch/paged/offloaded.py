"""`OffloadedOptimizer`: states on the worker's own disks, and steps after backward (ZeRO-Infinity, ZeRO-Offload)."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.tensor import DTensor

import coarse
from coarse.client.paged.line import GradientRoom
from coarse.client.paged.model import RemoteModel
from coarse.errors import ConfigError, UnsupportedError
from coarse.protocol.clock import WallClock
from coarse.session import current, is_initialized
from coarse.storage.paged.declaration import Declaration
from coarse.storage.paged.kernels import kernel_of
from coarse.storage.paged.layout import CHUNK_ELEMENTS, PagedModel, PagedTensor, PagedUnit
from coarse.storage.region import available_bytes
from coarse.torch.paged import saving
from coarse.torch.paged.declared import OPTIMIZERS, owner
from coarse.torch.paged.optimizer import plain_settings
from coarse.torch.paged.own_node import DEVICE, OwnNode
from coarse.torch.paged.values import PARAMETERS, UnitValues

_UNIT_ELEMENTS = 16 * CHUNK_ELEMENTS
"""Parameters are pushed together up to this."""
_STALL_TIMEOUT_S = 60.0


class OffloadedOptimizer(torch.optim.Optimizer):
    """Steps parameters that this worker holds, or its shards of them, with states that it does not.

    step() brings the gradients to an optimizer node in a thread of this process, which reads parameters and states
    from disks chunk by chunk, updates and writes them, all at once; it returns when all is on the disks, where it
    outlives a crash. After backward is where ZeRO-Infinity steps, too (Rajbhandari et al., SC'21, section 5.1.1).
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        optimizer: type[torch.optim.Optimizer],
        *,
        storage: Sequence[str | os.PathLike[str]] | None,
        memory: int | None = None,
        resume: bool = False,
        other_kernel: bool = False,
        kernel: str = "numpy",
        chunk_elements: int = CHUNK_ELEMENTS,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        """
        Args:
            params: as torch's own take them; float32, on the CPU; of FSDP2's parameters each worker's shard.
            optimizer: torch.optim.AdamW, Adam or SGD; `settings` are its own.
            storage: folders for the states, in which each worker has one of its own; None: memory keeps them.
            memory, resume, other_kernel, kernel, chunk_elements: as of model_in_network.

        Raises:
            ConfigError, UnsupportedError: what cannot work.
            CapacityError: disks or memory that are too small.
            StorageError: folders of another training, read-only ones and so on.
        """
        if optimizer not in OPTIMIZERS:
            known = ", ".join(kind.__name__ for kind in OPTIMIZERS)
            raise ConfigError(f"optimizers with states on disks are {known}, got {optimizer}", key="optimizer")
        asked = optimizer(params, **settings)
        super().__init__(asked.param_groups, asked.defaults)
        self.steps = 0
        """Steps that were made, those before a resume too."""
        self._units = _units(_members(self.param_groups))
        rank, num_here = (coarse.rank(), coarse.local_size()) if is_initialized() else (0, 1)
        folders = None if storage is None else tuple(f"{os.fspath(folder)}/worker-{rank}" for folder in storage)
        declaration = self._declared(
            optimizer.__name__, chunk_elements, storage=folders, resume=resume, other_kernel=other_kernel,
            kernel=kernel, memory_bytes=memory or available_bytes() // 2 // num_here,
        )  # fmt: skip
        stall_timeout_s = current().config.stall_timeout_s if is_initialized() else _STALL_TIMEOUT_S
        self._node = OwnNode(2 * (declaration.memory_bytes or 0), WallClock(), stall_timeout_s, num_here)
        self._node.hands.on_updated = self._put
        self.remote = RemoteModel(0, self._node, {DEVICE: self._node.memory})  # type: ignore[arg-type]
        self.values = UnitValues(self.remote, {})
        self._is_closed = False
        try:
            self.remote.open(declaration)
            self._begin()
        except BaseException as error:
            self.remote.close(f"{type(error).__name__}: {error}")
            self._node.close()
            raise

    @property
    def told(self) -> str:
        """Where states are, and what a step reads and writes, for people."""
        return self.remote.told[0]

    # --- steps

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have gradients; returns when states and parameters are on the disks.

        Raises:
            UnsupportedError: a closure.
            StorageError and others: what a disk says.
        """
        if closure is not None:
            raise UnsupportedError("states on disks take no closure: compute the loss, call backward(), then step()")
        settings = json.dumps(self._settings(), sort_keys=True)
        self.remote.freeze(settings, 1)
        for number in range(len(self._units)):
            self._push(number)
        self.remote.end_pass()
        self.steps += 1
        self.remote.step(self.steps, settings, 1.0, 1)
        self.remote.send_state(settings.encode())
        self.remote.wait_for_commits()

    def close(self) -> None:
        """Give the folders back; the parameters stay as they are."""
        if not self._is_closed:
            self._is_closed = True
            self.remote.close()
            self._node.close()

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer itself has it, with all states in memory: of FSDP2's parameters DTensors of the shards.

        Training does not need it: every step is on the disks, and `resume` goes on from there.
        """
        found = saving.optimizer_state(self)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, state in found["state"].items():
            for name, values in state.items():
                if name != "step":
                    state[name] = _like(parameters[number], values)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, here or of the optimizer itself."""
        states = {
            number: {name: _local(one) if isinstance(one, torch.Tensor) else one for name, one in state.items()}
            for number, state in state_dict["state"].items()
        }
        saving.load_optimizer_state(self, {**state_dict, "state": states})

    def numbers(self) -> dict[str, int]:
        """By the name of a kept tensor its number in torch's state dicts."""
        places = [(group, place) for group, of in enumerate(self.param_groups) for place in range(len(of["params"]))]
        return {f"{group}.{place}": number for number, (group, place) in enumerate(places)}

    # --- within

    def _declared(self, optimizer: str, chunk_elements: int, **options: Any) -> Declaration:  # noqa: ANN401
        plain = self._settings()
        return Declaration(
            model=PagedModel(
                units=tuple(PagedUnit(unit[0].tensor.name, tuple(one.tensor for one in unit)) for unit in self._units),
                num_states=max(kernel_of(optimizer, group).num_states for group in plain),
                chunk_elements=chunk_elements,
            ),
            optimizer=optimizer,
            groups=tuple(plain),
            group_of=tuple(tuple(one.group for one in unit) for unit in self._units),
            num_workers=1,
            in_backward=True,
            owner=owner(),
            run=uuid.uuid4().hex,
            **options,
        )

    def _begin(self) -> None:
        """Keep the parameters' values, or take over those that are kept."""
        remote = self.remote
        if remote.resumed is None:
            for number, unit in enumerate(self._units):
                self.values.write(number, {place: _local(one.parameter) for place, one in enumerate(unit)})
            remote.commit(0)
            remote.send_state(b"")
            remote.wait_for_commits()
            return
        self.steps = remote.resumed["step"]
        for number in range(len(self._units)):
            flat, _ = remote.look(number, PARAMETERS)
            self._put(number, 0, flat)
        if remote.state:
            for group, settings in zip(self.param_groups, json.loads(remote.state), strict=True):
                group.update(settings)

    def _push(self, number: int) -> None:
        """The gradients of a unit."""
        unit, model = self._units[number], self.remote.declaration.model.units[number]
        present = sum(1 << place for place, one in enumerate(unit) if one.parameter.grad is not None)
        if not present:
            return
        room: GradientRoom | None = self.remote.room_for(number)
        flat = np.zeros(model.num_elements, np.float32) if room is None else room.values
        for (tensor, _, parameter), begin in zip(unit, model.begins, strict=True):
            if parameter.grad is not None:
                gradient = torch.from_numpy(flat[begin : begin + tensor.num_elements])
                gradient.copy_(_local(parameter.grad).reshape(-1))
        self.remote.push_gradients(number, present, is_last=True, room=room, source=flat if room is None else None)

    def _put(self, number: int, first: int, values: np.ndarray) -> None:
        """Take over a unit's values, (n,) float32 from an element on; also in a thread of the node."""
        unit, model = self._units[number], self.remote.declaration.model.units[number]
        past = first + len(values)
        for (tensor, _, parameter), begin in zip(unit, model.begins, strict=True):
            low, high = max(begin, first), min(begin + tensor.num_elements, past)
            if low < high:
                flat = _local(parameter).detach().view(-1)
                flat[low - begin : high - begin] = torch.from_numpy(values[low - first : high - first])

    def _settings(self) -> list[dict[str, Any]]:
        return [plain_settings(group) for group in self.param_groups]


class _Member(NamedTuple):
    """A parameter that is stepped."""

    tensor: PagedTensor
    """As it is kept."""
    group: int
    parameter: torch.Tensor


def _members(groups: list[dict[str, Any]]) -> list[_Member]:
    found = []
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            local = _local(parameter)
            if local.dtype is not torch.float32 or local.device.type != "cpu" or not local.is_contiguous():
                raise UnsupportedError(
                    f"parameter {place} of group {number} is {local.dtype} on {local.device}; states on disks step "
                    "contiguous float32 on the CPU: keep master copies there, as FSDP2's mixed precision does"
                )
            if local.numel():  # a worker may have no part of a small one
                found.append(_Member(PagedTensor(f"{number}.{place}", tuple(local.shape)), number, parameter))
    if not found:
        raise ConfigError("this worker has no parameters; give it some, or use fewer workers", key="params")
    return found


def _units(members: list[_Member]) -> list[list[_Member]]:
    """Neighbours together, up to a size."""
    units: list[list[_Member]] = [[]]
    elements = 0
    for member in members:
        count = member.tensor.num_elements
        if units[-1] and elements + count > _UNIT_ELEMENTS:
            units.append([])
            elements = 0
        units[-1].append(member)
        elements += count
    return units


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This worker's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A state of this worker's part, sharded as its parameter is."""
    if not isinstance(parameter, DTensor):
        return local
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
