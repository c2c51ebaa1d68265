"""Answers that a policy samples, each until its own end, and what the policy gave each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from experiments.rollouts.task import END, LONGEST_ANSWER


@dataclass(frozen=True)
class Rollout:
    """A prompt and its answer."""

    tokens: Tensor
    """(prompt + answer,) int64."""
    log_probabilities: Tensor
    """(answer,) float32: of each token when it was sampled."""

    @property
    def num_answered(self) -> int:
        """Tokens of the answer."""
        return len(self.log_probabilities)

    @property
    def answer(self) -> list[int]:
        """Its tokens."""
        found: list[int] = self.tokens[len(self.tokens) - self.num_answered :].tolist()
        return found


@torch.no_grad()
def sampled(
    policy: nn.Module, prompts: Sequence[Sequence[int]], draws: torch.Generator | None,
    has_anyone: Callable[[bool], bool],
) -> list[Rollout]:
    """An answer to each prompt, by chance, or the likeliest one without `draws`.

    Args:
        policy: takes packed samples, gives logits of each token.
        has_anyone: told before each pass whether this worker has an answer to go on with, and says whether to make the
            pass; where passes are collective it has to be the same on all workers.
    """
    tokens = [list(prompt) for prompt in prompts]
    given: list[list[float]] = [[] for _ in prompts]
    going = list(range(len(prompts)))
    while has_anyone(bool(going)):
        passed = [torch.tensor(tokens[one]) for one in going] or [torch.zeros(1, dtype=torch.int64)]
        ends = torch.tensor([len(one) for one in passed]).cumsum(0) - 1
        logged = log_softmax(policy(passed)[ends], -1)
        drawn = logged.argmax(-1) if draws is None else torch.multinomial(logged.exp(), 1, generator=draws)[:, 0]
        for place, one in enumerate(going):
            tokens[one].append(int(drawn[place]))
            given[one].append(float(logged[place, drawn[place]]))
        going = [one for one in going if tokens[one][-1] != END and len(given[one]) < LONGEST_ANSWER]
    return [Rollout(torch.tensor(own), torch.tensor(logs)) for own, logs in zip(tokens, given, strict=True)]
