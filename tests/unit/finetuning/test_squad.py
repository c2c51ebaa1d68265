"""Files in SQuAD's format are read whole, and damaged ones give an error that says where."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import experiments.finetune
from experiments.finetuning.squad import Answer, Question, SquadFileError, read_squad

SHIPPED = experiments.finetune.QUESTIONS
CONTEXT = "Tarn is an island. Its town is Sallow."
DOCUMENT = {
    "version": "1.1",
    "data": [
        {
            "title": "Tarn",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "1",
                            "question": "What is its town?",
                            "answers": [
                                {"text": "Sallow", "answer_start": 31},
                                {"text": "town is Sallow", "answer_start": 23},
                            ],
                        },
                        {
                            "id": "2",
                            "question": "What is Tarn?",
                            "answers": [{"text": "an island", "answer_start": 8}],
                        },
                    ],
                }
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Reads bytes, or a document as JSON, through a file."""
    path = tmp_path_factory.mktemp("squad") / "questions.json"

    def reading(content):
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_squad(path)

    return reading


def changed(change):
    """The document after `change` has been let at a copy of it."""
    document = json.loads(json.dumps(DOCUMENT))
    change(document["data"][0]["paragraphs"][0])
    return document


def places(value, path=()):
    """The paths of all values within a document, itself too."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def test_questions_come_in_the_order_of_the_file_with_all_their_answers(read):
    assert read(DOCUMENT) == (
        Question("1", "What is its town?", CONTEXT, (Answer("Sallow", 31), Answer("town is Sallow", 23))),
        Question("2", "What is Tarn?", CONTEXT, (Answer("an island", 8),)),
    )


def test_the_shipped_file_has_questions_on_some_ten_paragraphs():
    questions = read_squad(SHIPPED)
    assert 40 <= len(questions) <= 80
    assert len({question.context for question in questions}) == 11
    assert all(question.context[a.start : a.end] == a.text for question in questions for a in question.answers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["qas"][1]["answers"].clear(), r"data\[0\].paragraphs\[0\].qas\[1\]: .* no answer; only SQuAD 1.1"),
        (
            lambda p: p["qas"][0]["answers"][1].update(answer_start=22),
            r"answers\[1\]: the context has ' town is Sallo'",
        ),
        (lambda p: p["qas"][0]["answers"][0].update(answer_start=True), "must be an integer of at least 0, got True"),
        (lambda p: p["qas"][0]["answers"][0].update(answer_start=-7), "must be an integer of at least 0, got -7"),
        (lambda p: p["qas"][1].update(id="1"), "'1' is that of two questions"),
        (lambda p: p.update(context=3), r"data\[0\].paragraphs\[0\]: 'context' must be a text .* got int"),
        (lambda p: p["qas"][0].pop("id"), r"data\[0\].paragraphs\[0\].qas\[0\] has no 'id'"),
        (lambda p: p["qas"].clear(), "holds no question"),
        (lambda p: p["qas"].append(None), r"qas\[2\] must be an object with 'id', got None"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(read, change, message):
    with pytest.raises(SquadFileError, match=message) as caught:
        read(changed(change))
    assert "questions.json: " in str(caught.value)


@given(st.integers(0, len(json.dumps(DOCUMENT)) - 1))
def test_a_torn_file_is_refused_wherever_it_ends(read, num_bytes):
    with pytest.raises(SquadFileError, match="is the file whole"):
        read(json.dumps(DOCUMENT).encode()[:num_bytes])


@given(st.binary())
def test_any_bytes_are_read_or_refused(read, content):
    with pytest.raises(SquadFileError):
        read(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["data", "qas", "id"]), inner),
    max_leaves=4,
)


@given(st.sampled_from(list(places(DOCUMENT))[1:]), JSON)
def test_a_file_with_one_value_replaced_by_any_other_is_read_or_refused(read, place, value):
    document = json.loads(json.dumps(DOCUMENT))
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    try:
        questions = read(document)
    except SquadFileError:
        return
    assert all(q.context[a.start : a.end] == a.text and q.text and q.answers for q in questions for a in q.answers)


def test_a_file_nested_without_end_is_refused(read):
    with pytest.raises(SquadFileError):
        read(b"[" * 100_000)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        read_squad(Path("nowhere.json"))
