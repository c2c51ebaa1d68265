"""Which changes of a source the mutants make, and which of them are drawn."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutations import chosen, mutations

REPOSITORY = Path(__file__).parents[3]
SOURCES = [path for path in sorted((REPOSITORY / "coarse" / "protocol").glob("*.py")) if path.stat().st_size]


def mutants(source):
    """The sources that come of the mutations of one, as ast writes them."""
    return [ast.unparse(ast.parse(mutation.applied(source))) for mutation in mutations("a.py", source)]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a < b", ["a <= b"]),
        ("a == b != c", ["a != b != c", "a == b == c"]),
        ("a in b", ["a not in b"]),
        ("a is None", ["a is not None"]),
        ("a + b", ["a - b"]),
        ("a << b", ["a >> b"]),
        ("a += b", ["a -= b"]),
        ("x = 7", ["x = 8"]),
        ("x = -1", ["x = -2"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = a if b else c", ["x = a if True else c", "x = a if False else c"]),
        ("f(a)", ["pass"]),
    ],
)
def test_each_kind_of_code_has_its_mutants(source, wanted):
    assert mutants(source) == wanted


def test_a_condition_and_a_result_have_theirs():
    source = "def f(a):\n    if a:\n        return a\n    return None"
    changes = [("if a", "if True"), ("if a", "if False"), ("return a", "return None")]
    assert mutants(source) == [source.replace(before, after) for before, after in changes]


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError(a + 1)",
        "assert a < 1, f(2)",
        "x = f'{a + 1}'",
        "x = 'a' + b",
        "x: Literal[1]",
        "def f(a: Literal[1]) -> Literal[2]:\n    ...",
        "@lru_cache(1)\ndef f():\n    ...",
        "def __repr__(self):\n    return f(1)",
        "if TYPE_CHECKING:\n    import a",
        "x = True",
        "'''A docstring of 1 + 1.'''",
        "A = B | C",
    ],
)
def test_what_no_test_should_hold_has_none(source):
    assert mutants(source) == []


def test_a_mutant_stands_in_parentheses_of_its_own():
    assert mutants("x = not (a and b)") == ["x = a and b", "x = not (a or b)"]
    assert mutants("x = y * (a + b)") == ["x = y + (a + b)", "x = y * (a - b)"]


def test_other_lines_and_letters_of_more_than_a_byte_stay():
    source = "# é, ü\nx = 'é'; y = a < b  # ✓\n"
    (mutation,) = mutations("a.py", source)
    assert mutation.applied(source) == "# é, ü\nx = 'é'; y = (a <= b)  # ✓\n"
    assert (mutation.line, mutation.change) == (2, "a < b -> (a <= b)")


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.test_all)])
def test_every_mutant_of_a_source_is_a_source_of_its_own(step):
    for path in SOURCES[::step]:
        source = path.read_text()
        found = mutations(path.name, source)
        sources = {mutation.applied(source) for mutation in found}
        assert len({mutation.key for mutation in found}) == len(found)
        assert len(sources | {source}) == len(found) + 1
        for mutant in sources:
            ast.parse(mutant)


def test_mutations_that_are_alike_are_told_apart_by_their_number():
    changes = [mutation.change for mutation in mutations("a.py", "f(a < b, a < b)")][1:]
    assert changes == ["a < b -> (a <= b)", "a < b -> (a <= b) (2)"]


def test_kinds_are_drawn_in_turn_and_a_seed_draws_the_same_again():
    source = "\n".join(f"x{n} = {n} + y{n}" for n in range(50)) + "\nz = not a"
    drawn = chosen(mutations("a.py", source), 5, seed=3)
    assert drawn == chosen(reversed(mutations("a.py", source)), 5, seed=3)
    assert drawn != chosen(mutations("a.py", source), 5, seed=4)
    assert Counter(mutation.kind for mutation in drawn) == {"constant": 2, "operator": 2, "not": 1}
    assert drawn == sorted(drawn, key=lambda mutation: mutation.begin)


def test_a_change_elsewhere_leaves_the_draw_as_it_is():
    source = "\n".join(f"x{n} = {n} + y{n}" for n in range(50))
    keys = {mutation.key for mutation in chosen(mutations("a.py", source), 8, seed=3)}
    moved = {mutation.key for mutation in chosen(mutations("a.py", "# A comment.\n\n" + source), 8, seed=3)}
    assert moved == keys
