"""Where two lines cross: worked out by hand, with ties, gaps and logarithms."""

import itertools

import pytest

from coarse.cli.report.sweep.crossover import LINEAR, Axes, crossings, is_log, moved, sentences, unmoved


def places(xs, first, second, axes=LINEAR):
    """(x, between, whether the first is lower beyond) of every crossing."""
    found = crossings(xs, first, second, axes)
    return [(pytest.approx(one.x), one.between, one.is_first_lower) for one in found]


def test_straight_lines_cross_where_algebra_says():
    # 3 x and 10 + x meet at 5, on 15
    xs = [0, 2, 4, 6, 8]
    (found,) = crossings(xs, [3 * x for x in xs], [10 + x for x in xs])
    assert (found.x, found.y) == (pytest.approx(5), pytest.approx(15))
    assert (found.between, found.is_first_lower) == ((4, 6), False)


def test_lines_straight_in_the_logarithm_cross_there_only_if_it_is_drawn():
    # log10 x and 1: they meet at 10, in the middle of 1 and 100 by logarithms
    assert places([1, 100], [0, 2], [1, 1], Axes(log_x=True)) == [(10, (1, 100), False)]
    assert places([1, 100], [0, 2], [1, 1]) == [(50.5, (1, 100), False)]


def test_powers_cross_where_algebra_says_if_both_axes_are_logarithmic():
    # x and 8 / x^2 meet at 2
    xs = [1, 3, 9]
    (found,) = crossings(xs, xs, [8 / x**2 for x in xs], Axes(log_x=True, log_y=True))
    assert (found.x, found.y) == (pytest.approx(2), pytest.approx(2))


def test_several_crossings_come_in_order_and_in_turns():
    found = places([0, 1, 2, 3], [0, 2, 0, 2], [1, 1, 1, 1])
    assert found == [(0.5, (0, 1), False), (1.5, (1, 2), True), (2.5, (2, 3), False)]


def test_lines_that_meet_in_a_point_cross_in_it():
    assert places([0, 1, 2], [0, 1, 2], [2, 1, 0]) == [(1, (1, 1), False)]


def test_lines_that_are_equal_for_a_while_cross_where_they_part():
    assert places([0, 1, 2, 3], [0, 1, 1, 2], [2, 1, 1, 0]) == [(2, (2, 2), False)]


def test_lines_that_touch_or_begin_or_end_equal_do_not_cross():
    assert not places([0, 1, 2], [1, 1, 1], [2, 1, 2])
    assert not places([0, 1, 2], [1, 1, 1], [1, 1, 2])
    assert not places([0, 1, 2], [1, 1, 1], [2, 1, 1])
    assert not places([0, 1], [1, 1], [1, 1])


def test_a_rounding_error_is_no_crossing():
    assert not places([0, 1], [1.0, 1.0], [1.0 + 1e-15, 1.0 - 1e-15])


def test_missing_points_are_left_out_and_the_neighbours_that_remain_are_named():
    assert places([0, 1, 2, 3, 4], [0, None, 2, 3, 4], [2, 2, None, 2, None]) == [(2, (0, 3), False)]
    assert not places([0, 1], [0, None], [None, 1])
    assert not places([], [], [])


def test_a_crossing_lies_between_its_points_and_sides_change_there_only():
    for signs in itertools.product((-1, 0, 1), repeat=5):
        xs = list(range(5))
        found = crossings(xs, [10 + sign for sign in signs], [10] * 5)
        clear = [sign for sign in signs if sign]
        changes = [sign for before, sign in itertools.pairwise(clear) if sign != before]
        assert [one.is_first_lower for one in found] == [sign < 0 for sign in changes]
        assert all(one.between[0] <= one.x <= one.between[1] for one in found)
        assert [one.x for one in found] == sorted(one.x for one in found)


@pytest.mark.parametrize(("xs", "ys"), [([1, 1], [1, 2]), ([2, 1], [1, 2]), ([1, 2, 3], [1, 2])])
def test_xs_that_do_not_grow_are_refused(xs, ys):
    with pytest.raises(ValueError, match="wanted xs that grow"):
        crossings(xs, ys, ys)


def test_a_logarithm_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        crossings([0, 1], [0, 2], [1, 1], Axes(log_x=True))


def test_numbers_that_span_much_are_drawn_by_logarithms():
    assert is_log([0.1, 1000])
    assert not is_log([1, 2, 4])
    assert not is_log([0, 1000])
    assert not is_log([])


def said(first, second, low_is_fast=True, xs=(1, 2, 3)):
    """The sentences on two lines, coarse and allreduce."""
    names = ("coarse", "allreduce")
    return list(sentences("batch", names, xs, (first, second), axes=LINEAR, low_is_fast=low_is_fast))


def test_a_sentence_names_the_crossing_its_points_and_who_is_faster_beyond():
    wanted = "from batch = 2.5 on allreduce is faster than coarse (between the points 2 and 3)"
    assert said([1, 1, 1], [4, 2, 0]) == [wanted]
    assert said([4, 2, 0], [1, 1, 1], low_is_fast=False) == [wanted]


def test_without_a_crossing_a_sentence_says_who_is_never_faster_and_by_how_much():
    wanted = "allreduce is never faster than coarse in this range (batch = 1 to 3): coarse is 2 to 4 times as fast"
    assert said([1, 1, 1], [4, 2, 3]) == [wanted]
    assert said([4, 2, 3], [1, 1, 1], low_is_fast=False) == [wanted]


def test_equal_lines_and_lines_without_common_points_are_said_to_be_so():
    assert said([1, 2, 3], [1, 2, 3]) == ["coarse and allreduce are equally fast in this range (batch = 1 to 3)"]
    (text,) = said([1, None, None], [1, None, 3])
    assert text == "coarse and allreduce have fewer than two points in common, so no crossing is known"


def test_lines_that_hardly_change_are_said_to():
    names, lines = ("coarse", "dense", "one", "same"), ([1.0, 1.005], [1.0, 1.1], [1.0, None], [2.0, 2.0])
    assert list(unmoved("batch", names, [1, 2], lines)) == [
        "batch from 1 to 2 changes coarse by 0.50%, same not at all"
    ]
    assert list(unmoved("batch", names[:1], [1, 2], lines[:1])) == [
        "batch from 1 to 2 hardly matters: it changes coarse by 0.50%"
    ]
    assert not list(unmoved("batch", names[1:2], [1, 2], lines[1:2]))


def test_crossings_under_other_inputs_span_from_the_first_to_the_last():
    xs, flat = [0, 10], [5, 5]
    samples = [([0, 20], flat), ([0, 50], flat), ([6, 16], flat)]
    (text,) = moved("x", ("one", "two"), xs, ([0, 10], flat), samples, LINEAR)
    assert text == "one and two cross between x = 1 and 5 under 4 sets of inputs; under 1 of 4 there is none"


def test_lines_that_never_cross_under_any_inputs_are_said_so_and_nothing_without_inputs():
    (text,) = moved("x", ("one", "two"), [0, 1], ([1, 1], [2, 2]), [([1, 1], [3, 3])], LINEAR)
    assert text == "one and two do not cross under any of 1 other inputs either"
    assert not list(moved("x", ("one", "two"), [0, 1], ([1, 1], [2, 2]), (), LINEAR))
