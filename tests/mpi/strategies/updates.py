"""Local SGD and DiLoCo live: the formula of one process, and its continuation from a state dict."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import ConfigError, StallError, UnsupportedError
from coarse.session import current
from coarse.torch.ddp.updates import UpdateOptimizer

NUM_STEPS = 12


def network() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    rows = torch.randn(8, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
    return model(rows).square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def distributed(model: nn.Module) -> UpdateOptimizer:
    optimizer = ct.DistributedOptimizer(sgd(model), model.named_parameters())
    assert isinstance(optimizer, UpdateOptimizer)
    return optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, ct.rank(), step).backward()
        optimizer.step()


def by_formula(num_steps: int) -> nn.Module:
    """This rank's model, as one process that plays all workers has it."""
    strategy = current().strategy
    models = [network() for _ in range(ct.size())]
    optimizers = [sgd(model) for model in models]
    anchors = [parameter.detach().clone() for parameter in models[0].parameters()]
    velocities = [torch.zeros_like(anchor) for anchor in anchors]
    for step in range(num_steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        if step % strategy.every != strategy.every - 1:
            continue
        everybody = zip(*(model.parameters() for model in models), strict=True)
        for anchor, velocity, parameters in zip(anchors, velocities, everybody, strict=True):
            mean = sum(parameter.detach() - anchor for parameter in parameters) / ct.size()
            velocity.mul_(strategy.momentum).add_(mean)
            anchor += strategy.lr * (mean + strategy.momentum * velocity)
            for parameter in parameters:
                parameter.data.copy_(anchor)
    return models[ct.rank()]


def require_close(model: nn.Module, wanted: nn.Module) -> None:
    for mine, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def require_equal(model: nn.Module, wanted: nn.Module) -> None:
    for mine, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(mine, other)


def steps_alone_and_exchanges_are_the_formula() -> nn.Module:
    model = network()
    optimizer = distributed(model)
    train(model, optimizer, range(NUM_STEPS))
    require_close(model, by_formula(NUM_STEPS))
    assert optimizer.num_steps == NUM_STEPS
    optimizer.close()
    return model


def a_run_goes_on_to_the_bit(whole: nn.Module, folder: Path) -> None:
    """In the middle of a period, from a state dict of each worker's own."""
    half = NUM_STEPS // 2 + 1
    model = network()
    optimizer = distributed(model)
    train(model, optimizer, range(half))
    kept = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    optimizer.close()
    again = network()
    again.load_state_dict(kept[1])
    continued = distributed(again)
    continued.load_state_dict(kept[0])
    assert continued.num_steps == half
    train(again, continued, range(half, NUM_STEPS))
    require_equal(again, whole)
    with pytest.raises(UnsupportedError, match="each worker steps alone; save"):
        ct.snapshot(folder, model=again, optimizer=continued, step=NUM_STEPS)
    for entry, parameter in zip(continued.state.values(), continued.state, strict=True):
        assert entry["coarse_anchor"].shape == parameter.shape
        assert ("coarse_outer" in entry) == bool(current().strategy.momentum)
    continued.close()
    plain = sgd(again)
    plain.load_state_dict(continued.state_dict())  # a plain optimizer of the class takes it
    plain.step()


def what_is_written_between_steps_is_exchanged_too() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    every = current().strategy.every
    for step in range(every):
        with torch.no_grad():
            if step == every // 2:
                model.weight += float(ct.rank() + 1)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    mean = (ct.size() + 1) / 2
    update, _ = current().strategy.outer(torch.full((1,), mean).numpy(), None)
    torch.testing.assert_close(model.weight.detach(), torch.full((1, 2), float(update[0])))
    optimizer.close()


def what_means_nothing_is_refused() -> None:
    model = network()
    for options in ({"op": ct.Sum}, {"compression": ct.Compression.fp16}, {"parameters_in_device_memory": True}):
        with pytest.raises(ConfigError, match=f"exchanges updates and not gradients, for which {next(iter(options))}"):
            ct.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


def a_worker_that_is_late_stalls_the_others_who_go_on() -> None:
    """A step after a StallError goes on with the exchange, and makes no other step."""
    model = network()
    optimizer = distributed(model)
    link = current().require_client().link
    before, every = link.stall_timeout_s, current().strategy.every
    link.stall_timeout_s = 0.2 if ct.rank() else before
    stalled = 0
    for step in range(every):
        optimizer.zero_grad()
        loss_of(model, ct.rank(), step).backward()
        if not ct.rank() and step == every - 1:
            link.wait_until(lambda: False, 1.0)
        while True:
            try:
                optimizer.step()
                break
            except StallError:
                stalled += 1
    link.stall_timeout_s = before
    assert stalled or not ct.rank()
    require_close(model, by_formula(every))
    optimizer.close()


if __name__ == "__main__":
    ct.init()
    trained = steps_alone_and_exchanges_are_the_formula()
    a_run_goes_on_to_the_bit(trained, Path(sys.argv[1]))
    what_is_written_between_steps_is_exchanged_too()
    what_means_nothing_is_refused()
    a_worker_that_is_late_stalls_the_others_who_go_on()
    coarse.barrier()
    ct.shutdown()
