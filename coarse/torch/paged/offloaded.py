"""`OffloadedOptimizer`: states on the worker's own disks, and steps after backward (ZeRO-Infinity, ZeRO-Offload)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import coarse
from coarse.client.paged.model import RemoteModel
from coarse.errors import ConfigError, UnsupportedError
from coarse.session import current, is_initialized
from coarse.storage.paged.declaration import Declaration
from coarse.storage.paged.kernels import kernel_of
from coarse.storage.paged.layout import CHUNK_ELEMENTS, PagedModel, PagedUnit
from coarse.storage.region import available_bytes
from coarse.torch.paged import saving
from coarse.torch.paged.declared import OPTIMIZERS, owner
from coarse.torch.paged.held import HeldParameters, Member, local_part, members_of
from coarse.torch.paged.optimizer import plain_settings
from coarse.torch.paged.values import UnitValues

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
        members = members_of(dict(enumerate(self.param_groups)))
        if not members:
            raise ConfigError("this worker has no parameters; give it some, or use fewer workers", key="params")
        rank, num_here = (coarse.rank(), coarse.local_size()) if is_initialized() else (0, 1)
        folders = None if storage is None else tuple(f"{os.fspath(folder)}/worker-{rank}" for folder in storage)
        units = _units(members)
        declaration = self._declared(
            units, optimizer.__name__, chunk_elements, storage=folders, resume=resume, other_kernel=other_kernel,
            kernel=kernel, memory_bytes=memory or available_bytes() // 2 // num_here,
        )  # fmt: skip
        stall_timeout_s = current().config.stall_timeout_s if is_initialized() else _STALL_TIMEOUT_S
        self._held = HeldParameters(
            units, self.param_groups, declaration, stall_timeout_s=stall_timeout_s, num_workers_here=num_here
        )
        try:
            self._held.begin()
        except BaseException as error:
            self._held.give_up(error)
            raise
        if (resumed := self._held.remote.resumed) is not None:
            self.steps = resumed["step"]

    @property
    def told(self) -> str:
        """Where states are, and what a step reads and writes, for people."""
        return self._held.remote.told[0]

    # --- steps

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have gradients; returns when states and parameters are on the disks.

        Raises:
            UnsupportedError: a closure.
            StorageError and others: what a disk says.
        """
        if closure is not None:
            raise UnsupportedError("states on disks take no closure: compute the loss, call backward(), then step()")
        self.steps += 1
        self._held.step(self.steps)
        self._held.wait()

    def close(self) -> None:
        """Give the folders back; the parameters stay as they are."""
        self._held.close()

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer itself has it, with all states in memory: of FSDP2's parameters DTensors of the shards.

        Training does not need it: every step is on the disks, and `resume` goes on from there.
        """
        found = saving.optimizer_state(self._stated())
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, state in found["state"].items():
            for name, values in state.items():
                if name != "step":
                    state[name] = _like(parameters[number], values)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, here or of the optimizer itself."""
        states = {
            number: {name: local_part(one) if isinstance(one, torch.Tensor) else one for name, one in state.items()}
            for number, state in state_dict["state"].items()
        }
        saving.load_optimizer_state(self._stated(), {**state_dict, "state": states})

    # --- within

    def _stated(self) -> _Stated:
        return _Stated(self._held.remote, self._held.values, self.param_groups, self._numbers)

    def _numbers(self) -> dict[str, int]:
        places = [(group, place) for group, of in enumerate(self.param_groups) for place in range(len(of["params"]))]
        return {f"{group}.{place}": number for number, (group, place) in enumerate(places)}

    def _declared(
        self, units: list[list[Member]], optimizer: str, chunk_elements: int, **options: Any  # noqa: ANN401
    ) -> Declaration:
        plain = [plain_settings(group) for group in self.param_groups]
        return Declaration(
            model=PagedModel(
                units=tuple(PagedUnit(unit[0].tensor.name, tuple(one.tensor for one in unit)) for unit in units),
                num_states=max(kernel_of(optimizer, group).num_states for group in plain),
                chunk_elements=chunk_elements,
            ),
            optimizer=optimizer,
            groups=tuple(plain),
            group_of=tuple(tuple(one.group for one in unit) for unit in units),
            num_workers=1,
            in_backward=True,
            owner=owner(),
            run=uuid.uuid4().hex,
            **options,
        )


@dataclass
class _Stated:
    """See saving.Stated."""

    remote: RemoteModel
    values: UnitValues
    param_groups: list[dict[str, Any]]
    numbers: Callable[[], dict[str, int]]
    """By the name of a kept tensor its number in torch's state dicts."""


def _units(members: list[Member]) -> list[list[Member]]:
    """Neighbours together, up to a size."""
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


def _like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A state of this worker's part, sharded as its parameter is."""
    if not isinstance(parameter, DTensor):
        return local
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
