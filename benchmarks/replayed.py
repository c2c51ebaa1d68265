"""A model whose compute is replayed (emulated: it sleeps), and whose gradients were made before."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


class _Replayed(torch.autograd.Function):
    """Takes as long as it is told, and gives a gradient that was made before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, block: ReplayedBlock) -> Tensor:  # noqa: ANN401
        ctx.block, ctx.backward_s = block, block.backward_s
        time.sleep(block.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        time.sleep(ctx.backward_s)
        return gradients[0], ctx.block.gradient, None


class ReplayedBlock(nn.Module):
    """A block of one parameter."""

    def __init__(self, num_elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_elements // 64, 64))
        self.forward_s = self.backward_s = 0.0
        self.gradient = torch.full((num_elements // 64, 64), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """The same."""
        return _Replayed.apply(x, self.weight, self)  # type: ignore[no-any-return, no-untyped-call]


class Replayed(nn.Module):
    """Blocks one after the other."""

    def __init__(self, num_blocks: int, num_elements: int) -> None:
        super().__init__()
        self._blocks = [ReplayedBlock(num_elements) for _ in range(num_blocks)]
        self.blocks = nn.ModuleList(self._blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Through all blocks."""
        for block in self.blocks:
            x = block(x)
        return x

    def take(self, seconds: float, forward_share: float) -> None:
        """Have the next passes last so long, forward and backward together."""
        for block in self._blocks:
            block.forward_s = forward_share * seconds / len(self._blocks)
            block.backward_s = (1 - forward_share) * seconds / len(self._blocks)

    def scale(self, norm: float) -> None:
        """Have the next gradients a norm, that of a worker and of the mean."""
        count = sum(block.gradient.numel() for block in self._blocks)
        for block in self._blocks:
            block.gradient.fill_(norm / count**0.5)
