"""The adder's time is emulated: work ends by the machine's rate, whenever this process comes to it."""

import pytest

from coarse.emulation.adder import Adder


class StillPace:
    """A pace whose wall clock a test moves."""

    def __init__(self):
        self.at_s = 0.0

    def now_s(self):
        return self.at_s

    def wall_s_until(self, emulated_s):
        return (emulated_s - self.at_s) * 10


@pytest.fixture
def pace():
    return StillPace()


@pytest.fixture
def adder(pace):
    return Adder(pace, 100.0)


@pytest.fixture
def done():
    return []


def doing(done, what):
    return lambda due_s: done.append((due_s, what))


def test_what_was_added_is_due_when_the_wall_clock_has_come_to_its_end(adder, pace, done):
    adder.add(50, 1.0, doing(done, "a"))
    adder.run_due()
    assert done == []
    assert adder.wall_s_until_next() == pytest.approx(15.0)
    pace.at_s = 1.5
    adder.run_due()
    assert done == [(1.5, "a")]
    assert adder.wall_s_until_next() is None


def test_one_thing_is_added_after_the_other(adder, pace, done):
    adder.add(100, 0.0, doing(done, "a"))
    adder.add(100, 0.5, doing(done, "b"))
    pace.at_s = 9.0
    adder.run_due()
    assert done == [(1.0, "a"), (2.0, "b")]


def test_a_late_look_does_not_shift_what_comes_after(adder, pace, done):
    adder.add(100, 0.0, lambda due_s: adder.add(100, due_s, doing(done, "b")))
    pace.at_s = 5.0
    adder.run_due()
    assert done == [(2.0, "b")]


def test_what_takes_no_adding_does_not_keep_the_adder_busy(adder, pace, done):
    adder.at(3.0, doing(done, "stored"))
    adder.add(100, 0.0, doing(done, "a"))
    pace.at_s = 3.0
    adder.run_due()
    assert done == [(1.0, "a"), (3.0, "stored")]
