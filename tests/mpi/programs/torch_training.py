"""What the programs on DistributedOptimizer share: small models, batches, and one process as the reference."""

from collections.abc import Callable, Iterator

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


def twins(
    make_model: Callable[[], nn.Module] = Mlp,
    make_optimizer: MakeOptimizer = sgd,
    **options: object,
) -> tuple[nn.Module, ct.DistributedOptimizer, nn.Module, torch.optim.Optimizer]:
    """A model trained by all workers, and the same model trained by this process alone."""
    ours, alone = make_model(), make_model()
    optimizer = ct.DistributedOptimizer(make_optimizer(list(ours.parameters())), ours.named_parameters(), **options)
    return ours, optimizer, alone, make_optimizer(list(alone.parameters()))


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
