"""SQuAD 1.1's JSON format: questions whose answers are spans of a context."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class SquadFileError(ValueError):
    """A file that is no SQuAD 1.1; the message names the file and the place in it."""


@dataclass(frozen=True)
class Answer:
    """An answer as annotated: `context[start : start + len(text)]` is `text`."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The first character behind the answer."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class Question:
    """A question, the text that answers it, and at least one answer."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def read_squad(path: Path) -> tuple[Question, ...]:
    """All questions of a file in its order.

    Raises:
        SquadFileError: the file is torn, is no JSON, or is not in the format; says where.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise SquadFileError(f"{path}: wanted the JSON of SQuAD 1.1, but {error}; is the file whole?") from None
    try:
        return _checked(tuple(_questions(document)))
    except SquadFileError as error:
        raise SquadFileError(f"{path}: {error}") from None


def _checked(questions: tuple[Question, ...]) -> tuple[Question, ...]:
    """The questions; there is one, and no id comes twice."""
    if not questions:
        raise SquadFileError("it holds no question; give a file with at least one")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise SquadFileError(f"the id {question.id!r} is that of two questions; ids must differ")
        seen.add(question.id)
    return questions


def _questions(document: object) -> Iterator[Question]:
    """The questions of a parsed file."""
    for article_place, article in _entries(document, "data", "the file"):
        for place, paragraph in _entries(article, "paragraphs", article_place):
            context = _text(paragraph, "context", place)
            for question_place, question in _entries(paragraph, "qas", place):
                yield _question(question, context, question_place)


def _question(entry: object, context: str, place: str) -> Question:
    """One question of `qas`."""
    name = _text(entry, "id", place)
    text = _text(entry, "question", place)
    answers = tuple(_answer(answer, context, where) for where, answer in _entries(entry, "answers", place))
    if not answers:
        raise SquadFileError(
            f"{place}: the question {name!r} has no answer; only SQuAD 1.1 is read, where every question has one"
        )
    return Question(name, text, context, answers)


def _answer(entry: object, context: str, place: str) -> Answer:
    """One answer, which must stand in the context where it says."""
    text = _text(entry, "text", place)
    start = _field(entry, "answer_start", place)
    if type(start) is not int or start < 0:
        raise SquadFileError(f"{place}: 'answer_start' must be an integer of at least 0, got {start!r}")
    found = context[start : start + len(text)]
    if found != text:
        raise SquadFileError(f"{place}: the context has {found!r} at {start} where the answer says {text!r}")
    return Answer(text, start)


def _entries(entry: object, key: str, place: str) -> Iterator[tuple[str, object]]:
    """The members of a list with the place of each."""
    members = _field(entry, key, place)
    if not isinstance(members, list):
        raise SquadFileError(f"{place}: {key!r} must be a list, got {_kind(members)}")
    for index, member in enumerate(members):
        yield f"{key}[{index}]" if place == "the file" else f"{place}.{key}[{index}]", member


def _text(entry: object, key: str, place: str) -> str:
    """A text that is not empty."""
    text = _field(entry, key, place)
    if not isinstance(text, str) or not text:
        raise SquadFileError(f"{place}: {key!r} must be a text that is not empty, got {_kind(text)}")
    return text


def _field(entry: object, key: str, place: str) -> object:
    """A field of an object."""
    if not isinstance(entry, dict):
        raise SquadFileError(f"{place} must be an object with {key!r}, got {_kind(entry)}")
    if key not in entry:
        raise SquadFileError(f"{place} has no {key!r}")
    return entry[key]


def _kind(value: object) -> str:
    """A value in a few words."""
    return repr(value) if value is None or value == "" else type(value).__name__
