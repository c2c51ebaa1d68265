"""Collectives that autograd goes through: the gradient of each is a collective of gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class _Collective(torch.autograd.Function):
    """Function of autograd: `forward` on the tensors' values, `backward` on the results' gradients."""

    @staticmethod
    def forward(ctx: Any, run: Run, back: Run, *tensors: torch.Tensor) -> Tensors:  # noqa: ANN401
        """Return the results of `run`."""
        ctx.back = back
        return tuple(run([tensor.detach() for tensor in tensors]))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of the tensors."""
        return None, None, *ctx.back(gradients)


def differentiable(run: Run, back: Run, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return `run(tensors)`; gradients flow by `back` where autograd records and a tensor wants one.

    All ranks go backward through their calls in one order, as they came through them.
    """
    if torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors):
        return list(_Collective.apply(run, back, *tensors))
    return list(run(tensors))
