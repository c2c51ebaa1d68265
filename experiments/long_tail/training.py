"""One way of training: a mode and a balance; what a minibatch took, and how much of it this worker computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import coarse
import coarse.torch as ct
from coarse.parallel.packing.costs import Cost
from coarse.parallel.packing.measured_cost import Step
from coarse.parallel.packing.sampler import MinibatchSampler, Sampling
from coarse.protocol.clock import WallClock
from experiments.long_tail.lengths import sample_tokens
from experiments.long_tail.model import LongTailGpt, LongTailShape

MODES = ("odc", "fsdp", "fcdp")
LEARNING_RATE = 3e-4


@dataclass(frozen=True)
class MinibatchTime:
    """Of one worker."""

    wall_s: float
    computed_s: float
    """Of the processor, by the thread that computes."""
    loss: float
    """A sum over this worker's tokens."""
    num_samples: int
    """Of all workers."""


def tensors_of(numbers: Sequence[int], lengths: Sequence[int], vocabulary: int) -> list[Tensor]:
    """The samples of these numbers."""
    return [torch.from_numpy(sample_tokens(number, lengths[number], vocabulary)) for number in numbers]


def step_of(shape: LongTailShape) -> Step:
    """Forward and backward over samples of lengths that are given."""
    model = LongTailGpt(shape)

    def step(lengths: Sequence[int]) -> None:
        model(tensors_of(range(len(lengths)), lengths, shape.vocabulary)).backward()

    return step


def cost_step() -> Step:
    """Of finetune_long_tail.py's model: coarse profile --costs experiments.long_tail.training:cost_step."""
    torch.set_num_threads(1)
    return step_of(LongTailShape())


def agreed(cost: Cost) -> Cost:
    """All workers plan by the mean of their costs, which they measure at the same time."""
    mean = coarse.push_pull(np.array([cost.quadratic, cost.linear]), name="cost", op=coarse.Average)
    return Cost(quadratic=float(mean[0]), linear=float(mean[1]), scale=cost.scale)


class LongTailTraining:
    """A model in one mode, fed by one balance."""

    def __init__(
        self, mode: str, sampling: Sampling, shape: LongTailShape, lengths: Sequence[int], rank: int,
        shard: Callable[[nn.Module, str], nn.Module] = ct.fully_shard,
    ) -> None:  # fmt: skip
        self.name = f"{mode} + {sampling.balance}"
        self._clock = WallClock()
        self._is_odc = mode == "odc"
        self._lengths, self._shape, self._num_ranks = lengths, shape, sampling.num_ranks
        self.model = shard(LongTailGpt(shape), mode)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._sampler = MinibatchSampler(lengths, sampling, rank)
        self._minibatches = iter(self._sampler)
        self._minibatch = sampling.minibatch

    def step(self) -> MinibatchTime | None:
        """A minibatch; None at the epoch's end."""
        drawn = next(self._minibatches, None)
        if drawn is None:
            return None
        began_s, began_cpu_s, loss_sum = self._clock.now_s(), time.thread_time(), 0.0
        scale = 1.0 if self._is_odc else self._num_ranks / drawn.total_tokens
        for numbers in drawn.microbatches:
            loss = self.model(tensors_of(numbers, self._lengths, self._shape.vocabulary))
            (loss * scale).backward()
            loss_sum += float(loss.detach())
        if self._is_odc:
            ct.end_minibatch(self.model, num_tokens=drawn.num_tokens)
        self._optimizer.step()
        self._optimizer.zero_grad()
        wall_s, computed_s = self._clock.now_s() - began_s, time.thread_time() - began_cpu_s
        return MinibatchTime(wall_s, computed_s, loss_sum, self._minibatch)
