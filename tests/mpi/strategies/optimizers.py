"""Optimizers with strategies of their own in one job: a class of the script may say who sums what and when."""

from dataclasses import dataclass

import pytest
import torch

import coarse.torch as ct
from coarse.errors import ConfigError, MismatchError
from coarse.session import current
from coarse.strategy import Allreduce, By, Coarse, Dense, Round
from experiments.strategies.diloco import DiLoCo
from tests.mpi.strategies.sums import NUM_STEPS, batch_of, network

SHOWN_AFTER = 8
"""Steps after which the first have been timed and the round decided."""


@dataclass(frozen=True, kw_only=True)
class EverySecond(Coarse):
    """The workers sum every second bucket, beside backward or after it."""

    hold_back: bool = False

    def decide(self, view):
        by = [By.WORKERS if number % 2 else By.DEVICES for number in range(len(view.nbytes))]
        return Round(by=tuple(by), hold_back=self.hold_back)


def trained(strategy) -> tuple[torch.nn.Module, object]:
    model = network()
    optimizer = ct.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), strategy=strategy
    )
    for step in range(SHOWN_AFTER + NUM_STEPS):
        optimizer.zero_grad()
        model(batch_of(ct.rank(), step)).square().mean().backward()
        optimizer.step()
    found = optimizer.dual_sync
    optimizer.close()
    return model, found


def all_come_to_the_same_model() -> None:
    wanted, _ = trained(None)
    for strategy in (Allreduce(), EverySecond(), EverySecond(hold_back=True)):
        model, found = trained(strategy)
        for mine, other in zip(model.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(mine, other)
        if isinstance(strategy, EverySecond):
            assert found.policy == "EverySecond"
            assert found.num_to_devices == (found.num_buckets + 1) // 2 > 1
    every_step, _ = trained(DiLoCo(every=1))
    for mine, other in zip(every_step.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, other)  # without momentum, steps of SGD and their mean are the mean's step


def what_devices_do_not_follow_is_refused() -> None:
    parameters = torch.nn.Linear(2, 2).parameters()
    with pytest.raises(ConfigError, match="Dense plans otherwise than Auto, the job's strategy"):
        ct.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), strategy=Dense())
    with pytest.raises(ConfigError, match=r"must be an instance of a coarse.strategy.Strategy, got 'coarse'"):
        ct.DistributedOptimizer(torch.optim.SGD(network().parameters(), lr=0.1), strategy="coarse")
    assert type(current().strategy).__name__ == "Auto"


@dataclass(frozen=True, kw_only=True)
class ByRank(Coarse):
    """What no strategy may do: each rank decides otherwise."""

    def decide(self, view):
        return Round(by=(By.WORKERS,) + ((By.DEVICES, By.WORKERS)[ct.rank() % 2],) * (len(view.nbytes) - 1))


def ranks_that_decide_otherwise_are_told() -> None:
    with pytest.raises(MismatchError, match=r"ByRank.decide gives workers other rounds, here Round"):
        trained(ByRank())


def ranks_with_two_strategies_are_refused() -> None:
    model = network()
    with pytest.raises(MismatchError, match="the option strategy"):
        ct.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), strategy=DiLoCo(every=2 + ct.rank())
        )


if __name__ == "__main__":
    ct.init()
    all_come_to_the_same_model()
    what_devices_do_not_follow_is_refused()
    ranks_with_two_strategies_are_refused()
    ranks_that_decide_otherwise_are_told()
    ct.shutdown()
