"""Answers from logits: the best span of each question over its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.finetuning.features import NOWHERE, Features, text_of
from experiments.finetuning.squad import Question

MAX_ANSWER_TOKENS = 30
"""A longer span is no answer (the usual limit on SQuAD)."""


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `end`, both included, and the sum of their logits."""

    start: int
    end: int
    score: float


def best_span(
    start_logits: np.ndarray,  # (length,) float
    end_logits: np.ndarray,  # (length,) float
    allowed: np.ndarray,  # (length,) bool: tokens of the context
    max_tokens: int = MAX_ANSWER_TOKENS,
) -> Span | None:
    """The span of at most `max_tokens` allowed tokens with the highest sum of logits, None where none is allowed.

    Of equals the first one counts.
    """
    if not allowed.any():
        return None
    length = len(allowed)
    possible = np.triu(np.ones((length, length), dtype=bool)) & np.tri(length, k=max_tokens - 1, dtype=bool)
    possible &= allowed[:, None] & allowed[None, :]
    sums = np.where(possible, start_logits[:, None].astype(np.float64) + end_logits[None, :], -np.inf)
    start, end = np.unravel_index(np.argmax(sums), sums.shape)
    return Span(int(start), int(end), float(sums[start, end]))


def predictions(
    questions: Sequence[Question],
    features: Features,  # n rows, whose `question_of` are indices into `questions`
    start_logits: np.ndarray,  # (n, length) float
    end_logits: np.ndarray,  # (n, length) float
) -> list[str]:
    """The text that each question is answered with, "" where no window has a token of the context."""
    best: dict[int, tuple[float, str]] = {}
    for row, question in enumerate(features.question_of.tolist()):
        spans = features.spans[row]
        found = best_span(start_logits[row], end_logits[row], spans[:, 0] != NOWHERE)
        if found is not None and (question not in best or found.score > best[question][0]):
            best[question] = found.score, text_of(questions[question].context, spans, found.start, found.end)
    return [best[index][1] if index in best else "" for index in range(len(questions))]
