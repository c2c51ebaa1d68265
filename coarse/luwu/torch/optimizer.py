"""Optimizer of a model in the network: a torch optimizer with states and steps on memory devices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from coarse.errors import ConfigError, UnsupportedError
from coarse.luwu.torch import saving
from coarse.luwu.torch.unit import UnitMemories
from coarse.luwu.torch.values import UnitValues
from coarse.luwu.torch.worker_state import Stateful, WorkerState

if TYPE_CHECKING:
    from coarse.luwu.client.model import RemoteModel
    from coarse.luwu.torch.sites import Backward, FilledModule
    from coarse.luwu.torch.timeline import WorkerTimeline

_UNSENT = frozenset({"params", "foreach", "fused", "initial_lr", "differentiable", "capturable", "names"})
"""Names of a group's settings that do not travel with a step."""


class NetworkOptimizer(torch.optim.Optimizer):
    """Optimizer of a model in the network; made by `model_in_network`.

    Its `param_groups` have the settings of the optimizer that was asked for, and schedulers change them as they do any
    optimizer's. Parameters in the groups stand for values that are elsewhere.
    """

    keeps_itself: ClassVar[bool] = True
    """True if each step is committed to `storage`, from where `resume` goes on."""

    def __init__(
        self,
        remote: RemoteModel,
        model: nn.Module,
        groups: list[dict[str, Any]],
        defaults: dict[str, Any],
        placeholders: dict[tuple[int, int], nn.Parameter],
        divisor: int,
        dtypes: dict[str, torch.dtype],
    ) -> None:
        super().__init__(groups, defaults)
        self.remote = remote
        self.dtypes = dtypes
        """Types that parameters had, by name."""
        self.steps = 0
        """Number of steps that were made, with those before a resume."""
        self.values = UnitValues(remote, placeholders)
        self._divisor = divisor
        self._coefficient = 1.0
        self._frozen: str | None = None
        self.model = model
        self._worker = WorkerState(model)
        self._taken: dict[str, Any] | None = None
        """State of this worker at a step that is to be committed, until it is sent."""
        self._memories: UnitMemories
        self._backward: Backward
        self._sites: list[FilledModule]
        self._is_closed = False
        self._timeline: WorkerTimeline | None = None

    def attach(self, memories: UnitMemories, backward: Backward, sites: list[FilledModule]) -> None:
        """Attach the model's memories, backward passes and sites."""
        self._memories, self._backward, self._sites = memories, backward, sites
        self._timeline = memories.timeline

    # --- training

    def step(self, closure: Callable[[], float] | None = None, *, skip: bool = False) -> None:  # type: ignore[override]
        """Have all parameters with gradients updated, by the mean over all workers; return at once.

        The update hides behind later work; the next forward waits for each unit as it needs it. All workers make the
        same call. An error of an optimizer node is raised by the next call that needs it.

        Args:
            closure: refused; compute the loss before.
            skip: discard the gradients and make no step, as a loss scaler wants where they overflowed.

        Raises:
            UnsupportedError: a closure.
            ConfigError: with update="backward", settings that changed since backward began.
            StorageError, DeadRankError, MismatchError and others: an earlier failure.
        """
        if closure is not None:
            raise UnsupportedError(
                "a model in the network takes no closure: compute the loss, call backward(), then step()"
            )
        self._pay_state()
        if skip:
            self.discard()
            return
        settings = self.settings()
        if self._frozen is not None and settings != self._frozen and not self.remote.declaration.is_speculative:
            raise ConfigError(
                "the optimizer's settings changed between backward and step(), and update='backward' has used them; "
                "change them before backward, discard the gradients by zero_grad() and compute them again, or pass "
                "speculative=True",
                key="update",
            )
        self.steps += 1
        self.remote.step(self.steps, settings, self._coefficient, self._divisor)
        if self.steps % self.remote.declaration.commit_every == 0:
            self._take_state()
        self._forget_gradients()
        self._memories.on_step()
        self._memories.look_ahead()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse parameters that come later; torch adds those of the model by this method.

        Raises:
            UnsupportedError: a group that comes after the optimizer was made.
        """
        if hasattr(self, "remote"):
            raise UnsupportedError(
                "a model in the network takes no parameters later, for the disks of its states are laid out when it is "
                "made: have all of them in the model, give groups of settings by groups=, and make the model anew"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard gradients that no step has used, if there are any."""
        if self._backward.has_pushed:
            self.discard()

    def discard(self) -> None:
        """Discard all gradients since the last step; all workers make the same call."""
        self.remote.discard()
        self._forget_gradients()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Return the gradients' total 2-norm; the next step scales them so that it is at most `max_norm`.

        It is torch.nn.utils.clip_grad_norm_ of the mean over all workers; it waits until all have pushed. All workers
        make the same call.

        Raises:
            RuntimeError: the norm is not finite.
            ConfigError: with update="backward" alone, which has used the gradients; pass speculative=True.
        """
        declaration = self.remote.declaration
        if declaration.in_backward and not declaration.is_speculative:
            raise ConfigError(
                "update='backward' has used the gradients before their norm is known; pass speculative=True, or "
                "update='step'",
                key="update",
            )
        if not max_norm > 0:
            raise ValueError(f"max_norm must be above 0, got {max_norm}")
        norm = math.sqrt(self.remote.norm_square()) / self._divisor
        if not math.isfinite(norm):
            raise RuntimeError(
                f"the gradients' norm is {norm}: discard them by zero_grad() or step(skip=True), and lower the "
                "learning rate"
            )
        self._coefficient = min(1.0, max_norm / (norm + 1e-6))
        return torch.tensor(norm, device="cpu")

    def wait(self) -> None:
        """Return once all steps and changed values are committed, or raise their error; all workers call it."""
        self.remote.require_sound()
        self._pay_state()
        if self.remote.is_dirty:
            self.remote.commit(self.steps)
            self._taken = self._worker.take()
            self._pay_state()
        self.remote.wait_for_commits()

    def carry(self, **what: Stateful) -> None:
        """Have schedulers, samplers and the like committed with each step, by their state_dict().

        In a run that resumes from a committed step, they are put where they were then; so are the generators of torch,
        numpy and random. Call it last before the loop.
        """
        for name, one in what.items():
            self._worker.carry(name, one)

    # --- values

    @contextmanager
    def summoned(
        self, unit: str | nn.Module | None = None, *, write: bool = False
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Give the values of parameters, float32, by name, within the context; modules show them too.

        Args:
            unit: a unit's name (`units`), or a module whose parameters are wanted; None: all.
            write: take over changed values; all workers summon the same, and change it in the same way.

        Raises:
            MismatchError: workers have changed values in different ways; nothing is taken over.
        """
        with self.values.summoned(self._numbers_of(unit), self._sites, write=write) as found:
            yield found

    @property
    def units(self) -> list[str]:
        """Names of the units, in order; "" is the part of the model beside them."""
        return [unit.name for unit in self.remote.declaration.model.units]

    def save(self, folder: str | Path, *, states: bool = True) -> None:
        """Write the parameters to a folder in Hugging Face's format, and the optimizer's states beside them.

        The format is safetensors in shards, and an index. Not more than a shard is in memory at a time. Worker 0
        writes, and others return at once.
        """
        saving.save(self, Path(folder), states=states)

    def load(self, folder: str | Path) -> None:
        """Load parameters, and states if there are any, from such a folder.

        All workers call it, and worker 0 reads the folder.
        """
        saving.load(self, Path(folder))

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the optimizer itself, with all states in this worker's memory.

        No other worker takes part.
        """
        return saving.optimizer_state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict of `state_dict`, of this class or of the optimizer itself.

        All workers call it, and worker 0's counts.
        """
        saving.load_optimizer_state(self, state_dict)

    # --- the end

    def close(self) -> None:
        """Commit all that is not committed, and leave; the model cannot be used afterwards.

        shutdown() does it, too.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._memories.drop_ahead()
            self.wait()
            if self._timeline is not None:
                self._timeline.write()
        finally:
            self.remote.close()
        if self._timeline is not None:
            self._timeline.merge()

    # --- within

    def before_pull(self) -> None:
        """Send this worker's late state, as a forward begins: schedulers have been stepped by now."""
        self._pay_state()

    def before_push(self) -> None:
        """Freeze the settings where gradients are about to be pushed; see `freeze` of RemoteModel."""
        declaration = self.remote.declaration
        if not declaration.in_backward or self._frozen is not None:
            return
        if self._backward.num_passes < declaration.num_passes - 1:
            return
        self._frozen = self.settings()
        self.remote.freeze(self._frozen, self._divisor)

    def require_pass(self) -> None:
        """Raise ConfigError where a backward comes that was not declared."""
        declaration = self.remote.declaration
        if declaration.in_backward and self._backward.num_passes >= declaration.num_passes:
            raise ConfigError(
                f"a backward pass comes after the {declaration.num_passes} of accumulate={declaration.num_passes}, and "
                "update='backward' has made its update; call step() before, or declare more",
                key="accumulate",
            )

    def _forget_gradients(self) -> None:
        self._coefficient = 1.0
        self._frozen = None
        self._backward.on_step()

    def settings(self) -> str:
        """Return the groups' settings as they travel: the same text for the same values."""
        return json.dumps([plain_settings(group) for group in self.param_groups], sort_keys=True)

    def _take_state(self) -> None:
        self._taken = self._worker.take()
        if not self._worker.is_late:
            self._pay_state()

    def _pay_state(self) -> None:
        """Send this worker's state of the last step that is to be committed."""
        if self._taken is None:
            return
        taken, self._taken = self._taken, None
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        self.remote.send_state(self._worker.sealed(taken, settings))

    def numbers(self) -> dict[str, int]:
        """Return the numbers of parameters in torch's state dicts, by name."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return {parameter.parameter_name: number for number, parameter in enumerate(parameters)}

    def begin(self) -> None:
        """Show placeholders in the model from now on; commit the first values, where they are new."""
        for site in self._sites:
            site.show(self.values.placeholders)
        self.wait()

    @property
    def has_pushed(self) -> bool:
        """True if there are gradients that no step has used."""
        return self._backward.has_pushed

    def resume(self, step: int, state: bytes) -> None:
        """Restore this worker's state at a committed step."""
        self.steps = step
        for group, settings in zip(self.param_groups, self._worker.restore(state), strict=True):
            group.update(settings)

    def _numbers_of(self, unit: str | nn.Module | None) -> list[int]:
        model = self.remote.declaration.model
        if unit is None:
            return list(range(len(model.units)))
        if isinstance(unit, nn.Module):
            found = [number for site in self._sites for number in site.units_within(unit)]
            if not found:
                raise ConfigError(f"this {type(unit).__name__} has no parameters of the model", key="unit")
            return sorted(set(found))
        names = (unit, f"{unit}.frozen")
        found = [number for number, one in enumerate(model.units) if one.name in names]
        if not found:
            raise ConfigError(f"there is no unit {unit!r}; there are {self.units}", key="unit")
        return found


def plain_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's settings that a step needs, as JSON values."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        if name in _UNSENT:
            continue
        if isinstance(value, torch.Tensor | np.generic):
            value = value.item()
        found[name] = list(value) if isinstance(value, tuple) else value
    return found

