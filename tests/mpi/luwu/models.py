"""Small models, and a loss for each worker, step and pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS, WORDS = 24, 3, 40


class Block(nn.Module):
    """A residual perceptron; now and then it leaves a parameter out."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) -> the same shape."""
        return x + self.narrow(torch.tanh(self.widen(self.norm(x))))


class Net(nn.Module):
    """Embedding, blocks, a norm and a head."""

    def __init__(self, num_blocks: int = 3, *, is_tied: bool = False, repeats: int = 1, checkpoints: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.repeats = repeats
        self.checkpoints = checkpoints
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """(rows,) int64 -> (rows, WORDS)."""
        x = self.words(words) * self.scale
        for _ in range(self.repeats):
            for block in self.blocks:
                if self.checkpoints and torch.is_grad_enabled():
                    x = checkpoint(block, x, use_reentrant=self.checkpoints == "reentrant")
                else:
                    x = block(x)
        return self.head(self.norm(x))


def words_of(worker: int, step: int, number: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a worker's micro-batch."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * worker + number)
    drawn = torch.randint(0, WORDS, (2, rows), generator=generator)
    return drawn[0], drawn[1]


def loss_of(model: nn.Module, worker: int, step: int, number: int) -> Tensor:
    """The cross entropy of a worker's micro-batch."""
    words, targets = words_of(worker, step, number)
    return nn.functional.cross_entropy(model(words).float(), targets)
