"""Closure as a distributed optimizer evaluates it: gradients and loss of all workers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from coarse.errors import MismatchError
from coarse.protocol.dtypes import Op
from coarse.session import current
from coarse.torch.ddp.peers import Peers

Closure = Callable[[], Any]


class SharedClosure:
    """Closure whose loss is combined over all workers as its gradients are combined.

    [Note: a closure's loss] A line search compares losses, and steps where they fall. Were each worker to compare its
    own, workers would step apart though their gradients are equal. A loss is the closure's result if that is a number
    or a tensor of one element; anything else stays this worker's own.
    """

    def __init__(self, closure: Closure, synchronize: Callable[[], None], op: Op, name: str, peers: Peers) -> None:
        """Wrap a closure; `name` is that of the loss among the keys, and `peers` combine their losses."""
        self._closure = closure
        self._synchronize = synchronize
        self._op = op
        self._name = name
        self._peers = peers

    def __call__(self) -> Any:  # noqa: ANN401
        """Return the closure's result of all workers; their gradients are combined too."""
        with torch.enable_grad():
            found = self._closure()
        self._synchronize()
        loss = _loss_in(found)
        combined = self._combined(0.0 if loss is None else loss, has_loss=loss is not None)
        if combined is None:
            return found
        if isinstance(found, torch.Tensor):
            return torch.full_like(found, combined, requires_grad=False)
        return combined

    def _combined(self, loss: float, *, has_loss: bool) -> float | None:
        """Return the combination of all workers' losses; None where no worker has one."""
        values = np.array([loss, has_loss, 1.0])
        total, having, took_part = self._peers.combine(self._name, self._op, values).tolist()
        if having == 0:
            return None
        if having != took_part:
            raise MismatchError(
                f"rank {current().client_index}: the closure returned {'a' if has_loss else 'no'} loss here, and on "
                "other ranks not so; return the loss from the closure on every rank, or on none"
            )
        return float(total)


def loss_name(prefix: str) -> str:
    """Return the key of the losses of an optimizer."""
    return f"{prefix}closure's loss"


def _loss_in(found: object) -> float | None:
    """Return a closure's result as a number; None where it is none."""
    if isinstance(found, torch.Tensor):
        return float(found.detach()) if found.numel() == 1 and not found.is_complex() else None
    return float(found) if isinstance(found, int | float) else None
