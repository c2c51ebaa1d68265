"""Which variables' values differ between ranks, in words."""

import numpy as np
import pytest

from tf_strategy.agreement.equal_starts import _digest, differing, listed, told


def test_variables_that_differ_on_any_rank_are_found_and_the_others_are_not():
    assert differing([{1: 5, 2: 6, 9: 7}, {1: 5, 2: 6, 9: 7}]) == []
    assert differing([{9: 7, 1: 5, 2: 6}, {1: 5, 2: 6, 9: 7}, {1: 4, 2: 6, 9: 8}]) == [1, 9]


def test_a_variable_that_one_rank_alone_still_has_is_not_compared():
    assert differing([{1: 5, 2: 6}, {2: 6}]) == []


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["kernel"], "'kernel'"),
        (["kernel", "bias", "last"], "'kernel', 'bias', 'last'"),
        (["a", "b", "c", "d", "e"], "'a', 'b', 'c' and 2 more"),
    ],
)
def test_three_names_are_listed_and_more_are_counted(names, text):
    assert listed(names) == text
    assert f"the values of {text} differ between ranks" in told(names)


@pytest.mark.parametrize("array", [np.float32(1), np.zeros((0, 3)), np.ones((3, 4)).T, np.arange(4, dtype=np.int64)])
def test_a_digest_is_that_of_an_array_s_values(array):
    assert _digest(np.asarray(array)) == _digest(np.array(array))
    assert _digest(np.ones(3)) != _digest(np.array([1.0, 1.0, 1.0 + 1e-15]))
