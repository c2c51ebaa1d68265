"""What a training by GRPO does on two workers: the same bits again, and the same answers as mode fsdp samples."""

import sys
from pathlib import Path

import torch

import coarse
from experiments.grpo_counting import Grpo, checksum, parse_arguments
from tests.support.claims import Claim, report_claims

STEPS = 4


def trained(*options: str, steps: int = STEPS) -> tuple[Grpo, list[tuple[float, float, float]]]:
    """A training, and by step reward, share of right answers, and length."""
    grpo = Grpo(parse_arguments([*options, "--prompts", "2", "--group", "8"]))
    return grpo, [grpo.step() for _ in range(steps)]


def two_runs_have_the_same_bits() -> None:
    (one, first), (other, second) = trained(), trained()
    assert first == second
    assert checksum(one.policy) == checksum(other.policy)


def the_first_answers_are_those_of_mode_fsdp() -> None:
    """Until parameters differ in their last bits, by the order of sums."""
    (_, odc), (_, fsdp) = (trained(*options, steps=1) for options in ((), ("--mode", "fsdp", "--balance", "lb_micro")))
    assert odc == fsdp


def rewards_rise() -> None:
    _, steps = trained("--learning-rate", "3e-3", steps=16)
    early, late = (sum(reward for reward, _, _ in some) / 4 for some in (steps[:4], steps[-4:]))
    assert late > early + 0.05, (early, late)


CLAIMS: tuple[Claim, ...] = (two_runs_have_the_same_bits, the_first_answers_are_those_of_mode_fsdp, rewards_rise)

if __name__ == "__main__":
    coarse.init()
    torch.set_num_threads(1)
    report_claims(CLAIMS, Path(sys.argv[1]))
    coarse.shutdown()
