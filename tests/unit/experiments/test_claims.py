"""A verdict says how far ours is from what the paper states, and never calls an input a reproduction."""

import json
import math

import pytest

from experiments.coarse_paper.inputs import DECLARED
from experiments.fcdp_paper.inputs import DECLARED as FCDP_DECLARED
from experiments.validation.claims import Given, Listed, Number, Order, Unit, Verdict, claim_row, deviation_from
from experiments.validation.declared import ASSUMED, DERIVED, SOURCED, require_declared


def row(stated, ours, unit=Unit.TIMES):
    return claim_row("c", "s", "p", stated, ours, unit, inputs=(), why="because")


def number(ours, low=2.0, high=2.0, **more):
    return row(Number(low, high, **more), ours)


@pytest.mark.parametrize(("ours", "verdict"), [(2.19, "within 10 %"), (1.81, "within 10 %"), (2.21, "missed")])
def test_ten_per_cent_are_the_border(ours, verdict):
    assert number([ours]).verdict == verdict


def test_a_value_inside_of_a_stated_range_deviates_by_nothing():
    assert number([2.5], 2.0, 3.0).deviation == 0.0


def test_of_several_values_the_farthest_counts():
    assert deviation_from(Number(2.0, 3.0), [2.5, 1.0, 3.3]) == pytest.approx(-0.5)


def test_the_range_of_a_set_is_held_end_against_end():
    assert number([2.0, 2.1], 2.0, 3.0, is_of_set=True).deviation == pytest.approx(-0.3)


def test_a_reason_is_kept_where_a_number_is_missed_and_only_there():
    assert number([2.0]).why == ""
    assert number([3.0]).why == "because"


def test_an_order_holds_or_is_missed():
    holds, fails = (row(Order(is_so), [1.0]) for is_so in (True, False))
    assert (holds.verdict, holds.why, holds.deviation) == (Verdict.ORDERING, "", None)
    assert (fails.verdict, fails.why) == (Verdict.MISSED, "because")


def test_what_went_in_is_no_reproduction():
    given = row(Given(), [17.0])
    assert (given.verdict, given.why, given.paper_range) == (Verdict.INPUT, "because", None)


def test_a_change_is_written_with_its_sign_and_a_range_with_both_ends():
    assert row(Order(True), [0.8, 1.25], Unit.CHANGE).ours_text == "-20.0% to +25.0%"


def test_a_row_is_json_even_if_its_range_has_no_end():
    json.dumps(number([3.0], 2.0, math.inf).document(), allow_nan=False)


def test_each_input_is_declared_once_and_says_what_it_rests_on():
    names = [one.name for one in DECLARED]
    assert len(set(names)) == len(names)
    assert {one.basis for one in DECLARED} == {SOURCED, DERIVED, ASSUMED}
    fitted = {one.name: one.basis for one in FCDP_DECLARED if one.basis not in (SOURCED, ASSUMED)}
    assert fitted == {"border": "fitted to Fig. 2, RDMA, 2 nodes"}


def test_an_input_that_nobody_declared_is_refused():
    with pytest.raises(ValueError, match="no declared input is called 'luck'"):
        require_declared(("compute", "luck"), DECLARED)


def test_whole_numbers_are_exact_or_missed_and_shown_one_by_one():
    same, other = row(Listed((8, 0)), [8, 0], Unit.COUNT), row(Listed((8, 0)), [8, 4], Unit.COUNT)
    assert (same.verdict_text, other.verdict_text) == ("exact", "missed")
    assert other.ours_text == "8 / 4"
    assert (same.why, other.why) == ("", "because")


def test_a_row_may_have_a_tolerance_of_its_own_and_says_so():
    assert number([2.15], tolerance=0.08).verdict_text == "within 8 %"
    assert number([2.17], tolerance=0.08).verdict_text == "missed"


def test_shares_may_be_compared_by_points():
    near = row(Number(0.905, 0.905, tolerance=0.05, is_points=True), [0.86], Unit.SHARE)
    assert (near.verdict_text, near.deviation_text) == ("within 5 points", "-4.5 pt")
    assert row(Number(0.905, 0.905, tolerance=0.05, is_points=True), [0.85], Unit.SHARE).verdict is Verdict.MISSED
