"""When changes at seconds of the run come true in emulated time."""

from coarse.emulation.run_clock import RunClock
from coarse.hardware.degradation import RateChange

EARLY, LATE = RateChange(1.0, 0, 5.0), RateChange(2.5, 1, 7.0)


def test_nothing_happens_before_the_run_has_begun():
    clock = RunClock([RateChange(0.0, 0, 5.0)])
    assert clock.next_s() is None
    assert clock.take_due(1e9) == []
    clock.set(100.0, 0.0, goes=True)
    assert clock.take_due(100.0) == [RateChange(100.0, 0, 5.0)]


def test_changes_come_at_their_seconds_while_the_run_goes():
    clock = RunClock([EARLY, LATE])
    clock.set(100.0, 0.5, goes=True)
    assert clock.next_s() == 100.5
    assert clock.take_due(100.4) == []
    assert clock.take_due(101.0) == [EARLY._replace(at_s=100.5)]
    assert clock.next_s() == 102.0


def test_a_run_that_stands_gets_no_older():
    clock = RunClock([EARLY, LATE])
    clock.set(100.0, 0.0, goes=True)
    clock.set(101.5, 1.5, goes=False)
    assert clock.take_due(500.0) == [EARLY._replace(at_s=101.5)]
    assert clock.next_s() is None
    clock.set(600.0, 1.5, goes=True)
    assert clock.take_due(601.0) == [LATE._replace(at_s=601.0)]
    assert clock.next_s() is None
