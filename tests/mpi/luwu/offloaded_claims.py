"""Claims of optimizers whose states are on each worker's own disks: shards, and workers that resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn

import coarse
import coarse.torch as ct
from tests.mpi.luwu.trained import ADAMW, FOLDER
from tests.support.claims import Claim, raises


def two_alike() -> list[nn.Module]:
    """Return two sharded models of equal values, whose shards have several sizes."""
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 70))
        models.append(ct.fully_shard(model, units=[nn.Linear]))
    return models


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Train on rows that each worker and step draws."""
    rows = torch.randn(3, 7, generator=torch.Generator().manual_seed(10 * step + coarse.rank()))
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def an_offloaded_optimizer_steps_shards() -> None:
    models = ours, plain = two_alike()
    storage = {"storage": [FOLDER / "offloaded"], "memory": 8 << 20, "chunk_elements": 256}
    optimizers = (
        ct.OffloadedOptimizer(ours.parameters(), torch.optim.AdamW, **storage, **ADAMW),
        torch.optim.AdamW(plain.parameters(), **ADAMW),
    )
    for step in range(1, 6):
        for model, optimizer in zip(models, optimizers, strict=True):
            take_step(model, optimizer, step)
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other.full_tensor(), rtol=1e-4, atol=1e-5)
    mine, theirs = (optimizer.state_dict()["state"] for optimizer in optimizers)
    for number, state in mine.items():  # a worker has states of what it has a part of
        for name, values in state.items():
            torch.testing.assert_close(values, theirs[number][name], rtol=1e-4, atol=1e-5)
            assert type(values) is type(theirs[number][name])
    optimizers[0].close()


def what_is_written_to_shards_counts_in_the_next_offloaded_step() -> None:
    models = two_alike()
    optimizers = (
        ct.OffloadedOptimizer(models[0].parameters(), torch.optim.SGD, storage=None, memory=8 << 20, lr=0.1),
        torch.optim.SGD(models[1].parameters(), lr=0.1),
    )
    first = {name: value.clone() for name, value in models[0].state_dict().items()}
    for step in range(1, 6):
        for model, optimizer in zip(models, optimizers, strict=True):
            take_step(model, optimizer, step)
            if step == 2:
                model.load_state_dict(first)
            for parameter in model.parameters():
                parameter.data.clamp_(-0.2, 0.2)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one.full_tensor(), other.full_tensor())
    optimizers[0].close()


def workers_that_a_crash_left_before_their_first_step_begin_anew() -> None:
    storage = FOLDER / "first"
    options = {"storage": [storage], "memory": 8 << 20, "chunk_elements": 256, "resume": "auto", **ADAMW}
    ct.OffloadedOptimizer([nn.Parameter(torch.ones(300))], torch.optim.AdamW, **options).close()
    if coarse.rank() == coarse.size() - 1:
        shutil.rmtree(storage / f"worker-{coarse.rank()}")
    ct.barrier()
    weight = nn.Parameter(torch.full((300,), 2.0))
    optimizer = ct.OffloadedOptimizer([weight], torch.optim.AdamW, **options)
    assert optimizer.steps == 0
    assert (weight == 2.0).all()
    weight.grad = torch.ones(300)
    optimizer.step()
    optimizer.close()
    optimizer = ct.OffloadedOptimizer([weight], torch.optim.AdamW, **options)
    assert optimizer.steps == 1
    optimizer.close()


def workers_that_a_crash_left_a_step_apart_go_on_from_the_step_that_all_have() -> None:
    storage, earlier = FOLDER / "apart", FOLDER / f"earlier-{coarse.rank()}"

    def begun(storage: Path | None = storage, *, resume: bool) -> tuple[nn.Module, ct.OffloadedOptimizer]:
        torch.manual_seed(3)
        model = ct.fully_shard(nn.Sequential(nn.Linear(7, 13), nn.Linear(13, 70)), units=[nn.Linear])
        options = {"storage": storage and [storage], "memory": 8 << 20, "chunk_elements": 256, "resume": resume}
        return model, ct.OffloadedOptimizer(model.parameters(), torch.optim.AdamW, **options, **ADAMW)

    def go_on(model: nn.Module, optimizer: ct.OffloadedOptimizer, last: int) -> None:
        while optimizer.steps < last:
            model(torch.full((2, 7), 0.1 * optimizer.steps + coarse.rank())).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = begun(resume=False)
    go_on(model, optimizer, 4)
    own = storage / f"worker-{coarse.rank()}"
    shutil.copytree(own, earlier)
    go_on(model, optimizer, 5)
    optimizer.close()
    if coarse.rank() == coarse.size() - 1:  # as if it had been killed before its commit
        shutil.rmtree(own)
        shutil.copytree(earlier, own)
    ct.barrier()
    model, optimizer = begun(resume=True)
    assert optimizer.steps == 4
    go_on(model, optimizer, 6)
    undisturbed, other = begun(None, resume=False)
    go_on(undisturbed, other, 6)
    for one, two in zip(model.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(one.full_tensor(), two.full_tensor())
    optimizer.close()
    other.close()
    ct.barrier()
    if coarse.rank() == 0:
        shutil.rmtree(own)
    ct.barrier()
    with raises(coarse.StorageError, "rank 0: ", "worker-0 holds no committed step", "leave resume out"):
        begun(resume=True)  # on all workers


CLAIMS: tuple[Claim, ...] = (
    an_offloaded_optimizer_steps_shards,
    what_is_written_to_shards_counts_in_the_next_offloaded_step,
    workers_that_a_crash_left_before_their_first_step_begin_anew,
    workers_that_a_crash_left_a_step_apart_go_on_from_the_step_that_all_have,
)
