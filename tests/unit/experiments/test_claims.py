"""A verdict says how far ours is from what the paper states, and never calls an input a reproduction."""

import json
import math

import pytest

from experiments.coarse_paper.claims import Unit, Verdict, deviation_from, input_row, number_row, ordering_row
from experiments.coarse_paper.inputs import DECLARED, require_declared


def stated(ours, paper_range=(2.0, 2.0), **more):
    return number_row("c", "s", "p", paper_range, ours, Unit.TIMES, inputs=(), why="because", **more)


@pytest.mark.parametrize(("ours", "verdict"), [(2.19, "within 10 %"), (1.81, "within 10 %"), (2.21, "missed")])
def test_ten_per_cent_are_the_border(ours, verdict):
    assert stated([ours]).verdict == verdict


def test_a_value_inside_of_a_stated_range_deviates_by_nothing():
    assert stated([2.5], (2.0, 3.0)).deviation == 0.0


def test_of_several_values_the_farthest_counts():
    assert deviation_from((2.0, 3.0), [2.5, 1.0, 3.3], is_range_of_set=False) == pytest.approx(-0.5)


def test_the_range_of_a_set_is_held_end_against_end():
    assert stated([2.0, 2.1], (2.0, 3.0), is_range_of_set=True).deviation == pytest.approx(-0.3)


def test_a_reason_is_kept_where_a_number_is_missed_and_only_there():
    assert stated([2.0]).why == ""
    assert stated([3.0]).why == "because"


def test_an_order_holds_or_is_missed():
    both = [ordering_row("c", "s", "p", is_so, [1.0], Unit.TIMES, inputs=(), why="w") for is_so in (True, False)]
    holds, fails = both
    assert (holds.verdict, holds.why, holds.deviation) == (Verdict.ORDERING, "", None)
    assert (fails.verdict, fails.why) == (Verdict.MISSED, "w")


def test_what_went_in_is_no_reproduction():
    assert input_row("c", "s", "17x", [17.0], Unit.TIMES, inputs=(), why="w").verdict is Verdict.INPUT


def test_a_change_is_written_with_its_sign_and_a_range_with_both_ends():
    assert ordering_row("c", "s", "p", True, [0.8, 1.25], Unit.CHANGE, inputs=()).ours_text == "-20.0% to +25.0%"


def test_a_row_is_json_even_if_its_range_has_no_end():
    json.dumps(stated([3.0], (2.0, math.inf)).document(), allow_nan=False)


def test_each_input_is_declared_once_and_says_what_it_rests_on():
    names = [one.name for one in DECLARED]
    assert len(set(names)) == len(names)
    assert {one.basis for one in DECLARED} == {"source", "assumption"}


def test_an_input_that_nobody_declared_is_refused():
    with pytest.raises(ValueError, match="no declared input is called 'luck'"):
        require_declared(("compute", "luck"))
