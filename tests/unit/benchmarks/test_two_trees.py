"""The interval of a median, and ratios in units of each run's control."""

from itertools import product
from pathlib import Path
from statistics import median

import pytest

from benchmarks import two_trees
from benchmarks.two_trees import compare, control_of, interval_of_median


@pytest.mark.parametrize("number", [6, 7, 10, 13])
def test_the_interval_holds_the_median_as_often_as_it_says_and_no_narrower_one_does(number):
    values = list(range(number))
    low, high = interval_of_median(values)
    # the median lies between the two unless too many of the values fell on one side of it
    sides = [sum(side) for side in product((0, 1), repeat=number)]
    missed = sum(not low < above <= high for above in sides) / len(sides)
    missed_by_narrower = sum(not low + 1 < above <= high - 1 for above in sides) / len(sides)
    assert missed <= 0.05 < missed_by_narrower


def test_the_interval_does_not_depend_on_the_order_of_values():
    values = [1.2, 0.9, 1.0, 1.1, 0.95, 1.05, 0.97, 1.3, 0.8, 1.01]
    low, high = interval_of_median(values)
    assert (low, high) == interval_of_median(sorted(values)) == (0.9, 1.2)
    assert low < median(values) < high


def test_too_few_values_are_refused():
    with pytest.raises(ValueError, match="5 values are too few"):
        interval_of_median([1.0] * 5)


def test_a_control_is_of_the_same_workload():
    times = {("4KiB", "coarse, copy"): 3.0, ("4KiB", "memcpy"): 1.0, ("1MiB", "memcpy"): 2.0}
    assert (control_of(times, "4KiB"), control_of(times, "1MiB")) == (1.0, 2.0)


def test_a_slow_moment_of_the_machine_drops_out_in_units_of_the_control(monkeypatch):
    older, slowness = Path("/older"), iter([1.0, 4.0, 2.0, 1.0])

    def times_of(tree, part):
        factor = next(slowness)
        return {("w", "memcpy"): factor, ("w", "coarse, copy"): factor * (3.0 if tree == older else 6.0)}

    monkeypatch.setattr(two_trees, "times_of", times_of)
    rows = {row.contender: row for row in compare("tensors", older, 2)}
    assert rows["coarse, copy"].ratios == [8.0, 4.0]
    assert rows["coarse, copy"].in_controls == [2.0, 2.0]
    assert rows["memcpy"].in_controls == [1.0, 1.0]
