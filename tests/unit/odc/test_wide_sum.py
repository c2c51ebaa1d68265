"""Sums over an absolute window of 80 bits: exact, in any order, and what does not fit."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.odc.wide_sum import SkippedValue, Unrepresentable, WideSum, combined

UNIT = Fraction(1, 2**62)


def empty(count: int, top: int = 18) -> WideSum:
    return WideSum(np.full((2, count), 77, np.int64), top)


def exact(values: list[float], unit: Fraction = UNIT) -> Fraction:
    """Each rounded to the window's unit, half to even, and then added."""
    return sum((round(Fraction(value) / unit) * unit for value in values), Fraction(0))


finite = st.floats(-(2.0**17), 2.0**17, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=30))
def test_a_sum_is_that_of_rational_numbers_rounded_once(values):
    found = empty(1)
    for number, value in enumerate(values):
        assert not found.add(np.array([value]), is_first=number == 0)
    wanted = exact(values)
    assert found.totals()[0] == wanted.numerator / wanted.denominator


@given(st.lists(st.floats(-(2.0**17), 2.0**17, width=32), min_size=2, max_size=30), st.randoms())
def test_any_order_and_any_grouping_gives_the_same_words(values, random):
    def total(order: list[float]) -> WideSum:
        made = empty(1)
        for number, value in enumerate(order):
            made.add(np.array([value], np.float32), is_first=number == 0)
        return made

    shuffled = list(values)
    random.shuffle(shuffled)
    cut = random.randint(1, len(values) - 1)
    grouped = total(shuffled[:cut])
    grouped.merge(total(shuffled[cut:]).words, is_first=False)
    np.testing.assert_array_equal(grouped.words, total(values).words)


def test_the_range_within_one_tensor_and_a_million_pieces():
    """1e-12 and 1e4 side by side, 2**20 times: the bound is half a unit for each piece."""
    values = np.array([1e-12, 1e4, -1e-12, 2.0**18 * (1 - 2.0**-24)])
    piece, total = empty(4), empty(4)
    piece.add(values, is_first=True)
    total.merge(piece.words, is_first=True)
    for _ in range(20):
        total.merge(total.words.copy(), is_first=False)
    for found, value in zip(total.totals(), values, strict=True):
        assert abs(Fraction(float(found)) - 2**20 * Fraction(float(value))) <= 2**20 * UNIT / 2
    assert total.totals()[1] == 2**20 * 1e4


def test_sums_above_two_to_the_53rd_are_rounded_once():
    found = empty(1)
    value = 2.0**17 + 2.0**-35
    found.add(np.array([value]), is_first=True)
    for _ in range(20):
        found.merge(found.words.copy(), is_first=False)
    wanted = exact([value]) * 2**20
    assert found.totals()[0] == wanted.numerator / wanted.denominator


@pytest.mark.parametrize("top", [-40, 0, 18, 60])
def test_the_window_moves_with_its_top(top):
    found = empty(2, top)
    below, above = np.nextafter(2.0**top, 0), 2.0**top
    assert found.add(np.array([below, above]), is_first=True) == [SkippedValue(1, Unrepresentable.ABOVE)]
    assert found.totals()[0] == below


def test_what_does_not_fit_is_found_in_every_block_and_counts_as_nothing():
    values = np.zeros(20_000, np.float32)
    places = {3: np.nan, 9_000: np.inf, 9_001: -np.inf, 19_999: -(2.0**18)}
    for place, value in places.items():
        values[place] = value
    found = empty(20_000)
    wanted = [SkippedValue(3, 0), SkippedValue(9_000, 1), SkippedValue(9_001, 2), SkippedValue(19_999, 4)]
    assert found.add(values, is_first=True) == wanted
    assert not found.totals().any()
    found.mark(wanted)
    totals = found.totals()
    assert np.isnan(totals[3])
    assert [totals[place] for place in (9_000, 9_001, 19_999)] == [np.inf, -np.inf, -np.inf]
    assert not np.delete(totals, list(places)).any()


def test_marks_combine_as_floating_point_does():
    assert combined(Unrepresentable.PLUS_INFINITY, Unrepresentable.ABOVE) == Unrepresentable.PLUS_INFINITY
    assert combined(Unrepresentable.PLUS_INFINITY, Unrepresentable.BELOW) == Unrepresentable.NAN
    assert combined(Unrepresentable.NAN, Unrepresentable.ABOVE) == Unrepresentable.NAN
    found = empty(1)
    found.add(np.zeros(1), is_first=True)
    found.mark([SkippedValue(0, Unrepresentable.ABOVE), SkippedValue(0, Unrepresentable.MINUS_INFINITY)])
    assert np.isnan(found.totals()[0])
