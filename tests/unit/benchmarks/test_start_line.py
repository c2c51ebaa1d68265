import threading

import numpy as np
import pytest

from benchmarks.start_line import SLOT_NUMBERS, StartLine


def test_nobody_leaves_before_the_last_has_come():
    slots = np.zeros((3, SLOT_NUMBERS), dtype=np.int64)
    log = []

    def run(worker):
        line = StartLine(slots, worker, timeout_s=30)
        for turn in range(5):
            log.append((turn, "came"))
            line.start_together()
            log.append((turn, "left"))
            line.wait()

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == [(turn, what) for turn in range(5) for what in ("came",) * 3 + ("left",) * 3]


def test_one_worker_alone_never_waits():
    line = StartLine(np.zeros((1, SLOT_NUMBERS), dtype=np.int64), 0, timeout_s=0)
    for _ in range(3):
        line.start_together()


def test_a_worker_that_stays_away_is_named():
    line = StartLine(np.zeros((3, SLOT_NUMBERS), dtype=np.int64), 1, timeout_s=0)
    with pytest.raises(TimeoutError, match=r"worker 1 waited 0 s .* for workers \[0, 2\]"):
        line.wait()
