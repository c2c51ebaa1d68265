"""GRPO's loss: clipped ratios times the advantage within a group, summed over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

CLIP = 0.2
EXPLORATION = 0.06
"""What a nat of a token's entropy is worth, so that answers of one prompt stay different."""


@dataclass(frozen=True)
class Judged:
    """A rollout that was rewarded; `old` is (answer,)."""

    tokens: Tensor
    old: Tensor
    advantage: float


def advantages(rewards: Sequence[float], group: int) -> np.ndarray:
    """(n,) of rewards in groups that follow one another: by how many deviations each is above its group's mean."""
    by_group = np.asarray(rewards, np.float64).reshape(-1, group)
    centred = by_group - by_group.mean(1, keepdims=True)
    found: np.ndarray = (centred / (by_group.std(1, keepdims=True) + 1e-6)).reshape(-1)
    return found


def policy_loss(policy: nn.Module, judged: Sequence[Judged]) -> Tensor:
    """The sum over all answers' tokens; of none a pass of weight 0."""
    if not judged:
        nothing: Tensor = policy([torch.zeros(1, dtype=torch.int64)]).sum() * 0.0
        return nothing
    logged = log_softmax(policy([one.tokens[:-1] for one in judged]), -1)
    new = logged.gather(1, torch.cat([one.tokens[1:] for one in judged])[:, None])[:, 0]
    sizes = [len(one.tokens) - 1 for one in judged]
    answers = torch.cat([part[-len(one.old) :] for part, one in zip(new.split(sizes), judged, strict=True)])
    old = torch.cat([one.old for one in judged])
    advantage = torch.cat([torch.full_like(one.old, one.advantage) for one in judged])
    ratio = (answers - old).exp()
    entropy = -(logged.exp() * logged).sum(-1)
    explored = torch.cat([part[-len(one.old) :] for part, one in zip(entropy.split(sizes), judged, strict=True)])
    gained = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return -(gained + EXPLORATION * explored).sum()
