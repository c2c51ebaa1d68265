"""State that is each worker's own, whatever trains the model: generators of random numbers, and a model's buffers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

Generators = dict[str, Any]
"""States of the generators that every script has, as plain values and tensors."""


def generators() -> Generators:
    """Return the states of the generators of torch (of each GPU too, where CUDA is in use), numpy and random."""
    version, internal, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch": torch.get_rng_state(),
        "random": [version, np.array(internal, np.uint32), gauss],
        "numpy": [kind, keys, place, has_gauss, cached],
        "cuda": on_gpus,
    }


def set_generators(states: Generators) -> None:
    """Put the generators where `generators` found them."""
    torch.set_rng_state(states["torch"])
    version, internal, gauss = states["random"]
    random.setstate((version, tuple(map(int, internal)), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys, *rest))
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
