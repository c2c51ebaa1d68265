"""Arrays of many sizes and gradients of a model, summed by a strategy of one's own: the formula of one process."""

import copy

import numpy as np
import torch

import coarse.torch as ct

SIZES = (1, 7, 1_000, 70_001, 300_000)
NUM_STEPS = 6


def arrays_are_summed() -> None:
    """Whole numbers, which add up to the same bits in any order, thrice under each name."""
    for turn in range(3):
        for size in SIZES:
            mine = np.arange(size, dtype=np.int64) * (ct.rank() + 1) + turn
            total = ct.push_pull(torch.from_numpy(mine), f"array {size}", op=ct.Sum).numpy()
            wanted = sum(np.arange(size, dtype=np.int64) * (rank + 1) + turn for rank in range(ct.size()))
            np.testing.assert_array_equal(total, wanted)


def network() -> torch.nn.Module:
    """Several buckets' worth of parameters, the same on every rank."""
    torch.manual_seed(3)
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(5)])


def batch_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))


def gradients_are_averaged() -> None:
    """A step of all workers is the step of one process on all batches."""
    model = network()
    alone = copy.deepcopy(model)
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        model(batch_of(ct.rank(), step)).square().mean().backward()
        optimizer.step()
        single.zero_grad()
        (sum(alone(batch_of(rank, step)).square().mean() for rank in range(ct.size())) / ct.size()).backward()
        single.step()
    for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted)
    optimizer.close()


if __name__ == "__main__":
    ct.init()
    arrays_are_summed()
    gradients_are_averaged()
    ct.shutdown()
