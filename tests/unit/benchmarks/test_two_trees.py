"""The interval of a median, and ratios of jobs that take turns."""

import io
import json
import random
from itertools import product
from pathlib import Path
from statistics import median

import pytest

from benchmarks.two_trees import Job, buckets, cases, compare, interval_of_median


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


class Alike:
    """A job that takes its tree's time for every case, times how slow the machine is at that moment."""

    def __init__(self, seconds, slowness):
        self.seconds, self.slowness, self.turns = seconds, slowness, 0

    def take_turn(self, case):
        self.turns += 1
        return self.seconds * next(self.slowness)


def test_what_disturbs_all_jobs_alike_drops_out_of_a_starts_ratios():
    slowness = iter([1.0] * 66 + [3.0] * 33 + [0.5] * 66)  # each round is 33 turns, of which 66 warm up
    jobs = {"older": Alike(2.0, slowness), "new": Alike(3.0, slowness), "older again": Alike(2.0, slowness)}
    found = compare(jobs, cases(), 3, random.Random(0))
    assert set(found) == set(cases())
    assert set(found.values()) == {(1.5, 1.0)}
    assert {job.turns for job in jobs.values()} == {5 * len(found)}


def test_one_bad_round_does_not_move_a_starts_ratio():
    jobs = {
        name: Alike(1.0, iter([1.0] * 22 + [99.0 if name == "new" else 1.0] * 11 + [1.0] * 22))
        for name in ("older", "new", "older again")
    }
    assert set(compare(jobs, cases(), 3, random.Random(0)).values()) == {(1.0, 1.0)}


def test_workloads_may_be_chosen():
    assert [(case.workload, case.way) for case in cases(["1MiB"])] == [
        ("1MiB", "coarse, copy"),
        ("1MiB", "coarse, device"),
    ]
    assert [case.way for case in cases(["step"])] == ["coarse, step"]
    assert len(cases()) == 11


def test_buckets_hold_all_elements_of_their_workload():
    assert {name: sum(numels) for name, numels in buckets().items()} == {
        "4KiB": 2**10,
        "256KiB": 2**16,
        "1MiB": 2**18,
        "16MiB": 2**22,
        "resnet50": 25_557_032,
    }


def test_a_job_that_ends_is_named():
    told = io.StringIO()
    with pytest.raises(SystemExit, match=r"/older gave no time .*4KiB"):
        Job(Path("/older"), [told]).take_turn(cases()[0])
    assert json.loads(told.getvalue()) == ["4KiB", "coarse, copy", 100]
