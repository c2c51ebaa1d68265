"""What claims of models in the network begin with: a model in folders of its own, and its training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.torch.optimizer import NetworkOptimizer
from tests.mpi.luwu.models import loss_of
from tests.support.paged_reference import Loss, Reference

FOLDER = Path(sys.argv[1])
OPTIONS = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
"""Of every model: who adds, and by what network."""
_number = 0
ADAMW = {"lr": 1e-2, "weight_decay": 0.1}


def in_network(
    model: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any
) -> tuple[nn.Module, NetworkOptimizer]:
    """A model in the network, in folders that no other claim has, by small chunks."""
    global _number
    _number += 1
    storage = [str(FOLDER / f"{_number}-{name}") for name in ("one", "two")]
    settings = ADAMW if kind is torch.optim.AdamW else {}
    return ct.model_in_network(
        model, kind, **{"storage": storage, "memory": 8 << 20, "chunk_elements": 1024, **settings, **OPTIONS, **options}
    )


def train(
    model: nn.Module,
    optimizer: NetworkOptimizer,
    loss: Loss = loss_of,
    *,
    steps: int = 20,
    first: int = 1,
    num_passes: int = 1,
    max_norm: float | None = None,
) -> None:
    """This worker's share of a training."""
    for step in range(first, steps + 1):
        for number in range(num_passes):
            loss(model, coarse.rank(), step, number).backward()
        if max_norm is not None:
            optimizer.clip_grad_norm(max_norm)
        optimizer.step()
        optimizer.zero_grad()


def require_equal(
    make: Callable[[], nn.Module],
    loss: Loss = loss_of,
    *,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    steps: int = 20,
    num_passes: int = 1,
    max_norm: float | None = None,
    settings: dict[str, Any] | None = None,
    groups: Callable[[str], dict[str, Any]] | None = None,
    dtype: torch.dtype | None = None,
    kernels: Callable[[str, dict[str, Any]], Any] = kernel_of,
    **options: Any,
) -> list[float]:
    """A training in the network has the bits of the reference; the coefficients of its steps."""
    settings = ADAMW if settings is None else settings
    model = make()
    reference = Reference(
        model, coarse.size(), kind.__name__, settings=settings, groups=groups, dtype=dtype or torch.float32,
        kernels=kernels,
    )  # fmt: skip
    model, optimizer = in_network(model, kind, groups=groups, dtype=dtype, **{**settings, **options})
    train(model, optimizer, loss, steps=steps, num_passes=num_passes, max_norm=max_norm)
    coefficients = [
        reference.step(loss, step, num_passes=num_passes, max_norm=max_norm) for step in range(1, steps + 1)
    ]
    state = model.state_dict()
    assert not reference.differing(state), reference.differing(state)
    optimizer.close()
    return coefficients
