"""The points that texts and lists state."""

import pytest

from coarse.cli.report.sweep.points import MAX_POINTS, axis_of, points_of, rows_of_csv, text_of, value_of
from coarse.errors import ConfigError

WHOLE = ("workers",)
AXES = {
    "workers=2,4": [2, 4],
    "workers=4, 2 ,4": [4, 2],
    "workers=1:8:log4": [1, 2, 4, 8],
    "workers=1:4:lin7": [1, 2, 3, 4],
    "rate=0:1:lin5": [0, 0.25, 0.5, 0.75, 1],
    "rate=0.1:1000:log5": [0.1, 1, 10, 100, 1000],
    "rate=1:10:log3": [1, 3.16228, 10],
    "rate=10:1:lin4": [10, 7, 4, 1],
    "rate=5,0:1:lin2": [5, 0, 1],
    "rate=1,1.0,1e0": [1],
    "nvlink=true,off": [True, False],
    "policy=auto,paper": ["auto", "paper"],
    "straggler=3=1.5,none": ["3=1.5", "none"],
}


@pytest.mark.parametrize("text", AXES)
def test_an_axis_has_the_values_that_its_text_states(text):
    key, values = axis_of(text, WHOLE)
    assert key == text.partition("=")[0]
    assert list(values) == AXES[text]
    assert [type(value) for value in values] == [type(value) for value in AXES[text]]


BAD = {
    "workers": "KEY=VALUE",
    "=2": "KEY=VALUE",
    "workers=": "KEY=VALUE",
    "workers=2,": "a value of workers is empty",
    "rate=0:1:log3": "must lie above 0",
    "rate=1:2:lin1": "at least 2",
    "rate=1:2:cube3": "FROM:TO:logN",
    "rate=1:2": "FROM:TO:logN",
    "rate=1:b:lin3": "FROM:TO:logN",
    "rate=1:2:lin": "FROM:TO:logN",
    "rate=nan": "must be finite",
    "rate=1,inf": "must be finite",
}


@pytest.mark.parametrize("text", BAD)
def test_an_axis_of_another_form_is_refused(text):
    with pytest.raises(ConfigError, match=BAD[text]):
        axis_of(text, WHOLE)


@pytest.mark.parametrize("value", [True, False, 0, -3, 10**20, 0.1, 1e-9, 1e300, "fp16", "3=1.5"])
def test_a_value_comes_back_from_its_text(value):
    back = value_of("key", text_of(value))
    assert (back, type(back)) == (value, type(value))


def test_a_grid_has_every_combination_once_the_last_axis_first():
    points = points_of([], [("a", (1, 2)), ("b", ("x", "y"))])
    assert points == ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"})


def test_a_list_may_be_crossed_with_axes():
    rows = rows_of_csv("a, b\n1,x\n\n2,y\n1,x\n", "list.csv")
    assert points_of(rows, [("c", (True,))]) == ({"a": 1, "b": "x", "c": True}, {"a": 2, "b": "y", "c": True})


BAD_LISTS = {
    "": "list.csv:1: wanted keys",
    "a,a\n1,2\n": "list.csv:1: wanted keys",
    "a,\n1,2\n": "list.csv:1: wanted keys",
    "a,b\n": "list.csv: no point",
    "a,b\n1,2\n3\n": "list.csv:3: wanted 2 cells",
    'a,b\n1,"x\ny"\n': "list.csv:3: a value of b must be of printed letters",
    "a,b\n1,\n": "list.csv:2: a value of b is empty",
}


@pytest.mark.parametrize("text", BAD_LISTS)
def test_a_list_that_is_wrong_is_named_with_its_line(text):
    with pytest.raises(ConfigError, match=BAD_LISTS[text]):
        rows_of_csv(text, "list.csv")


def test_a_key_that_stands_twice_and_too_many_points_are_refused():
    with pytest.raises(ConfigError, match="a is varied twice"):
        points_of([{"a": 1}], [("a", (2,))])
    with pytest.raises(ConfigError, match="at most 100000 points"):
        points_of([], [("a", range(MAX_POINTS)), ("b", (1, 2))])
