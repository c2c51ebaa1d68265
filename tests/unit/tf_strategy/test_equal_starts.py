"""Which variables' first values differ between ranks, in words."""

import numpy as np

from tf_strategy.equal_starts import difference_of

NAMES = ["kernel", "bias", "momentum", "other", "last"]


def test_variables_that_differ_are_named_and_the_others_are_not():
    text = difference_of(NAMES, [np.array([1, 2, 3, 4, 5]), np.array([1, 9, 3, 4, 8])])
    assert "'bias', 'last' differ between ranks" in text
    assert "kernel" not in text


def test_many_variables_are_counted():
    assert "'kernel', 'bias', 'momentum' and 2 more differ" in difference_of(NAMES, [np.zeros(5), np.ones(5)])


def test_ranks_with_different_numbers_of_variables_are_told_so():
    assert "[5, 4] on ranks [0, 1]" in difference_of(NAMES, [np.zeros(5), np.zeros(4)])
