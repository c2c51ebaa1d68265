"""The model that claims of mode odc train, the same samples for one process and for many, and how they are dealt."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

import coarse
import coarse.torch as ct
from tests.support.claims import takes_all

NUM_STEPS = 20 if takes_all() else 8
NUM_SAMPLES = 6
Microbatch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(13, 29, dtype=dtype)
        self.down = nn.Linear(29, 13, dtype=dtype)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.down(torch.tanh(self.up(values)))


class Net(nn.Module):
    """Blocks, a head, and a parameter that nothing uses."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 13, dtype=dtype)
        self.blocks = nn.ModuleList([Block(dtype) for _ in range(3)])
        self.head = nn.Linear(13, 3, dtype=dtype)
        self.unused = nn.Parameter(torch.ones(3, dtype=dtype))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.first(values)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


class Skipping(nn.Module):
    """Leaves a layer out where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, skipped: int = -1) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            x = x if place == skipped else layer(x)
        return x


def sharded(dtype: torch.dtype = torch.float64, **options: Any) -> Net:
    return ct.fully_shard(Net(dtype), mode="odc", **options)


def samples(step: int, dtype: torch.dtype = torch.float64) -> list[Microbatch]:
    """Microbatches of 1 to 8 rows."""
    made = torch.Generator().manual_seed(step)
    sizes = torch.randint(1, 9, (NUM_SAMPLES,), generator=made).tolist()
    return [
        (torch.randn(n, 5, generator=made, dtype=dtype), torch.randn(n, 3, generator=made, dtype=dtype)) for n in sizes
    ]


def dealt(step: int) -> dict[int, list[int]]:
    """By worker its samples: unequally many, often none."""
    size = coarse.size()
    found: dict[int, list[int]] = {rank: [] for rank in range(size)}
    for sample in range(NUM_SAMPLES):
        found[min((sample * 7 + step * step) % (size + 2), size - 1)].append(sample)
    return found


def dealt_to_the_last(step: int) -> dict[int, list[int]]:
    """The last worker computes everything."""
    return {rank: list(range(NUM_SAMPLES)) if rank == coarse.size() - 1 else [] for rank in range(coarse.size())}


def backward(model: nn.Module, microbatch: Microbatch, scale: float = 1.0) -> int:
    """One microbatch; how many tokens it has."""
    inputs, targets = microbatch
    (mse_loss(model(inputs), targets, reduction="sum") * scale).backward()
    return len(inputs)


def minibatch(model: nn.Module, step: int, deal: Callable[[int], dict[int, list[int]]] = dealt) -> None:
    """This worker's microbatches, and the end."""
    every = samples(step, next(model.parameters()).dtype)
    tokens = sum(backward(model, every[sample]) for sample in deal(step)[coarse.rank()])
    ct.end_minibatch(model, num_tokens=tokens)


def train(model: nn.Module, num_steps: int, deal: Callable[[int], dict[int, list[int]]] = dealt) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(num_steps):
        minibatch(model, step, deal)
        optimizer.step()
        optimizer.zero_grad()


def trained_alone(num_steps: int, dtype: torch.dtype = torch.float64) -> Net:
    """One process, all samples."""
    model = Net(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(num_steps):
        every = samples(step, dtype)
        total = sum(len(inputs) for inputs, _ in every)
        for microbatch in every:
            backward(model, microbatch, 1 / total)
        optimizer.step()
        optimizer.zero_grad()
    return model


def whole(model: nn.Module) -> list[torch.Tensor]:
    """Parameters, gathered; workers call it together."""
    return [parameter.full_tensor().detach() for parameter in model.parameters()]  # type: ignore[attr-defined]


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    """The same of gradients."""
    found = [parameter.grad for parameter in model.parameters()]
    return [None if one is None else one.full_tensor() for one in found]  # type: ignore[attr-defined]


def digest(tensors: Sequence[torch.Tensor | None]) -> str:
    """Of their bits."""
    made = hashlib.sha256()
    for tensor in tensors:
        made.update(b"none" if tensor is None else tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()
