"""The demo's GPT as `step.py` trains it: one replica for each way to synchronise, equal in everything else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from benchmarks.comparison import Measurement
from benchmarks.contenders.gloo import open_gloo
from benchmarks.measuring import Track, Turn
from benchmarks.step_rows import MEMCPY, UNSYNCHRONISED
from benchmarks.workloads import Effort
from experiments.gpt.model import NUM_BYTES, Gpt, GptShape

_SEED = 1
_STEPS_PER_TURN = 2
"""Timed ones; a step before them brings the replica back into the caches and isn't timed."""


class Trainee:
    """A model and its optimizer; a step is zero_grad, forward, backward and update."""

    def __init__(self, name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.name = name
        self.model = model
        self._optimizer = optimizer

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        """One training step on a batch of (rows, context) int64."""
        self._optimizer.zero_grad()
        self.model(tokens, targets).backward()
        self._optimizer.step()


def open_trainees(names: Sequence[str], workers: MPI.Intracomm) -> list[Trainee]:
    """A trainee for each of "none", "ddp" and "coarse", all from the same parameters."""
    torch.set_num_threads(1)
    return [_open_trainee(name, workers) for name in names]


def _open_trainee(name: str, workers: MPI.Intracomm) -> Trainee:
    torch.manual_seed(_SEED)
    model = Gpt(GptShape())
    if name == "ddp":
        open_gloo(workers)
        replica = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return Trainee("DDP", replica, _adamw(model))
    if name == "coarse":
        import coarse.torch as ct

        ct.broadcast_parameters(model.named_parameters(), root_rank=0)
        return Trainee("coarse", model, ct.DistributedOptimizer(_adamw(model), model.named_parameters()))
    return Trainee(UNSYNCHRONISED, model, _adamw(model))


def race_steps(track: Track, trainees: Sequence[Trainee], num_rows: int, num_rounds: int) -> list[Measurement]:
    """Steps of all trainees on this worker's batch of `num_rows`, and a memcpy of the gradients' bytes."""
    generator = torch.Generator().manual_seed(_SEED + track.worker)
    text = torch.randint(NUM_BYTES, (num_rows, GptShape().context + 1), generator=generator)
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    steps = [partial(trainee.step, *batch) for trainee in trainees]
    turns = [Turn(trainee.name, step, step) for trainee, step in zip(trainees, steps, strict=True)]
    turns.append(_memcpy_turn(track, trainees[0].gradient_bytes))
    return track.measure(turns, Effort(num_rounds, _STEPS_PER_TURN))


def require_equal_parameters(trainee: Trainee, workers: MPI.Intracomm) -> None:
    """Raise ValueError if a synchronised trainee's workers ended with different parameters."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in trainee.model.parameters()]).numpy()
    smallest, largest = np.empty_like(flat), np.empty_like(flat)
    workers.Allreduce(flat, smallest, MPI.MIN)
    workers.Allreduce(flat, largest, MPI.MAX)
    if trainee.name != UNSYNCHRONISED and not np.array_equal(smallest, largest):
        raise ValueError(
            f"{trainee.name}: {np.count_nonzero(smallest != largest)} of {flat.size} parameters differ between workers "
            "after training, so their gradients were not synchronised"
        )


def _memcpy_turn(track: Track, nbytes: int) -> Turn:
    """Worker 0 copies while the others sleep at the next barrier."""
    source, target = np.ones(nbytes, dtype=np.uint8), np.ones(nbytes, dtype=np.uint8)
    if track.worker == 0:
        copy = partial(np.copyto, target, source)
        return Turn(MEMCPY, copy, copy)
    return Turn(MEMCPY, _do_nothing, _do_nothing)


def _do_nothing() -> None:
    """What the other workers do while worker 0 copies."""


def _adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)
