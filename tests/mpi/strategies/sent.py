"""Wires and late sums live: with them an optimizer's steps are those of one process that plays all workers.

Arguments: what the strategy does ("top-k", "float16", "bfloat16", "late"); "equal": ranks stay equal, no more is known.
"""

import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import ConfigError
from coarse.session import current

NUM_STEPS = 12
LR = 0.05
WHAT = sys.argv[1]


class Network(nn.Module):
    """The same on every rank; its branch is taken by some ranks alone, and its last layer by none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.branch, self.last = nn.Linear(32, 96), nn.Linear(96, 96), nn.Linear(96, 4)
        self.unused = nn.Linear(7, 7)

    def forward(self, rows: torch.Tensor, *, by_branch: bool) -> torch.Tensor:
        hidden = self.first(rows).tanh()
        return self.last(self.branch(hidden).tanh() if by_branch else hidden)


def loss_of(model: Network, rank: int, step: int) -> torch.Tensor:
    rows = torch.randn(8, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
    return model(rows, by_branch=rank < 2).square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=0.01)


def flat(names: tuple[str, ...], gradients: dict[str, torch.Tensor], named: dict[str, torch.Tensor]) -> torch.Tensor:
    """A bucket's values, each tensor aligned to 64 bytes."""
    parts: list[torch.Tensor] = []
    for place, name in enumerate(names):
        found = gradients[name] if name in gradients else torch.zeros_like(named[name])
        parts.append(found.reshape(-1))
        if place + 1 < len(names):
            parts.append(torch.zeros(-found.numel() % 16))
    return torch.cat(parts)


def apart(values: torch.Tensor, names: tuple[str, ...], named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A bucket's values, by name."""
    found, begin = {}, 0
    for name in names:
        count = named[name].numel()
        found[name] = values[begin : begin + count].view(named[name].shape)
        begin += count + -count % 16
    return found


def kept(values: torch.Tensor, share: float) -> torch.Tensor:
    """The largest by magnitude, and zeros."""
    count = max(1, round(share * len(values)))
    chosen = torch.zeros_like(values)
    places = values.abs().topk(count).indices
    chosen[places] = values[places]
    return chosen


Mean = Callable[[int, list[torch.Tensor]], torch.Tensor]
"""(bucket, each worker's values): what the step applies."""


def by_top_k() -> Mean:
    lost: dict[tuple[int, int], torch.Tensor] = {}
    share = current().strategy.share

    def mean(bucket: int, values: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros_like(values[0])
        for rank, mine in enumerate(values):
            wanted = mine + lost.get((bucket, rank), torch.zeros_like(mine))
            sent = kept(wanted, share)
            lost[bucket, rank] = wanted - sent
            total += sent
        return total / len(values)

    return mean


def by_cast(dtype: torch.dtype) -> Mean:
    return lambda _, values: (sum(mine.to(dtype).float() for mine in values) / len(values)).to(dtype).float()


def formula(buckets: list[tuple[str, ...]], mean: Mean, lag: int) -> Network:
    """This rank's model, as one process that plays all workers has it."""
    model, size = Network(), ct.size()
    optimizer, named = sgd(model), dict(model.named_parameters())
    before: list[dict[str, torch.Tensor]] = []
    for step in range(NUM_STEPS):
        each = []
        for rank in range(size):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            each.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        sums: dict[str, torch.Tensor] = {}
        for bucket, names in enumerate(buckets):
            values = mean(bucket, [flat(names, gradients, named) for gradients in each])
            sums |= apart(values, names, named)
        before.append({name: value for name, value in sums.items() if any(name in gradients for gradients in each)})
        for name, parameter in named.items():
            parameter.grad = before[step - lag].get(name) if step >= lag else None
        optimizer.step()
    return model


def train(optimizer: ct.DistributedOptimizer, model: Network) -> None:
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(model, ct.rank(), step).backward()
        if step == 3:
            optimizer.synchronize()
            with optimizer.skip_sync():
                optimizer.step()
        else:
            optimizer.step()


def steps_are_those_of_the_formula() -> None:
    model = Network()
    optimizer = ct.DistributedOptimizer(sgd(model), model.named_parameters())
    buckets = [bucket.plan.names for bucket in optimizer._exchange.buckets]
    assert len(buckets) > 2
    train(optimizer, model)
    halves = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    mean = by_top_k() if WHAT == "top-k" else by_cast(halves.get(WHAT, torch.float32))
    wanted = formula(buckets, mean, current().strategy.lag)
    for mine, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert not WHAT.startswith("late") or optimizer.last_absent
    optimizer.close()


def ranks_are_equal() -> None:
    model = Network()
    optimizer = ct.DistributedOptimizer(sgd(model), model.named_parameters())
    train(optimizer, model)
    for name, parameter in model.named_parameters():
        assert torch.equal(coarse.torch.broadcast(parameter.detach().clone(), 0, name), parameter)
    optimizer.close()


def a_compression_beside_a_wire_is_refused() -> None:
    model = Network()
    if WHAT == "late":
        return
    with pytest.raises(ConfigError, match="leave one of the two out"):
        ct.DistributedOptimizer(sgd(model), model.named_parameters(), compression=ct.Compression.fp16)


def main() -> None:
    coarse.init()
    warnings.simplefilter("ignore")
    if WHAT != "equal":
        steps_are_those_of_the_formula()
    ranks_are_equal()
    a_compression_beside_a_wire_is_refused()
    coarse.shutdown()


main()
