import numpy as np
import pytest

from benchmarks.comparison import Measurement
from benchmarks.step_rows import MEMCPY, UNSYNCHRONISED, print_step_table, step_rows


def measured(contender, elapsed_s):
    return Measurement(contender, np.array([elapsed_s]), np.array([elapsed_s]))


def test_what_a_contender_adds_counts_from_the_unsynchronised_step():
    rows = step_rows(
        4,
        1024,
        [measured(UNSYNCHRONISED, 0.100), measured("DDP", 0.125), measured("coarse", 0.105), measured(MEMCPY, 0.002)],
    )
    assert [row.contender for row in rows] == [UNSYNCHRONISED, "DDP", "coarse"]
    assert [row.added_share for row in rows] == pytest.approx([0.0, 0.25, 0.05])
    assert rows[0].unsynchronised_memcpys == pytest.approx(50)


def test_the_table_has_a_line_for_each_batch_size(capsys):
    rows = []
    for size in (1, 16):
        rows += step_rows(size, 2**20, [measured(UNSYNCHRONISED, 0.1), measured("DDP", 0.2), measured(MEMCPY, 0.01)])
    print_step_table(rows, 2, 2)
    printed = capsys.readouterr().out
    assert printed.count("+100.0 %") == 2
    assert "1.0 MiB of gradients" in printed
