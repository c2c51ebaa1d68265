"""Sums in a fixed order, in the accumulator type, rounded once."""

import numpy as np
import pytest

from coarse.collectives.slice_sum import SliceSum
from coarse.protocol.dtypes import DType, Op


def test_halves_add_in_float32_and_are_rounded_once():
    """1 + 2048 ones of 2**-11 each is 2; in float16 every single sum would round to 1."""
    how = SliceSum(DType.FLOAT16, Op.SUM, 2049)
    small = [np.full(1, 2.0**-11, np.float16)] * 1024
    on_nodes = [how.of_members([np.ones(1, np.float16), *small]), how.of_members(small)]
    assert on_nodes[0].dtype == how.accumulator == np.float32
    assert how.of_nodes(on_nodes) == np.float16(2)


def test_an_average_is_the_sum_divided_by_the_number_of_contributions():
    how = SliceSum(DType.FLOAT64, Op.AVERAGE, 3)
    sums = [how.of_members([np.array([1.0, 2.0]), np.array([3.0, 5.0])]), how.of_members([np.array([5.0, 5.0])])]
    np.testing.assert_array_equal(how.of_nodes(sums), [3.0, 4.0])


def test_contributions_are_added_in_the_order_given():
    how = SliceSum(DType.FLOAT32, Op.SUM, 3)
    one, big = np.ones(1, np.float32), np.full(1, 2.0**25, np.float32)
    assert how.of_members([one, big, -big]) == 0
    assert how.of_members([big, -big, one]) == 1


def test_contributions_are_never_written_to():
    how = SliceSum(DType.INT32, Op.MAX, 2)
    first, second = np.array([1, 9], np.int32), np.array([4, 2], np.int32)
    np.testing.assert_array_equal(how.of_nodes([how.of_members([first, second])]), [4, 9])
    np.testing.assert_array_equal(first, [1, 9])


def test_an_average_of_integers_is_refused():
    with pytest.raises(TypeError, match="average of int32 would be rounded"):
        SliceSum(DType.INT32, Op.AVERAGE, 2)
