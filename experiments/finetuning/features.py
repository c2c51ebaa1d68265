"""What a model reads: questions and windows of their contexts as rows of tokens, and the way back to text.

[Note: windows] A row is [CLS] question [SEP] window [SEP] padding. A context longer than the room in a row becomes
several windows, which begin `doc_stride` tokens after one another (Devlin et al., 2018: BERT's doc_stride), so that an
answer at the end of one window lies well inside the next. The question stands first: GPT-2 and OPT look back only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.finetuning.squad import Answer, Question
from experiments.finetuning.tokenizer import CLASSIFIER_ID, PADDING_ID, SEPARATOR_ID, Encoding, Tokenizer

NOWHERE = -1
"""The characters of a token that is not one of the context."""

NO_ANSWER = 0
"""The position, that of [CLS], to which a window points that does not hold the whole answer."""

NUM_SEPARATORS = 3


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """How long rows are, and how far apart the windows of a long context begin; in tokens."""

    length: int = 160
    doc_stride: int = 64

    def __post_init__(self) -> None:
        if self.length < NUM_SEPARATORS + 2:
            raise ValueError(f"a row has at least {NUM_SEPARATORS + 2} tokens, got {self.length}")
        if not 1 <= self.doc_stride <= self.room:
            raise ValueError(
                f"windows of rows of {self.length} tokens begin 1 to {self.room} tokens after one another, "
                f"got {self.doc_stride}; with more, some of the context would be in none"
            )

    @property
    def question_tokens(self) -> int:
        """Longer questions are cut."""
        return (self.length - NUM_SEPARATORS) // 3 or 1

    @property
    def room(self) -> int:
        """What the longest question leaves for the context."""
        return self.length - NUM_SEPARATORS - self.question_tokens


DEFAULT_ROW = RowShape()


@dataclass(frozen=True)
class Features:
    """Rows for a model; n rows of `length` tokens."""

    token_ids: np.ndarray  # (n, length) int64
    mask: np.ndarray  # (n, length) int64, 1 where there is a token
    types: np.ndarray  # (n, length) int64, 1 within the context (BERT's segments)
    starts: np.ndarray  # (n,) int64, position of the answer's first token
    ends: np.ndarray  # (n,) int64, position of its last token
    spans: np.ndarray  # (n, length, 2) int64, characters of the context, NOWHERE for other tokens
    question_of: np.ndarray  # (n,) int64, index of the row's question

    def __len__(self) -> int:
        return len(self.token_ids)

    def take(self, rows: Sequence[int] | np.ndarray) -> Features:
        """Only these rows, in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        return Features(*(np.asarray(getattr(self, name))[chosen] for name in self.__dataclass_fields__))


def features_of(questions: Iterable[Question], tokenizer: Tokenizer, shape: RowShape) -> Features:
    """The rows of all questions, a question's windows after one another; see [Note: windows]."""
    contexts: dict[str, Encoding] = {}
    rows = []
    for index, question in enumerate(questions):
        if question.context not in contexts:
            contexts[question.context] = tokenizer.encode(question.context)
        context = contexts[question.context]
        asked = tokenizer.encode(question.text).ids[: shape.question_tokens]
        answer = token_span(context.spans, question.answers[0])
        for window in windows(len(context.ids), shape.length - NUM_SEPARATORS - len(asked), shape.doc_stride):
            rows.append(_row(asked, context, window, answer, shape.length, index))
    if not rows:
        raise ValueError("no question came; features are made of at least one")
    return Features(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def windows(num_tokens: int, room: int, stride: int) -> list[range]:
    """The windows of a context: `stride` apart, `room` long, the last one ending with the context."""
    found = [range(0, min(room, num_tokens))]
    while found[-1].stop < num_tokens:
        begin = found[-1].start + stride
        found.append(range(begin, min(begin + room, num_tokens)))
    return found


def token_span(spans: Sequence[tuple[int, int]], answer: Answer) -> range:
    """The fewest tokens that cover an answer; empty where it has none (it is all spaces)."""
    covering = [index for index, (begin, end) in enumerate(spans) if begin < answer.end and end > answer.start]
    return range(covering[0], covering[-1] + 1) if covering else range(0)


def text_of(context: str, spans: np.ndarray, start: int, end: int) -> str:
    """The characters from the first of token `start` to the last of token `end` of a row; `spans`: (length, 2)."""
    begin, stop = int(spans[start, 0]), int(spans[end, 1])
    return "" if NOWHERE in (begin, stop) else context[begin:stop]


def _row(
    asked: list[int], context: Encoding, window: range, answer: range, length: int, question: int
) -> tuple[list[int], list[int], list[int], int, int, list[tuple[int, int]], int]:
    """One row in the order of Features' fields."""
    ids = [CLASSIFIER_ID, *asked, SEPARATOR_ID, *context.ids[window.start : window.stop], SEPARATOR_ID]
    first = len(asked) + 2
    padding = length - len(ids)
    nowhere = (NOWHERE, NOWHERE)
    spans = [nowhere] * first + context.spans[window.start : window.stop] + [nowhere] * (padding + 1)
    holds = len(answer) > 0 and window.start <= answer.start and answer.stop <= window.stop
    shift = first - window.start
    return (
        ids + [PADDING_ID] * padding,
        [1] * len(ids) + [0] * padding,
        [0] * first + [1] * (len(ids) - first) + [0] * padding,
        answer.start + shift if holds else NO_ANSWER,
        answer.stop - 1 + shift if holds else NO_ANSWER,
        spans,
        question,
    )
