"""Options of a dataclass: their checks, their names, and dataclasses made of plain values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from typing import Annotated

import pytest

from coarse.errors import ConfigError
from coarse.protocol.fields import Says, check, from_mapping, options_of


@dataclass(frozen=True)
class Inner:
    ratio: Annotated[float, Says("A ratio.", low=0, high=1)] = 0.5

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: Annotated[str, Says("A name.", choices=("a", "b"))]
    num_ranks: Annotated[int, Says("Ranks.", low=1, high=8, key="ranks")] = 2
    every: Annotated[int | None, Says("Steps.", low=1)] = None
    factor: Annotated[float, Says("A factor.", low=0)] = 1.0
    is_on: Annotated[bool, Says("A switch.", flag="--on")] = False
    names: Annotated[Sequence[str], Says("Names.")] = ()
    hosts: Annotated[tuple[str, ...] | None, Says("Hosts.")] = None
    options: Annotated[Mapping[str, object], Says("Options.")] = field(default_factory=dict)
    inner: Annotated[Inner, Says("A section.")] = field(default_factory=Inner)
    rows: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        check(self)


def where(path):
    return f"file:{'.'.join(map(str, path))}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "c"}, "name must be one of a, b, got 'c'"),
        ({"name": None}, "name must be one of a, b, got None"),
        ({"num_ranks": 0}, r"num_ranks must lie in 1\.\.8, got 0"),
        ({"num_ranks": 9}, r"num_ranks must lie in 1\.\.8, got 9"),
        ({"num_ranks": True}, "num_ranks must be a whole number, got True"),
        ({"num_ranks": 2.0}, r"num_ranks must be a whole number, got 2\.0"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"factor": math.inf}, "factor must be a number of at least 0, got inf"),
        ({"factor": math.nan}, "factor must be a number of at least 0, got nan"),
        ({"factor": "1"}, "factor must be a number of at least 0, got '1'"),
        ({"is_on": 1}, "is_on must be true or false, got 1"),
        ({"names": "ab"}, "names must be .*, got 'ab'"),
        ({"names": ["a", ""]}, r"names must be .*, got \('a', ''\)"),
        ({"hosts": []}, r"hosts must be .*, got \(\)"),
        ({"options": {1: 2}}, "options must be .*, got {1: 2}"),
        ({"inner": 3}, r"inner must be Inner\(\.\.\.\), in a file the table \[inner\], got 3"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_wanted_and_what_came(values, message):
    with pytest.raises(ConfigError, match=f"^{message}$") as caught:
        Outer(**{"name": "a", **values})
    assert caught.value.key == next(iter(values))


def test_what_is_right_is_kept_and_lists_become_tuples():
    made = Outer(name="b", names=["x"], hosts=["y", "z"], every=3, factor=2, inner=Inner(ratio=1))
    assert (made.names, made.hosts, made.every, made.factor) == (("x",), ("y", "z"), 3, 2)


def test_an_option_knows_its_names_its_default_and_whether_it_may_be_none():
    options = options_of(Outer)
    assert list(options) == list(asdict(Outer(name="a")))
    assert (options["num_ranks"].key, options["num_ranks"].flag) == ("ranks", "--ranks")
    assert (options["is_on"].key, options["is_on"].flag) == ("is_on", "--on")
    assert options["name"].default is MISSING
    assert [name for name, option in options.items() if option.may_be_none] == ["every", "hosts"]
    assert options["rows"].says is None


def test_a_value_is_refused_by_the_name_that_its_user_knows():
    with pytest.raises(ConfigError, match=r"^--ranks must lie in"):
        options_of(Outer)["num_ranks"].check(0, "--ranks")


def test_plain_values_make_the_dataclass_again():
    made = Outer(name="a", hosts=("x",), inner=Inner(ratio=0.25), rows=((1, 2), (3,)), options={"lr": 1})
    plain = asdict(made)
    plain["rows"], plain["hosts"] = [[1, 2], [3]], ["x"]  # as JSON has them
    assert from_mapping(Outer, plain, where) == made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "file:: 'name' is missing; set it"),
        ({"nme": "a"}, "file:nme: unknown key 'nme'; did you mean name"),
        ({"name": "a", "inner": {"ratio": 2}}, r"file:inner\.ratio: ratio must lie in 0\.\.1, got 2"),
        ({"name": "a", "inner": {"rato": 2}}, r"file:inner\.rato: unknown key 'inner\.rato'"),
        ({"name": "a", "num_ranks": "2"}, "file:num_ranks: num_ranks must be a whole number, got '2'"),
    ],
)
def test_plain_values_that_are_wrong_are_refused_with_their_place(values, message):
    with pytest.raises(ConfigError, match=message):
        from_mapping(Outer, values, where)
