"""Train a policy by GRPO on rollouts of unequal length; every answer is checked.

coarse run --workers 2 --devices 1 experiments/grpo_counting.py                              (a minute)
coarse run --workers 2 --devices 1 experiments/grpo_counting.py --mode fsdp --balance lb_micro

Each worker samples answers to its own prompts, each until its own end. All rollouts are then divided among workers by
cost. In mode odc a worker samples and trains without waiting for the others; in mode fsdp every pass is collective, so
that all make as many as the one with the longest answer, and microbatches are padded.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np
import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse.parallel.packing.sampler import Sampling
from coarse.protocol.clock import WallClock
from experiments.long_tail.model import LongTailShape, PackedBlock, PackedGpt
from experiments.rollouts.generation import Rollout, sampled
from experiments.rollouts.policy_loss import Judged, advantages, policy_loss
from experiments.rollouts.task import LONGEST_ANSWER, MOST, VOCABULARY, is_right, prompt_of, reward_of

LONGEST = 2 + LONGEST_ANSWER


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("odc", "fsdp"), default="odc")
    parser.add_argument("--balance", choices=("lb_mini", "lb_micro"), default="lb_mini")
    parser.add_argument("--prompts", type=int, default=6, help="of a worker and step")
    parser.add_argument("--group", type=int, default=16, help="answers to a prompt")
    parser.add_argument("--minibatches", type=int, default=2, help="updates of a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cap", type=int, default=128, help="tokens of a microbatch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.balance == "lb_mini" and given.mode != "odc":
        parser.error(f"lb_mini gives workers unequal numbers of microbatches, which --mode {given.mode} cannot run")
    return given


class Grpo:
    """A policy, and a worker's part in its training."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._is_odc = given.mode == "odc"
        shape = LongTailShape(layers=2, width=64, heads=4, context=LONGEST, vocabulary=VOCABULARY)
        self.policy: nn.Module = ct.fully_shard(PackedGpt(shape), mode=given.mode, units=[PackedBlock])
        self._optimizer = torch.optim.AdamW(self.policy.parameters(), lr=given.learning_rate)
        self._draws = torch.Generator().manual_seed(1000 * given.seed + coarse.rank())
        self.num_passes = 0
        self.num_microbatches = 0

    def step(self) -> tuple[float, float, float]:
        """(Mean reward, share of right answers, mean length) of all workers' rollouts, before the updates."""
        given = self._given
        numbers = torch.randint(1, MOST + 1, (given.prompts,), generator=self._draws).tolist()
        asked = [number for number in numbers for _ in range(given.group)]
        rollouts = sampled(self.policy, [prompt_of(number) for number in asked], self._draws, self._has_anyone)
        rewards = [reward_of(number, one.answer) for number, one in zip(asked, rollouts, strict=True)]
        right = sum(is_right(number, one.answer) for number, one in zip(asked, rollouts, strict=True))
        judged = self._exchanged(rollouts, advantages(rewards, given.group))
        sums = coarse.push_pull(np.array([sum(rewards), float(right), len(asked)]), name="rewards", op=coarse.Sum)
        for minibatch in np.array_split(np.arange(len(judged)), given.minibatches):
            self._update([judged[one] for one in minibatch])
        lengths = [len(one.old) for one in judged]
        return float(sums[0] / sums[2]), float(sums[1] / sums[2]), float(np.mean(lengths))

    def right_share(self) -> float:
        """Of the likeliest answers to all numbers; every worker finds the same."""
        numbers = range(1, MOST + 1)
        found = sampled(self.policy, [prompt_of(number) for number in numbers], None, self._has_anyone)
        return float(np.mean([is_right(number, one.answer) for number, one in zip(numbers, found, strict=True)]))

    def _has_anyone(self, is_going: bool) -> bool:
        """Whether to make another pass; in mode fsdp it is collective."""
        if not self._is_odc:
            is_going = bool(coarse.push_pull(np.array([float(is_going)]), name="going", op=coarse.Sum)[0])
        self.num_passes += is_going
        return is_going

    def _exchanged(self, rollouts: list[Rollout], advantage: np.ndarray) -> list[Judged]:
        """All workers' rollouts, in the order of workers."""
        tokens = torch.zeros(len(rollouts), LONGEST, dtype=torch.int64)
        old = torch.zeros(len(rollouts), LONGEST_ANSWER)
        sizes = torch.tensor([[len(one.tokens), one.num_answered] for one in rollouts])
        for place, one in enumerate(rollouts):
            tokens[place, : len(one.tokens)] = one.tokens
            old[place, : one.num_answered] = one.log_probabilities
        every = [ct.allgather(part, name) for name, part in (("tokens", tokens), ("old", old), ("sizes", sizes))]
        advantage_of_all = ct.allgather(torch.from_numpy(advantage), "advantages").tolist()
        return [
            Judged(own[:length], logs[:answered], gained)
            for own, logs, (length, answered), gained in zip(
                *every[:2], every[2].tolist(), advantage_of_all, strict=True
            )
        ]

    def _update(self, judged: list[Judged]) -> None:
        """One minibatch of all workers, of which this one computes a part."""
        sampling = Sampling(
            minibatch=len(judged), num_ranks=coarse.size(), balance=self._given.balance, cap=self._given.cap,
            pad=self._given.balance != "lb_mini",
        )  # fmt: skip
        plan = sampling.plan([len(one.tokens) - 1 for one in judged])
        total = sum(len(one.old) for one in judged)
        own = plan.ranks[coarse.rank()]
        for microbatch in own:
            loss = policy_loss(self.policy, [judged[one] for one in microbatch])
            (loss if self._is_odc else loss * (coarse.size() / total)).backward()
        self.num_microbatches += len(own)
        if self._is_odc:
            ct.end_minibatch(self.policy, num_tokens=sum(len(judged[one].old) for part in own for one in part))
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


def checksum(model: nn.Module) -> int:
    """Of this worker's shards."""
    found = 0
    for parameter in model.parameters():
        shard = parameter.detach().to_local()  # type: ignore[operator]
        found = zlib.crc32(shard.numpy().tobytes(), found)
    return found


def main() -> None:
    """One training."""
    given = parse_arguments()
    coarse.init()
    torch.set_num_threads(1)
    grpo, clock = Grpo(given), WallClock()
    began_s = clock.now_s()
    for number in range(1, given.steps + 1):
        reward, right, length = grpo.step()
        if coarse.rank() == 0 and (number % 10 == 0 or number == 1):
            print(f"step {number:3}  reward {reward:.3f}  right {right:.0%}  {length:.1f} tokens an answer")
    took_s = clock.now_s() - began_s
    right = grpo.right_share()
    counts = ct.allgather(torch.tensor([[grpo.num_passes, grpo.num_microbatches, checksum(grpo.policy)]]), "counts")
    if coarse.rank() == 0:
        passes, microbatches, sums = counts.T.tolist()
        print(
            f"{given.mode} + {given.balance}: {right:.0%} of the likeliest answers right; {took_s:.1f} s (measured); "
            f"by worker {passes} passes to sample, {microbatches} microbatches; parameters "
            f"{zlib.crc32(np.array(sums).tobytes()):08x}"
        )
    coarse.shutdown()


if __name__ == "__main__":
    main()
