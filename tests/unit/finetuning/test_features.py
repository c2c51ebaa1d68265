"""Rows of tokens hold questions and windows of contexts, and lead back to the text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.finetune import QUESTIONS as SHIPPED
from experiments.finetuning.features import (
    NO_ANSWER,
    NOWHERE,
    RowShape,
    features_of,
    text_of,
    token_span,
    windows,
)
from experiments.finetuning.squad import Answer, Question, read_squad
from experiments.finetuning.tokenizer import (
    CLASSIFIER_ID,
    PADDING_ID,
    SEPARATOR_ID,
    UNKNOWN_ID,
    Tokenizer,
    train_tokenizer,
)

QUESTIONS = read_squad(SHIPPED)
TOKENIZER = train_tokenizer([text for q in QUESTIONS for text in (q.text, q.context)], 2000)
SHORT = RowShape(length=64, doc_stride=16)
WORDS = st.sampled_from(
    ["Ada", "river", "2,300", "ß", "İstanbul", "naïve", "東京", "a-b", "\u2009", "\U0001d504", "unseen"]
)


def question(context, text="Who?", start=0):
    return Question("1", "Where is it?", context, (Answer(text, start),))


@pytest.mark.parametrize("shape", [RowShape(), SHORT])
def test_the_positions_of_an_answer_lead_back_to_its_text(shape):
    rows = features_of(QUESTIONS, TOKENIZER, shape)
    found = [set() for _ in QUESTIONS]
    for row, index in enumerate(rows.question_of):
        if rows.starts[row] != NO_ANSWER:
            text = text_of(QUESTIONS[index].context, rows.spans[row], rows.starts[row], rows.ends[row])
            found[index].add(text)
    assert found == [{q.answers[0].text} for q in QUESTIONS]


@given(st.lists(WORDS, min_size=1, max_size=40), st.data())
def test_any_words_of_any_text_come_back_from_the_tokens_that_cover_them(words, data):
    context = " ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    start = len(" ".join(words[:first])) + (first > 0)
    text = " ".join(words[first : last + 1])
    rows = features_of([question(context, text, start)], TOKENIZER, SHORT)
    back = {
        text_of(context, rows.spans[row], rows.starts[row], rows.ends[row])
        for row in range(len(rows))
        if rows.starts[row] != NO_ANSWER
    }
    assert {piece.strip() for piece in back} <= {text.strip()}
    assert back or not text.strip() or len(TOKENIZER.encode(text).ids) > SHORT.doc_stride


@pytest.mark.parametrize("shape", [RowShape(), SHORT, RowShape(length=5, doc_stride=1)])
def test_the_windows_of_a_context_hold_all_its_tokens_in_place(shape):
    rows = features_of(QUESTIONS[:20], TOKENIZER, shape)
    for index, asked in enumerate(QUESTIONS[:20]):
        seen = {}
        for row in np.flatnonzero(rows.question_of == index):
            inside = rows.spans[row, :, 0] != NOWHERE
            pairs = zip(map(tuple, rows.spans[row][inside].tolist()), rows.token_ids[row][inside].tolist(), strict=True)
            seen.update(pairs)
        encoded = TOKENIZER.encode(asked.context)
        assert seen == dict(zip(encoded.spans, encoded.ids, strict=True))


def test_a_row_is_a_question_and_a_window_between_separators():
    rows = features_of(QUESTIONS[:1], TOKENIZER, RowShape())
    asked, context = TOKENIZER.encode(QUESTIONS[0].text).ids, TOKENIZER.encode(QUESTIONS[0].context).ids
    tokens = [CLASSIFIER_ID, *asked, SEPARATOR_ID, *context, SEPARATOR_ID]
    padding = RowShape().length - len(tokens)
    assert rows.token_ids[0].tolist() == tokens + [PADDING_ID] * padding
    assert rows.mask[0].tolist() == [1] * len(tokens) + [0] * padding
    assert rows.types[0].tolist() == [0] * (len(asked) + 2) + [1] * (len(context) + 1) + [0] * padding


@given(st.integers(0, 300), st.integers(1, 60), st.data())
def test_windows_cover_every_token_and_begin_a_stride_apart(num_tokens, room, data):
    stride = data.draw(st.integers(1, room))
    found = windows(num_tokens, room, stride)
    assert [window.start for window in found] == [index * stride for index in range(len(found))]
    assert sorted({token for window in found for token in window}) == list(range(num_tokens))
    assert all(len(window) == room for window in found[:-1])
    assert len(found) == 1 or found[-2].stop < num_tokens


def test_an_answer_that_begins_or_ends_within_a_token_is_covered_by_it():
    spans = [(0, 4), (4, 5), (6, 10)]
    assert token_span(spans, Answer("x", 1)) == range(0, 1)
    assert token_span(spans, Answer("x" * 5, 2)) == range(0, 3)
    assert token_span(spans, Answer("x" * 4, 6)) == range(2, 3)
    assert len(token_span(spans, Answer(" ", 5))) == 0


def test_a_window_without_the_whole_answer_points_to_the_first_token():
    context = " ".join(q.context for q in QUESTIONS[:14:7])
    rows = features_of([question(context, context[:40])], TOKENIZER, SHORT)
    assert len(rows) > 3
    assert rows.starts[0] != NO_ANSWER
    assert rows.starts[1:].tolist() == rows.ends[1:].tolist() == [NO_ANSWER] * (len(rows) - 1)


def test_a_long_question_leaves_room_for_the_context():
    long = Question("1", "why " * 500, QUESTIONS[0].context, QUESTIONS[0].answers)
    rows = features_of([long], TOKENIZER, SHORT)
    assert rows.mask.sum(axis=1).max() == SHORT.length
    assert (rows.spans[:, :, 0] != NOWHERE).sum(axis=1).max() == SHORT.room


@pytest.mark.parametrize(
    ("length", "doc_stride", "message"),
    [(4, 1, "at least 5 tokens, got 4"), (64, 0, "1 to 41 tokens"), (64, 42, "some of the context would be in none")],
)
def test_rows_that_would_lose_text_are_refused(length, doc_stride, message):
    with pytest.raises(ValueError, match=message):
        RowShape(length=length, doc_stride=doc_stride)


def test_no_question_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        features_of([], TOKENIZER, SHORT)


def test_taken_rows_are_those_rows():
    rows = features_of(QUESTIONS[:4], TOKENIZER, RowShape())
    taken = rows.take([2, 0])
    assert len(taken) == 2
    assert np.array_equal(taken.token_ids, rows.token_ids[[2, 0]])
    assert np.array_equal(taken.question_of, rows.question_of[[2, 0]])


def test_training_the_tokenizer_again_gives_the_same_one():
    texts = [text for q in QUESTIONS for text in (q.text, q.context)]
    assert train_tokenizer(texts, 2000).to_json() == TOKENIZER.to_json()


def test_a_tokenizer_is_the_same_after_writing_and_reading():
    again = Tokenizer.from_json(TOKENIZER.to_json())
    assert again.encode(QUESTIONS[5].context) == TOKENIZER.encode(QUESTIONS[5].context)
    assert again.num_tokens == TOKENIZER.num_tokens <= 2000


def test_a_character_never_seen_is_one_unknown_token_and_keeps_its_place():
    encoded = TOKENIZER.encode("Tarn 東 Tarn")
    assert encoded.ids.count(UNKNOWN_ID) == 1
    assert encoded.spans[encoded.ids.index(UNKNOWN_ID)] == (5, 6)


def test_a_vocabulary_without_room_for_words_is_refused():
    with pytest.raises(ValueError, match="more than its 4 special tokens, got 4"):
        train_tokenizer(["text"], 4)
