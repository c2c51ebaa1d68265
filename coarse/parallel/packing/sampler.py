# Pure: no MPI, threads, clock or environment.
"""Sampler of one rank's minibatches; all ranks draw the same and so never have to ask one another."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from coarse.errors import ConfigError
from coarse.parallel.packing.balance import lb_micro, lb_mini, local_sort
from coarse.parallel.packing.costs import TOKENS, Cost
from coarse.parallel.packing.plans import Microbatch, MinibatchPlan

BALANCES = ("local_sort", "lb_micro", "lb_mini")


class RankMinibatch(NamedTuple):
    """Part of a minibatch that one rank computes."""

    microbatches: tuple[Microbatch, ...]
    """Numbers of samples in the data; an empty one is a pass of weight 0."""
    num_tokens: int
    """Number of tokens of this rank."""
    total_tokens: int
    """Number of tokens of all ranks, by which the sum of all tokens' losses is divided."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of minibatches' sampling; the same on all ranks."""

    minibatch: int
    """Samples of all ranks together."""
    num_ranks: int
    balance: str = "lb_mini"
    """Name of a division, one of BALANCES."""
    cap: int | None = None
    """Tokens of a microbatch; local_sort needs none."""
    cost: Cost = TOKENS
    equal_samples: bool = False
    """True if each rank has equally many samples (lb_mini)."""
    pad: bool = False
    """True if ranks that lack samples have microbatches of weight 0 (the others)."""
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    """True if a last minibatch with fewer samples is left out."""

    def __post_init__(self) -> None:
        for key in ("minibatch", "num_ranks"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} must be at least 1, got {getattr(self, key)}", key=key)
        if self.balance not in BALANCES:
            raise ConfigError(f"balance must be one of {BALANCES}, got {self.balance!r}", key="balance")
        if self.balance != "local_sort" and (self.cap is None or self.cap < 1):
            raise ConfigError(
                f"{self.balance} packs microbatches of at most so many tokens: cap must be at least 1, got {self.cap}",
                key="cap",
            )

    def plan(self, lengths: Sequence[int]) -> MinibatchPlan:
        """Return the plan of a minibatch of samples of these lengths."""
        cap = self.cap or 0
        ways: dict[str, Callable[[], MinibatchPlan]] = {
            "local_sort": partial(local_sort, lengths, self.num_ranks, pad=self.pad),
            "lb_micro": partial(lb_micro, lengths, self.num_ranks, cap, self.cost, pad=self.pad),
            "lb_mini": partial(
                lb_mini, lengths, self.num_ranks, cap, self.cost, equal_samples=self.equal_samples
            ),
        }
        return ways[self.balance]()


class MinibatchSampler:
    """Sampler of one epoch's minibatches, as one rank has them; `set_epoch` draws another order.

    `state_dict` and `load_state_dict` go on amid an epoch.
    """

    def __init__(self, lengths: Sequence[int], sampling: Sampling, rank: int) -> None:
        """Begin at epoch 0; `lengths` are tokens of each sample of the data, the same on all ranks."""
        if not 0 <= rank < sampling.num_ranks:
            raise ConfigError(f"rank must lie in 0..{sampling.num_ranks - 1}, got {rank}", key="rank")
        self._lengths = np.asarray(lengths, np.int64)
        self._sampling = sampling
        self._rank = rank
        self._epoch = self._num_done = 0
        self._is_resumed = False
        """True if a state was loaded and no minibatch given since."""

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        whole = len(self._lengths) / self._sampling.minibatch
        return math.floor(whole) if self._sampling.drop_last else math.ceil(whole)

    def __iter__(self) -> Iterator[RankMinibatch]:
        order = self._order()
        self._is_resumed = False
        while self._num_done < len(self):
            begin = self._num_done * self._sampling.minibatch
            samples = order[begin : begin + self._sampling.minibatch]
            self._num_done += 1
            yield self._of_rank(samples)
        self._num_done = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch, from its beginning.

        The epoch of a state that was just loaded goes on from where that was.
        """
        if not (self._is_resumed and epoch == self._epoch):
            self._epoch, self._num_done = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data: after the minibatch that was given last."""
        return {"epoch": self._epoch, "num_done": self._num_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a place that `state_dict` returned."""
        self._epoch, self._num_done, self._is_resumed = int(state["epoch"]), int(state["num_done"]), True

    def _order(self) -> np.ndarray:
        if not self._sampling.shuffle:
            return np.arange(len(self._lengths))
        return np.random.default_rng([self._sampling.seed, self._epoch]).permutation(len(self._lengths))

    def _of_rank(self, samples: np.ndarray) -> RankMinibatch:
        lengths = self._lengths[samples].tolist()
        own = self._sampling.plan(lengths).ranks[self._rank]
        microbatches = tuple(tuple(int(samples[place]) for place in microbatch) for microbatch in own)
        num_tokens = sum(lengths[place] for microbatch in own for place in microbatch)
        return RankMinibatch(microbatches, num_tokens, sum(lengths))
