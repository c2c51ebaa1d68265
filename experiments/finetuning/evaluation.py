"""Exact match and F1 of a model that all workers evaluate together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from experiments.finetuning.features import Features, RowShape, features_of
from experiments.finetuning.models import inputs_of
from experiments.finetuning.predictions import predictions
from experiments.finetuning.scores import Scores, score
from experiments.finetuning.squad import Question
from experiments.finetuning.teams import Team
from experiments.finetuning.tokenizer import Tokenizer

ROWS_PER_PASS = 16


def evaluate(
    model: nn.Module, family: str, questions: Sequence[Question], tokenizer: Tokenizer, row: RowShape, team: Team
) -> Scores:
    """The scores over all questions, the same on every worker.

    Every worker answers its part of them. All make as many passes as the one with the most rows, since the layers of a
    sharded model are gathered by all workers together.
    """
    rows = features_of(questions, tokenizer, row)
    parts = [rows.take(np.flatnonzero(rows.question_of % team.size == rank)) for rank in range(team.size)]
    num_passes = max(-(-len(part) // ROWS_PER_PASS) for part in parts)
    mine = parts[team.rank]
    starts, ends = _logits(model, family, mine, rows.take([0]), num_passes)
    answered = predictions(questions, mine, starts, ends)[team.rank :: team.size]
    asked = questions[team.rank :: team.size]
    found = score(answered, [[answer.text for answer in question.answers] for question in asked])
    exact_match, f1 = team.mean(
        [found.exact_match * found.num_questions, found.f1 * found.num_questions], "finetune.scores"
    )
    share = team.size / len(questions)
    return Scores(len(questions), exact_match * share, f1 * share)


@torch.no_grad()
def _logits(
    model: nn.Module, family: str, features: Features, company: Features, num_passes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end logits, (n, length) float each; in passes beyond the last row the model reads `company`."""
    was_training = model.training
    model.eval()
    starts, ends = [], []
    for index in range(num_passes):
        rows = np.arange(index * ROWS_PER_PASS, min((index + 1) * ROWS_PER_PASS, len(features)))
        output = model(**inputs_of(family, features.take(rows) if len(rows) else company))
        starts.append(output.start_logits[: len(rows)].float().numpy())
        ends.append(output.end_logits[: len(rows)].float().numpy())
    model.train(was_training)
    return np.concatenate(starts), np.concatenate(ends)
