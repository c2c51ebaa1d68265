"""Checksums of shards: 64 bits that an edit changes, also one that torch's version counters don't see."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

_ROW = 2**14
_SEED = 0x5EED


def checksum(tensors: Sequence[torch.Tensor]) -> int:
    """Return 64 bits of the bytes of dense tensors of any type, in order.

    It is a multilinear hash modulo 2^64: 32-bit words times random 64-bit numbers of their places, and the rows' sums
    once more so. An edit, also one that swaps words, flips signs or keeps a sum, leaves it as it is by a chance of
    2^-33.
    """
    found = 0
    for tensor in tensors:
        found = (found * 31 + _of_one(tensor.detach()) + tensor.nbytes) % 2**64
    return found


def _of_one(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0 or tensor.is_meta:
        return 0
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    if flat.numel() % 4 or flat.data_ptr() % 4:
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 4))
    return int(_of_words(flat.view(torch.int32)))


def _of_words(words: torch.Tensor) -> torch.Tensor:
    """Return one int64 of (n,) int32, computed modulo 2^64 on the tensor's device."""
    if words.numel() <= _ROW:
        wide, weights = words.to(torch.int64), _weights(words.device)[: words.numel()]
        return torch.dot(wide, weights) if words.device.type == "cpu" else (wide * weights).sum()
    rows = torch.stack([_of_words(row) for row in words.split(_ROW)])
    return _of_words(rows.view(torch.int32))


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return random weights, (_ROW,) int64, drawn once, the same in every process."""
    generator = torch.Generator().manual_seed(_SEED)
    halves = torch.randint(-(2**31), 2**31, (2 * _ROW,), generator=generator, dtype=torch.int64, device="cpu")
    return halves.to(torch.int32).view(torch.int64).to(device)
