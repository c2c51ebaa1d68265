"""What the programs on DistributedOptimizer share: small models, batches, and one process as the reference."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

import coarse.torch as ct

ROWS = 4
"""Rows of a batch on each worker."""
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Mlp(nn.Module):
    """Layers of several sizes, so that they fill several buckets."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, 33)
        self.middle = nn.Linear(33, 17)
        self.last = nn.Linear(17, 3)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 8) -> (n, 3)."""
        return self.last(torch.tanh(self.middle(torch.relu(self.first(rows)))))


def batch(step: int, rank: int | None = None) -> Tensor:
    """A worker's rows of a step, or those of all workers one after another."""
    if rank is None:
        return torch.cat([batch(step, r) for r in range(ct.size())])
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """A loss whose mean over the global batch is the mean of the workers'."""
    return (model(rows) ** 2).mean() * 3


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Momentum and decay make every missing or stale gradient show."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


class Twins(NamedTuple):
    """A model trained by all workers, and the same model trained by this process alone, side by side."""

    ours: nn.Module
    optimizer: ct.DistributedOptimizer
    alone: nn.Module
    reference: torch.optim.Optimizer

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Both forget their gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self.reference.zero_grad(set_to_none=set_to_none)

    def backward(self, step: int, factor: float = 1) -> None:
        """Ours on this worker's rows of a step; the other, its loss times a factor, on those of all."""
        loss_of(self.ours, batch(step, ct.rank())).backward()
        (loss_of(self.alone, batch(step)) * factor).backward()

    def step(self) -> None:
        """Both step, and are equal then."""
        self.optimizer.step()
        self.reference.step()
        require_equal(self.ours, self.alone)

    def train(self, step: int) -> None:
        """A whole training step of both."""
        self.zero_grad()
        self.backward(step)
        self.step()


def twins(
    make_model: Callable[[], nn.Module] = Mlp,
    make_optimizer: MakeOptimizer = sgd,
    **options: object,
) -> Twins:
    """Two equal models with their optimizers."""
    ours, alone = make_model(), make_model()
    optimizer = ct.DistributedOptimizer(make_optimizer(list(ours.parameters())), ours.named_parameters(), **options)
    return Twins(ours, optimizer, alone, make_optimizer(list(alone.parameters())))


def twins_in_both_places(
    make_model: Callable[[], nn.Module] = Mlp,
    make_optimizer: MakeOptimizer = sgd,
    **options: object,
) -> Iterator[Twins]:
    """Twins whose gradients live in device memory, then such whose do not; closed after each turn."""
    for in_device in both_places():
        pair = twins(make_model, make_optimizer, gradients_in_device_memory=in_device, **options)
        yield pair
        pair.optimizer.close()


def require_equal(ours: nn.Module, alone: nn.Module) -> None:
    """Both models hold the same values, up to the order of sums."""
    for (name, mine), other in zip(ours.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def both_places() -> Iterator[bool]:
    """Values of gradients_in_device_memory."""
    yield True
    yield False


def pushes() -> int:
    """How many buckets this worker has pushed."""
    return sum(int(counts["pushes"]) for name, counts in ct.statistics()["keys"].items() if "gradients/" in name)
