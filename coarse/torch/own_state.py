"""State of each worker alone, for any way of training: random generators, and a model's buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from coarse.generators import host_generators, set_host_generators

Generators = dict[str, Any]
"""States of the generators that every script has, as plain values and tensors."""


def generators() -> Generators:
    """Return the states of the generators of torch (each GPU's too, if CUDA is in use), numpy and random."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch": torch.get_rng_state(),
        **host_generators(),
        "cuda": on_gpus,
    }


def set_generators(states: Generators) -> None:
    """Put the generators where `generators` found them."""
    torch.set_rng_state(states["torch"])
    set_host_generators(states)
    for number, state in enumerate(states.get("cuda", ())):
        torch.cuda.set_rng_state(state, number)


def kept_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return by name the buffers that a state dict has."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }


def is_scheduler(what: object) -> bool:
    """Return whether something is stepped after the optimizer, and writes into its groups."""
    return isinstance(what, torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau)
