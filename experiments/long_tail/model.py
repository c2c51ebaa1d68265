"""GPT-2's decoder over packed samples: (T,) tokens of several, each of which attends to itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention


@dataclass(frozen=True, kw_only=True)
class LongTailShape:
    """GPT-2's form; by default much smaller."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 4096
    vocabulary: int = 512


class PackedAttention(nn.Module):
    """Causal attention within each sample: no mask, and no work, across samples."""

    def __init__(self, shape: LongTailShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inputs = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, bounds: Sequence[int]) -> Tensor:
        """(T, width); sample i is [bounds[i], bounds[i + 1])."""
        split = self.inputs(x).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)  # (3, heads, T, width/heads)
        mixed = [
            scaled_dot_product_attention(*split[:, None, :, begin:end].unbind(0), is_causal=True)[0]
            for begin, end in pairwise(bounds)
        ]
        joined: Tensor = self.output(torch.cat(mixed, 1).transpose(0, 1).reshape(len(x), -1))
        return joined


class PackedBlock(nn.Module):
    """Attention and a four times wider perceptron, each added to its normalised input."""

    def __init__(self, shape: LongTailShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = PackedAttention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor, bounds: Sequence[int]) -> Tensor:
        """See PackedAttention."""
        x = x + self.attention(self.attention_norm(x), bounds)
        found: Tensor = x + self.narrow(gelu(self.widen(self.perceptron_norm(x))))
        return found


class PackedGpt(nn.Module):
    """Logits of each packed token."""

    def __init__(self, shape: LongTailShape) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(PackedBlock(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, samples: Sequence[Tensor]) -> Tensor:
        """Samples are (length,) int64, at least one; (T, vocabulary) of all their tokens."""
        bounds = [0]
        for sample in samples:
            bounds.append(bounds[-1] + len(sample))
        places = torch.cat([torch.arange(end - begin) for begin, end in pairwise(bounds)])
        x = self.tokens(torch.cat(list(samples))) + self.positions(places)
        for block in self.blocks:
            x = block(x, bounds)
        logits: Tensor = self.head(self.norm(x))
        return logits


class LongTailGpt(PackedGpt):
    """The sum, not the mean, of all tokens' cross entropies."""

    def forward(self, samples: Sequence[Tensor]) -> Tensor:
        """Samples are (length + 1,) int64; none makes a pass of weight 0, of one token."""
        counted = samples or [torch.zeros(2, dtype=torch.int64)]
        logits = super().forward([sample[:-1] for sample in counted])
        loss = cross_entropy(logits, torch.cat([sample[1:] for sample in counted]), reduction="sum")
        return loss if samples else loss * 0.0
