"""A byte-level GPT: the usual pre-norm decoder, small enough to train on two cores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_BYTES = 256
"""The vocabulary: one token per byte value."""


@dataclass(frozen=True, kw_only=True)
class GptShape:
    """The sizes that define a model; 4 layers of width 256 have 3.2 million parameters."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"GptShape.{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"GptShape.width must be a multiple of heads={self.heads}, got {self.width}")


class Attention(nn.Module):
    """Causal self-attention over (rows, context, width)."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inputs = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        split = self.inputs(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (rows, heads, length, width/heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.output(mixed.transpose(1, 2).reshape(rows, length, width))
        return joined


class Block(nn.Module):
    """Attention and a four times wider perceptron, each added to its normalised input."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.narrow = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.narrow(functional.gelu(self.widen(self.perceptron_norm(x))))
        return x


class Gpt(nn.Module):
    """The mean cross entropy (nats per byte) of the next byte at every position."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_BYTES, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, NUM_BYTES, bias=False)
        self._initialise(shape.layers)

    def _initialise(self, layers: int) -> None:
        """Normal weights of 0.02, those that write to the residual stream scaled by 1/sqrt(2 layers) (GPT-2)."""
        for block in self.blocks:
            for writes_residual in (block.attention.output, block.narrow):
                writes_residual.deviation = 0.02 / math.sqrt(2 * layers)
        for module in self.modules():
            draw_weight(module)

    def forward(
        self,
        tokens: Tensor,  # (rows, context) int64
        targets: Tensor,  # (rows, context) int64, the tokens one byte later
    ) -> Tensor:  # () float32
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def draw_weight(module: nn.Module) -> None:
    """Fill what a module of the GPT owns, if it draws it at random."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=getattr(module, "deviation", 0.02))


def demo() -> tuple[Gpt, tuple[Tensor, Tensor]]:
    """Return the model that train_gpt.py trains by default, and one row of bytes with the next ones, for `--model` of
    `coarse predict` and `coarse sweep`."""
    shape = GptShape()
    row = torch.zeros((1, shape.context), dtype=torch.long)
    return Gpt(shape), (row, row)


def initialise(module: nn.Module) -> None:
    """Fill a module that comes from the meta device."""
    if isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    draw_weight(module)


def num_parameters(model: nn.Module) -> int:
    """How many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters())
