import json

import numpy as np

from benchmarks.comparison import Measurement, rows_of
from benchmarks.rendering import milliseconds, percent, print_table, times, write_json
from benchmarks.sync_table import print_sync_table
from benchmarks.workloads import Effort, single_tensor


def test_numbers_keep_three_digits_that_matter():
    assert [milliseconds(s) for s in (1.2345e-5, 1.2345e-4, 1.2345e-3, 1.2345e-2, 1.2345)] == [
        "0.0123",
        "0.123",
        "1.23",
        "12.3",
        "1234",
    ]


def test_a_missing_number_is_a_dash():
    assert (milliseconds(None), times(None), percent(None)) == ("-", "-", "-")


def test_shares_carry_their_sign():
    assert (percent(0.031), percent(-0.5)) == ("+3.1 %", "-50.0 %")


def test_a_table_is_markdown_that_never_wraps(capsys):
    print_table("title", ["name", "x" * 60], [["a" * 60, "1"]])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 3
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["a" * 60, "1"]


def test_the_sync_table_shows_only_contenders_that_ran(capsys):
    rows = []
    for size in ("4KiB", "1MiB"):
        found = [
            Measurement(name, np.array([s]), np.array([s])) for name, s in (("Gloo", 0.006), ("coarse, device", 0.001))
        ]
        rows += rows_of(single_tensor(size), Effort(1, 1), found)
    print_sync_table(rows, 2, 2)
    printed = capsys.readouterr().out
    assert "Open MPI |" not in printed.split("Ratios")[0]
    assert printed.count("6.00x") == 2


def test_a_report_can_be_read_again(tmp_path):
    path = write_json("sync", {"kind": "measured", "rows": [1]}, tmp_path / "results")
    assert json.loads(path.read_text()) == {"kind": "measured", "rows": [1]}
