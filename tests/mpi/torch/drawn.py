"""Tensors that every rank can draw for all ranks, and comparisons, for claims about collectives."""

import torch

import coarse

RANK, SIZE = coarse.rank(), coarse.size()
TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64)  # fmt: skip
SHAPES = ((), (1,), (17,), (3, 5), (2, 0), (2, 3, 4))


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int, rank: int = RANK) -> torch.Tensor:
    """Whole numbers from 0 to 5, of which any few ranks' sums are exact in every type."""
    made = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 6, shape, generator=made).to(dtype)


def of_all(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """(p, *shape) float64: what `drawn` gives each rank."""
    return torch.stack([drawn(shape, dtype, seed, rank).double() for rank in range(SIZE)])


def require_equal(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same values and shape; `wanted` in float64."""
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert torch.equal(found.double(), wanted.double()), (found, wanted)
