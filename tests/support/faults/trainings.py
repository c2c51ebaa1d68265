"""Trainings for jobs in one process: a small one for many seeds, and one with torch's optimizer, data and dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.support.faults.job import Plan, Worker

NUM_STEPS = 6


class Numbers(torch.nn.Module):
    """A few parameters, which a step mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(40, dtype=torch.float32))


def _small_parts(worker: int) -> dict[str, object]:
    return {"model": Numbers(), "generator": np.random.default_rng(worker)}


def _small_script(worker: Worker) -> Iterator[None]:
    model: Any = worker.parts["model"]
    generator: Any = worker.parts["generator"]
    for step in worker.passes.steps(NUM_STEPS):
        with torch.no_grad():
            model.weight.mul_(0.9).add_(step + 1)
        worker.values["drawn"] = worker.values.get("drawn", 0) + int(generator.integers(1000))
        yield
        yield from worker.commit()


def small(num_workers: int) -> Plan:
    """A training whose steps cost next to nothing."""
    return Plan(num_workers=num_workers, make=_small_parts, script=_small_script)


def on_nodes() -> Plan:
    """The same of four workers on two nodes, of which one may be lost, with copies on disk."""
    return Plan(num_workers=4, make=_small_parts, script=_small_script, nodes=(0, 0, 1, 1))


class Noisy(Dataset):
    """Samples that draw from torch's generator as they are read."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.rand(4)


def _torch_parts(worker: int) -> dict[str, object]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    model = torch.nn.Sequential(*layers)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(worker)
    return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


def _torch_script(worker: Worker) -> Iterator[None]:
    model: Any = worker.parts["model"]
    optimizer: Any = worker.parts["optimizer"]
    scheduler: Any = worker.parts["scheduler"]
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    for _ in worker.passes.epochs(3):
        for batch in worker.passes.batches(loader):
            model(batch.to(torch.bfloat16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.values["drawn"] = worker.values.get("drawn", 0.0) + float(torch.rand(()))
            yield
            yield from worker.commit()
        scheduler.step()
        worker.values["validated"] = float(torch.rand(()))  # draws between epochs


def with_torch() -> Plan:
    """One worker alone (its parameters are all workers'): torch's AdamW, a DataLoader that shuffles, dropout, a
    scheduler."""
    return Plan(num_workers=1, make=_torch_parts, script=_torch_script, has_own_generators=True)
