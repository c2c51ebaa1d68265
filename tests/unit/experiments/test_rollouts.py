"""Rollouts whose answers are checked: rewards, advantages, the clipped loss, and answers that end by themselves."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.rollouts.generation import sampled
from experiments.rollouts.policy_loss import CLIP, EXPLORATION, Judged, advantages, policy_loss
from experiments.rollouts.task import END, LONGEST_ANSWER, MARK, MOST, VOCABULARY, is_right, prompt_of, reward_of


def test_only_the_right_answer_gets_all_of_the_reward():
    for number in range(1, MOST + 1):
        right = [MARK] * number + [END]
        assert is_right(number, right)
        assert reward_of(number, right) == 1.0
        for wrong in (right[:-1], right[1:], [*right, MARK], [END], [], [MARK + 1, *right], [MARK] * LONGEST_ANSWER):
            assert not is_right(number, wrong)
            assert 0 <= reward_of(number, wrong) <= 0.5
    assert reward_of(3, [MARK, MARK]) > reward_of(3, [MARK]) > reward_of(3, [END])


def test_advantages_are_deviations_within_a_group():
    found = advantages([0.0, 1.0, 5.0, 5.0], group=2)
    np.testing.assert_allclose(found, [-1, 1, 0, 0], atol=1e-5)


class Fixed(nn.Module):
    """The same logits for every token, by a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, samples):
        return self.logits.expand(sum(map(len, samples)), -1)


def judged(advantage, old_ratio=1.0, answer=(MARK, END)):
    """A rollout whose tokens were 1/VOCABULARY over `old_ratio` likely."""
    old = torch.full((len(answer),), -np.log(VOCABULARY) - np.log(old_ratio), dtype=torch.float32)
    return Judged(torch.tensor([*prompt_of(1), *answer]), old, advantage)


@pytest.mark.parametrize(
    ("advantage", "ratio", "clipped"),
    [(1.0, 1.0, 1.0), (1.0, 1.5, 1 + CLIP), (1.0, 0.5, 0.5), (-1.0, 0.5, 1 - CLIP), (-1.0, 1.5, 1.5)],
)
def test_the_loss_is_a_sum_of_clipped_ratios(advantage, ratio, clipped):
    """Of two tokens, each with the entropy of equally likely ones beside it."""
    loss = policy_loss(Fixed(), [judged(advantage, ratio)])
    wanted = -2 * (clipped * advantage + EXPLORATION * np.log(VOCABULARY))
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-5)


def test_a_pass_of_no_rollouts_has_no_weight():
    policy = Fixed()
    policy_loss(policy, []).backward()
    assert not policy.logits.grad.any()


def test_answers_end_by_themselves_or_are_cut():
    policy = Fixed()
    with torch.no_grad():
        policy.logits[END] = 100.0
    found = sampled(policy, [prompt_of(1), prompt_of(2)], torch.Generator().manual_seed(0), bool)
    assert [one.answer for one in found] == [[END], [END]]
    with torch.no_grad():
        policy.logits[MARK] = 200.0
    passes = []
    found = sampled(policy, [prompt_of(1)], None, lambda is_going: passes.append(is_going) or is_going)
    assert found[0].answer == [MARK] * LONGEST_ANSWER
    assert passes == [True] * LONGEST_ANSWER + [False]
    assert float(found[0].log_probabilities.exp().min()) == pytest.approx(1.0)


def test_a_worker_without_answers_left_passes_as_often_as_others_want():
    left = iter([True, True, True, False])
    policy = Fixed()
    with torch.no_grad():
        policy.logits[END] = 100.0
    found = sampled(policy, [prompt_of(1)], None, lambda _: next(left))
    assert found[0].answer == [END]
