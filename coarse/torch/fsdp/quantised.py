"""Parameters as int8 for forward's gather: ZeRO++'s qwZ, and its cost in accuracy.

Blocks of _BLOCK elements share one float32 scale, the block's largest magnitude over 127. Every worker uses the values
that come back, its own shard too, so that all compute with the same parameters; the shards themselves stay exact.
"""

from __future__ import annotations

import torch

_BLOCK = 256
_LARGEST = 127


def quantised_nbytes(numel: int) -> int:
    """Return the bytes of `numel` elements as int8 with their scales."""
    return numel + 4 * -(-numel // _BLOCK)


def quantise(values: torch.Tensor) -> torch.Tensor:
    """Return (quantised_nbytes(n),) uint8 of (n,) floating values: the elements, then the scales."""
    blocks = _in_blocks(values)
    scales = blocks.abs().amax(1) / _LARGEST
    steps = torch.where(scales > 0, scales, 1.0)
    small = torch.round(blocks / steps[:, None]).to(torch.int8).reshape(-1)[: values.numel()]
    return torch.cat([small.view(torch.uint8), scales.view(torch.uint8)])


def dequantise(quantised: torch.Tensor, out: torch.Tensor) -> None:
    """Write the inverse of `quantise` into `out`, (n,) floating, rounded to its type."""
    numel = out.numel()
    small, scales = quantised[:numel].view(torch.int8), quantised[numel:].clone().view(torch.float32)
    out.copy_((_in_blocks(small) * scales[:, None]).reshape(-1)[:numel])


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    """Return (n,) as (ceil(n / _BLOCK), _BLOCK) float32, zeros at the end."""
    return torch.nn.functional.pad(values.float(), (0, -values.numel() % _BLOCK)).view(-1, _BLOCK)


class QuantisationError:
    """Distance of quantised parameters from exact ones, over all own ones that this worker has gathered."""

    def __init__(self) -> None:
        self.squared_error = 0.0
        self.squared_norm = 0.0

    def note(self, exact: torch.Tensor, quantised: torch.Tensor) -> None:
        """Compare one shard, (n,), with its `quantise`d values."""
        back = torch.empty_like(exact)
        dequantise(quantised, back)
        self.squared_error = float((back.double() - exact.double()).square().sum())
        self.squared_norm = float(exact.double().square().sum())
