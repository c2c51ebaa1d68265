"""Logs of transfers against one another: what counts as the same, and which orders are no accident."""

import pytest

from tests.support.transfer_log import PUSH, READY, SET_OUT, always_before, require_alike

A, B = (READY, 1, 0), (READY, 2, 0)
SENT_A, SENT_B = (SET_OUT, 1, 0, "workers"), (SET_OUT, 2, 0, "workers")
PUSHES = [(PUSH, 1, 0, 3), (PUSH, 1, 1, 3)]


def test_what_came_first_in_every_log_is_waited_for():
    overlapping, held = [A, SENT_A, B, SENT_B], [A, B, SENT_A, SENT_B]
    assert (B, SENT_A) in always_before([held])
    assert (SENT_A, B) in always_before([overlapping])
    assert {(B, SENT_A), (SENT_A, B)}.isdisjoint(always_before([overlapping, held]))
    assert always_before([PUSHES]) == set()  # shards of their own


def test_other_events_and_another_order_are_told_and_chance_is_not():
    require_alike({"worker 0": [A, SENT_A, B, SENT_B]}, [{"worker 0": [A, SENT_A, B, SENT_B]}])
    with pytest.raises(AssertionError, match="the second of these came before the first"):
        require_alike({"worker 0": [A, SENT_A, B, SENT_B]}, [{"worker 0": [A, B, SENT_A, SENT_B]}])
    with pytest.raises(AssertionError, match="only simulated"):
        require_alike({"worker 0": [A]}, [{"worker 0": [A, SENT_A]}])
    require_alike({"worker 0": [A, *PUSHES]}, [{"worker 0": [A, *reversed(PUSHES)]}])


def test_equal_events_are_counted():
    twice = [(PUSH, 1, 0, 3)] * 2
    require_alike({"device 0": twice}, [{"device 0": twice}])
    with pytest.raises(AssertionError, match="only simulated"):
        require_alike({"device 0": twice[:1]}, [{"device 0": twice}])
