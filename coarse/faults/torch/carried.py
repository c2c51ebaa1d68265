"""Commits of Resumable by an optimizer that commits its own steps: a model in the network (LuWu)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from coarse.errors import CheckpointError, ConfigError
from coarse.faults.parts import OWN, SETTINGS, Part, PlainPart
from coarse.plain import Plain
from coarse.torch.groups.objects import TENSORS
from coarse.transport.launcher import told_to_this_job

NAME = "coarse.resumable"
"""Name under which an optimizer carries it."""


def carrier_in(parts: Mapping[str, object]) -> tuple[str, Any] | None:
    """Return by its name the optimizer that commits its own steps, and carries all else; None if none.

    Raises:
        ConfigError: there are two.
    """
    found: list[tuple[str, Any]] = [(name, what) for name, what in parts.items() if _carries(what)]
    if len(found) > 1:
        raise ConfigError(f"Resumable: {found[0][0]!r} and {found[1][0]!r} both commit steps of their own; give one")
    if not found:
        return None
    return found[0]


def require_kept(carrier: tuple[str, Any], environ: Mapping[str, str]) -> None:
    """Raise ConfigError where the optimizer's states end with their devices, though all else is kept."""
    name, optimizer = carrier
    if optimizer.remote.declaration.storage is None and "COARSE_STATE_FILES" not in told_to_this_job(environ):
        raise ConfigError(
            f"Resumable: {name!r} has its states in the memory of devices (storage=None), which ends with them; give "
            "model_in_network folders for storage, or start by coarse run --restarts N, which holds that memory"
        )


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _set_settings(optimizer: torch.optim.Optimizer, kept: list[dict[str, Any]]) -> None:
    for group, settings in zip(optimizer.param_groups, kept, strict=True):
        group.update(settings)


def _carries(what: object) -> bool:
    return isinstance(what, torch.optim.Optimizer) and getattr(what, "keeps_itself", False) and hasattr(what, "carry")


def without_carried(parts: Mapping[str, object], carrier: tuple[str, Any] | None) -> dict[str, object]:
    """Return the parts that the optimizer does not commit by itself: all but it and its model."""
    if carrier is None:
        return dict(parts)
    name, optimizer = carrier
    return {
        each: what for each, what in parts.items()
        if each != name and not (isinstance(what, nn.Module) and optimizer.model in what.modules())
    }  # fmt: skip


class Carried:
    """Parts as they were at the last commit, and its step, as an optimizer carries them."""

    is_read_late = True
    """True: its state is right when the next forward begins, and not yet at the step itself."""

    def __init__(self, parts: dict[str, Part], optimizer: torch.optim.Optimizer) -> None:
        """Wrap the parts.

        `optimizer` carries them; its settings too are those of the commit, which a scheduler may have changed since.
        """
        self._parts = {**parts, SETTINGS: PlainPart(
            "the optimizer's settings", partial(_settings, optimizer), partial(_set_settings, optimizer), TENSORS
        )}  # fmt: skip
        self._taken: dict[str, Any] = {}
        self.calls = 0
        """Number of the script's commits so far."""

    def take(self, calls: int) -> None:
        """Note the state as it is now."""
        taken = {name: part.take() for name, part in self._parts.items()}
        self._taken = {
            "calls": calls,
            "parts": {
                name: [each.tree, [item.tensor.detach().clone() for item in each.items]] for name, each in taken.items()
            },
        }

    def state_dict(self) -> Plain:
        """Return the state that was noted last; {} before the first commit."""
        return self._taken

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a commit.

        Raises:
            CheckpointError: there were other parts.
        """
        if not state:
            return
        kept = state["parts"]
        if differing := sorted(self._parts.keys() ^ kept.keys()):
            raise CheckpointError(
                f"the step that is gone on from has the parts {sorted(kept.keys() - OWN)}, and Resumable was given "
                f"{sorted(self._parts.keys() - OWN)} ({differing[0]!r} differs); give the same parts"
            )
        for name, part in self._parts.items():
            tree, tensors = kept[name]
            targets = part.wanted(tree)
            for target, tensor in zip(targets, tensors, strict=True):
                target.copy_(tensor)
            part.put(tree, targets)
        self._taken, self.calls = state, state["calls"]
