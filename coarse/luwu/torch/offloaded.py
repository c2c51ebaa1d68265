"""Optimizer with states on the worker's disks, and steps after backward (ZeRO-Infinity, ZeRO-Offload)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import coarse
from coarse.errors import ConfigError, UnsupportedError
from coarse.luwu.client.model import RemoteModel
from coarse.luwu.store.layout import CHUNK_ELEMENTS
from coarse.luwu.torch import saving
from coarse.luwu.torch.declared import OPTIMIZERS, require_list, require_resume, resume_asked
from coarse.luwu.torch.held import HeldParameters, Keeping, local_part, members_of
from coarse.luwu.torch.kept_steps import group_folder, newest_of_all
from coarse.luwu.torch.values import UnitValues
from coarse.session import is_initialized
from coarse.transport.commit_note import commit_note


class OffloadedOptimizer(torch.optim.Optimizer):
    """Optimizer of parameters that this worker holds, or its shards of them, with states that it does not.

    step() brings the gradients to an optimizer node in a thread of this process, which reads parameters and states from
    disks chunk by chunk, updates and writes them, all at once; it returns when all is on the disks, where it outlives a
    crash. ZeRO-Infinity steps after backward, too (Rajbhandari et al., SC'21, section 5.1.1).
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        optimizer: type[torch.optim.Optimizer],
        *,
        storage: Sequence[str | os.PathLike[str]] | None,
        memory: int | None = None,
        resume: bool | str = False,
        other_kernel: bool = False,
        kernel: str = "numpy",
        chunk_elements: int = CHUNK_ELEMENTS,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        """Open the folders, and begin or resume.

        Args:
            params: parameters as torch's own optimizers take them; float32, on the CPU; each worker's shard of FSDP2's.
            optimizer: torch.optim.AdamW, Adam or SGD; `settings` are its own.
            storage: folders for the states, in which each worker has one of its own; None: memory keeps them.
            memory: bytes for the buffers of the parameters, and as many for those of each group that is added later.
            resume: True to resume from the newest step that all workers have in their folders, equal on all workers.
                "auto": resume where there is one, and begin in empty folders.
            other_kernel: see model_in_network.
            kernel: see model_in_network.
            chunk_elements: see model_in_network.
            settings: settings of the optimizer.

        Raises:
            ConfigError, UnsupportedError: parameters or options that cannot work.
            CapacityError: disks or memory that are too small.
            StorageError: folders of another training, read-only ones and so on.
        """
        if optimizer not in OPTIMIZERS:
            known = ", ".join(kind.__name__ for kind in OPTIMIZERS)
            raise ConfigError(f"optimizers with states on disks are {known}, got {optimizer}", key="optimizer")
        require_list(storage)
        require_resume(resume)
        resume = resume_asked(resume, os.environ)
        asked = optimizer(params, **settings)
        super().__init__(asked.param_groups, asked.defaults)
        self.steps = 0
        """Number of steps that were made, with those before a resume."""
        self._keeping = Keeping(
            optimizer=optimizer.__name__, storage=None if storage is None else tuple(storage), memory=memory,
            other_kernel=other_kernel, kernel=kernel, chunk_elements=chunk_elements,
        )  # fmt: skip
        self._worker = f"worker-{coarse.rank() if is_initialized() else 0}"
        self._awaited: list[int] = []
        """Groups that the resumed run had added, and that are still to be added."""
        resume_step = None
        if resume is True and storage is None:
            raise ConfigError("resume=True goes on from folders, and storage=None names none", key="storage")
        if resume and storage is not None:
            resume_step, self._awaited = newest_of_all(storage, self._worker, is_needed=resume is True)
            self.steps = resume_step or 0
        self._held: list[HeldParameters] = []
        """Groups that were given at first, then each that was added and of which this worker has a part."""
        self._hold(dict(enumerate(self.param_groups)), self._worker, resume_step)
        self._note = commit_note(os.environ) if self.keeps_itself and self._worker == "worker-0" else None
        if self._note is not None and self.steps:
            self._note.put(self.steps)

    @property
    def keeps_itself(self) -> bool:
        """True if each step is committed to `storage`, from where `resume` goes on."""
        return self._keeping.storage is not None

    @property
    def told(self) -> str:
        """Place of the states, and the bytes that a step reads and writes, for people."""
        return "\n".join(held.remote.told[0] for held in self._held)

    # --- steps

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have gradients; return when states and parameters are on the disks.

        Raises:
            UnsupportedError: a closure; a parameter that was given another shape, type or device.
            ConfigError: groups that were added before a resume, and were not again.
            StorageError and others: a failure of a disk.
        """
        if closure is not None:
            raise UnsupportedError("states on disks take no closure: compute the loss, call backward(), then step()")
        if self._awaited:
            raise ConfigError(
                f"the run that goes on had added parameter groups {self._awaited}; call add_param_group for each of "
                "them again before the first step", key="params",
            )  # fmt: skip
        for held in self._held:
            held.require_plain()
        self.steps += 1
        for held in self._held:
            held.step(self.steps)
        for held in self._held:
            held.wait()
        if self._note is not None:
            self._note.put(self.steps)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to be stepped, whose states get folders and buffers of their own, on all workers.

        A resumed run adds them again, after it was made and before its first step.
        """
        super().add_param_group(param_group)
        if not hasattr(self, "_held"):
            return  # torch adds those that are given at first
        number = len(self.param_groups) - 1
        try:
            resume_step = self.steps if number in self._awaited else None
            if members_of({number: self.param_groups[number]}):
                self._hold({number: self.param_groups[number]}, group_folder(self._worker, number), resume_step)
        except BaseException:
            del self.param_groups[number]
            raise
        self._awaited = [group for group in self._awaited if group != number]

    def close(self) -> None:
        """Close the folders; the parameters stay as they are."""
        with ExitStack() as closing:
            for held in self._held:
                closing.callback(held.close)

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the optimizer itself, with all states in memory.

        States of FSDP2's parameters are DTensors of the shards. Training does not need it: every step is on the disks,
        and `resume` goes on from there.
        """
        found: dict[str, Any] = {}
        by_number: dict[int, dict[str, Any]] = {}
        for held in self._held:
            found = saving.optimizer_state(self._stated(held))
            by_number |= found["state"]
        found["state"] = dict(sorted(by_number.items()))
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, state in found["state"].items():
            for name, values in state.items():
                if name != "step":
                    state[name] = _like(parameters[number], values)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict of `state_dict`, of this class or of the optimizer itself."""
        states = {
            number: {name: local_part(one) if isinstance(one, torch.Tensor) else one for name, one in state.items()}
            for number, state in state_dict["state"].items()
        }
        for held in self._held:
            saving.load_optimizer_state(self._stated(held), {**state_dict, "state": states})

    # --- within

    def _hold(self, groups: dict[int, dict[str, Any]], folder: str, resume_step: int | None) -> None:
        held = HeldParameters(groups, self._keeping, folder, resume_step)
        try:
            held.begin(self.steps)
        except BaseException as error:
            held.give_up(error)
            raise
        self._held.append(held)

    def _stated(self, held: HeldParameters) -> _Stated:
        return _Stated(held.remote, held.values, self.param_groups, self._numbers)

    def _numbers(self) -> dict[str, int]:
        places = [(group, place) for group, of in enumerate(self.param_groups) for place in range(len(of["params"]))]
        return {f"{group}.{place}": number for number, (group, place) in enumerate(places)}


@dataclass
class _Stated:
    """Optimizer of one HeldParameters, with the members of saving.Stated."""

    remote: RemoteModel
    values: UnitValues
    param_groups: list[dict[str, Any]]
    numbers: Callable[[], dict[str, int]]
    """Number in torch's state dicts by the name of a kept tensor."""


def _like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Return a state of this worker's part, sharded as its parameter is."""
    if not isinstance(parameter, DTensor):
        return local
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
