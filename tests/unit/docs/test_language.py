"""Plain words that ruff cannot hold: summaries of docstrings name their subject, and texts for users are plain."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY

PACKAGES = ("coarse", "tf_strategy")
FORBIDDEN_BEGINNING = re.compile(r"(What|Of|Who|Whose|Which|How|Where|Whether|As|The same|By|See)\b")
NOUNS = re.compile(r"(All|Bytes|Each|Every|Names|Nothing|One|Rows|Seconds|Something|Why|Within|\w+Error)\b")
"""Words that a function's summary does not begin with, since they are no verbs; ruff does not know them."""
FORBIDDEN_WORD = re.compile(
    r"\b(alike|besides|beforehand|meanwhile|whoever|whatever|whereupon|thereby|nobody|somebody|one's own|the hands of|"
    r"has to do with|there is nothing)\b",
    re.IGNORECASE,
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
TREES = {
    str(path.relative_to(REPOSITORY)): ast.parse(path.read_text())
    for package in PACKAGES
    for path in sorted((REPOSITORY / package).rglob("*.py"))
}


def is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def descriptions(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Constant]]:
    """Yield docstrings and the strings below attributes, each with the module, class or function that it stands in."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            yield from ((node, statement.value) for statement in node.body if is_text(statement))


def summary_of(text: ast.Constant) -> str:
    return text.value.strip().partition("\n")[0]


def is_property(function: ast.FunctionDef) -> bool:
    return any(isinstance(name, ast.Name) and "property" in name.id for name in function.decorator_list)


def found(matches: "dict[str, list[str]]") -> str:
    return "\n".join(f"{path}:{line}" for path, lines in matches.items() for line in lines)


@pytest.mark.parametrize("forbidden", [FORBIDDEN_BEGINNING.match, FORBIDDEN_WORD.search], ids=["beginning", "word"])
def test_a_summary_names_its_subject_in_plain_words(forbidden):
    wrong = {
        path: [f"{text.lineno}: {summary_of(text)}" for _, text in descriptions(tree) if forbidden(summary_of(text))]
        for path, tree in TREES.items()
    }
    assert not found(wrong), found(wrong)


def test_the_summary_of_a_function_begins_with_a_verb():
    wrong = {
        path: [
            f"{text.lineno}: {summary_of(text)}"
            for node, text in descriptions(tree)
            if isinstance(node, ast.FunctionDef) and getattr(node.body[0], "value", None) is text
            if not is_property(node) and NOUNS.match(summary_of(text))
        ]
        for path, tree in TREES.items()
    }
    assert not found(wrong), found(wrong)


def test_texts_for_users_are_in_plain_words():
    """Errors, warnings, help and what commands print are the string constants that have more than one word."""
    wrong = {}
    for path, tree in TREES.items():
        described = {id(text) for _, text in descriptions(tree)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        wrong[path] = [
            f"{text.lineno}: {text.value}"
            for text in texts
            if id(text) not in described and " " in text.value.strip() and FORBIDDEN_WORD.search(text.value)
            if "By.NOBODY" not in text.value
        ]
    assert not found(wrong), found(wrong)


def test_all_sources_were_read():
    assert len(TREES) > 500
    assert Path("coarse/arrays.py") in {Path(path) for path in TREES}
