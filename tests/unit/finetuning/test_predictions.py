"""The best span is the one that trying all of them finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from experiments.finetuning.features import NOWHERE, Features
from experiments.finetuning.predictions import Span, best_span, predictions
from experiments.finetuning.squad import Answer, Question

LENGTH = 7
LOGITS = arrays.arrays(np.float32, LENGTH, elements=st.integers(-3, 3).map(float))


@given(LOGITS, LOGITS, arrays.arrays(bool, LENGTH), st.integers(1, LENGTH))
def test_the_best_span_is_the_first_of_all_that_no_other_exceeds(starts, ends, allowed, max_tokens):
    tried = [
        Span(start, end, float(starts[start] + ends[end]))
        for start in range(LENGTH)
        for end in range(start, min(start + max_tokens, LENGTH))
        if allowed[start] and allowed[end]
    ]
    best = max(tried, key=lambda span: span.score, default=None)  # max returns the first of equals
    assert best_span(starts, ends, allowed, max_tokens) == best


def rows(*windows):
    """Features of a question each: windows of a context are lists of the characters' places, (-1, -1) elsewhere."""
    spans = np.array([window for _, window in windows])
    empty = np.zeros(spans.shape[:2], dtype=np.int64)
    return Features(empty, empty, empty, empty[:, 0], empty[:, 0], spans, np.array([index for index, _ in windows]))


def test_a_question_is_answered_from_its_best_window_and_one_without_any_by_nothing():
    nowhere = (NOWHERE, NOWHERE)
    features = rows(
        (0, [nowhere, (0, 3), (4, 7)]),
        (0, [nowhere, (4, 7), (8, 13)]),
        (1, [nowhere, nowhere, nowhere]),
    )
    starts = np.array([[9.0, 1.0, 0.0], [9.0, 0.0, 2.0], [1.0, 1.0, 1.0]])
    ends = np.array([[9.0, 0.0, 1.0], [9.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    asked = [Question(str(index), "?", "one two three", (Answer("one", 0),)) for index in range(3)]
    assert predictions(asked, features, starts, ends) == ["three", "", ""]


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_span_longer_than_the_limit_is_not_taken(max_tokens):
    starts, ends = np.array([5.0, 0.0, 0.0]), np.array([0.0, 1.0, 5.0])
    found = best_span(starts, ends, np.ones(3, dtype=bool), max_tokens)
    assert found.end - found.start < max_tokens
