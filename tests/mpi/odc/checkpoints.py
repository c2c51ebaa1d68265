"""Checkpoints of torch.distributed.checkpoint in mode odc: saved, and loaded before any worker's forward."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, AdamW, Optimizer

import coarse
import coarse.torch as ct
from tests.mpi.odc.training import Net, digest, minibatch, whole

Maker = Callable[[nn.Module], Optimizer]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _adam(model: nn.Module) -> Optimizer:
    return AdamW(_trained(model), lr=1e-2)


def _sgd(model: nn.Module) -> Optimizer:
    return SGD(_trained(model), lr=0.1)  # without states, so that each get_state_dict makes a step


def _model(cache: bool | int | None) -> Net:
    """Return one whose states are the same before and after its first step: each parameter that trains has one."""
    model = Net()
    model.unused.requires_grad_(False)
    return ct.fully_shard(model, mode="odc", cache=cache)


def _step(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    minibatch(model, step)
    optimizer.step()
    optimizer.zero_grad()


def _another(cache: bool | int | None, make: Maker) -> tuple[Net, Optimizer]:
    """Return a model of other values, and its optimizer."""
    model = _model(cache)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model, make(model)


def go_on_from_it(place: Path, cache: bool | int | None) -> None:
    """Save after a step and load into others, with and without states, trained and not: the next step's bits are
    those of the model that was saved."""
    for make in (_adam, _sgd):
        model = _model(cache)
        optimizer = make(model)
        _step(model, optimizer, 0)
        state, states = get_state_dict(model, optimizer)
        dcp.save({"model": state, "optimizer": states}, checkpoint_id=place / make.__name__)
        _step(model, optimizer, 1)
        other, other_optimizer = _another(cache, make)
        state, states = get_state_dict(other, other_optimizer)
        dcp.load({"model": state, "optimizer": states}, checkpoint_id=place / make.__name__)
        set_state_dict(other, other_optimizer, model_state_dict=state, optim_state_dict=states)
        _step(other, other_optimizer, 1)
        assert digest(whole(other)) == digest(whole(model))


def load_a_plain_state(place: Path, cache: bool | int | None) -> None:
    """Load one process's checkpoint of a whole model, by `model.state_dict()`."""
    alone = Net()
    for parameter in alone.parameters():
        parameter.data.mul_(2)
    if coarse.rank() == 0:
        dcp.save({"model": alone.state_dict()}, checkpoint_id=place / "plain", no_dist=True)
    coarse.barrier()
    model, optimizer = _another(cache, _adam)
    state = model.state_dict()
    dcp.load({"model": state}, checkpoint_id=place / "plain")
    model.load_state_dict(state)
    values = torch.ones(2, 5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(values), alone(values), rtol=1e-12, atol=1e-12)
    _step(model, optimizer, 0)
