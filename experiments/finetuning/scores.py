"""Exact match and F1 of predicted answers, by the rules of SQuAD 1.1 (Rajpurkar et al., 2016, section 6.1)."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ARTICLES = frozenset({"a", "an", "the"})
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Scores:
    """Means over questions, in percent."""

    num_questions: int
    exact_match: float
    f1: float


def words_of(text: str) -> list[str]:
    """The words that count: lower case, no ASCII punctuation (which joins what it parted), no articles."""
    return [word for word in text.lower().translate(_WITHOUT_PUNCTUATION).split() if word not in ARTICLES]


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the prediction has exactly the words of an answer."""
    words = words_of(prediction)
    return any(words == words_of(answer) for answer in answers)


def f1(prediction: str, answers: Iterable[str]) -> float:
    """The best harmonic mean of precision and cancel over the answers, words counted as often as they come.

    No word in common is 0, also where neither side has a word.
    """
    return max(_f1_of_one(words_of(prediction), words_of(answer)) for answer in answers)


def _f1_of_one(predicted: list[str], wanted: list[str]) -> float:
    num_same = (Counter(predicted) & Counter(wanted)).total()
    return 2 * num_same / (len(predicted) + len(wanted)) if num_same else 0.0


def score(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> Scores:
    """The scores of one prediction per question; each question has at least one answer."""
    pairs = list(zip(predictions, answers, strict=True))
    if not pairs:
        return Scores(0, 0.0, 0.0)
    matches = sum(exact_match(prediction, texts) for prediction, texts in pairs)
    return Scores(
        num_questions=len(pairs),
        exact_match=100.0 * matches / len(pairs),
        f1=100.0 * sum(f1(prediction, texts) for prediction, texts in pairs) / len(pairs),
    )
