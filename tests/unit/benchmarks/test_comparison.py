import json

import numpy as np
import pytest

from benchmarks.comparison import Measurement, ratios_of, rows_of
from benchmarks.workloads import Effort, single_tensor

WORKLOAD = single_tensor("4KiB")
EFFORT = Effort(3, 32)


def measured(contender, *elapsed_s):
    return Measurement(contender, np.array(elapsed_s), np.array(elapsed_s) * 2)


def test_a_row_holds_the_median_and_not_the_mean():
    (row,) = rows_of(WORKLOAD, EFFORT, [measured("Gloo", 1.0, 2.0, 60.0)])
    assert (row.median_s, row.fastest_s, row.slowest_s, row.median_cpu_s) == (2.0, 1.0, 60.0, 4.0)


def test_ratios_count_from_each_peer_of_the_same_workload():
    rows = rows_of(WORKLOAD, EFFORT, [measured("Gloo", 6.0), measured("coarse, device", 2.0), measured("memcpy", 1.0)])
    (ratio,) = ratios_of(rows)
    assert ratio["times_faster_than_gloo"] == pytest.approx(3.0)
    assert ratio["memcpys"] == pytest.approx(2.0)


def test_a_peer_that_was_not_measured_gives_no_ratio():
    (ratio,) = ratios_of(rows_of(WORKLOAD, EFFORT, [measured("coarse, copy", 2.0)]))
    assert ratio["times_faster_than_open_mpi"] is None


def test_rows_are_json():
    (row,) = rows_of(WORKLOAD, EFFORT, [measured("Gloo", 1.0)])
    assert json.loads(json.dumps(row.as_json()))["workload"] == "4KiB"


def test_the_bare_sum_is_a_yardstick_like_the_memcpy():
    rows = rows_of(WORKLOAD, EFFORT, [measured("coarse, device", 3.0), measured("bare sum", 2.0)])
    (ratio,) = ratios_of(rows)
    assert (ratio["bare_sums"], ratio["memcpys"]) == (pytest.approx(1.5), None)
