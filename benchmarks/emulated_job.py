"""Training that benchmarks/emulated_training.py runs: emulated_job.py MODEL WAY STEPS

WAY is "optimizer" (gradients by a DistributedOptimizer) or a mode of fully_shard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import torch
from torch import Tensor, nn
from torch.nn import functional

import coarse.torch as ct
from experiments.gpt.model import Block, Gpt, GptShape

BATCH = 4


class ConvBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width)"""
        return x + self.second(functional.relu(self.first(x)))


class Cnn(nn.Module):
    """Blocks of convolutions on small images; 2.4 million parameters."""

    def __init__(self, channels: int = 128, blocks: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(ConvBlock(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(rows, 3, 16, 16) -> (rows, classes)"""
        x = self.stem(images)
        for block in self.blocks:
            x = functional.relu(block(x))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def gpt() -> tuple[nn.Module, type[nn.Module], Callable[[nn.Module], Tensor]]:
    """A GPT of 4 layers, its block, and its loss on bytes of this worker's."""
    shape = GptShape()

    def loss(model: nn.Module) -> Tensor:
        rows = torch.randint(256, (BATCH, shape.context + 1))
        return model(rows[:, :-1], rows[:, 1:])  # type: ignore[no-any-return]

    return Gpt(shape), Block, loss


def cnn() -> tuple[nn.Module, type[nn.Module], Callable[[nn.Module], Tensor]]:
    """A CNN, its block, and its loss on images of this worker's."""

    def loss(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(torch.randn(BATCH, 3, 16, 16)), torch.randint(10, (BATCH,)))

    return Cnn(), ConvBlock, loss


def main(model_name: str, way: str, steps: int) -> None:
    """Train, and say the last loss."""
    torch.set_num_threads(1)
    ct.init()
    torch.manual_seed(0)
    model, block, loss_of = {"gpt": gpt, "cnn": cnn}[model_name]()
    optimizer: torch.optim.Optimizer
    if way == "optimizer":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer = ct.DistributedOptimizer(optimizer, model.named_parameters())
    else:
        ct.fully_shard(model, mode=way, units=[block])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        torch.manual_seed(1000 * step + ct.rank())
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    if ct.rank() == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    ct.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
