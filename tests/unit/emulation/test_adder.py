"""The adder's time is emulated: work ends by the machine's rate, whenever this process comes to it."""

import pytest

from coarse.emulation.service import Adder


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


def test_work_is_handed_back_when_the_wall_clock_has_come_to_its_end(adder, pace):
    adder.give("a", 50, 1.0)
    assert adder.take_due() is None
    assert adder.wall_s_until_next() == pytest.approx(15.0)
    pace.at_s = 1.5
    assert adder.take_due() == (1.5, "a")
    assert adder.wall_s_until_next() is None


def test_one_thing_is_added_after_the_other(adder, pace):
    adder.give("a", 100, 0.0)
    adder.give("b", 100, 0.5)
    pace.at_s = 9.0
    assert [adder.take_due(), adder.take_due()] == [(1.0, "a"), (2.0, "b")]


def test_a_late_look_does_not_shift_what_comes_after(adder, pace):
    adder.give("a", 100, 0.0)
    pace.at_s = 5.0
    due_s, _ = adder.take_due()
    adder.give("b", 100, due_s)
    assert adder.take_due() == (2.0, "b")


def test_what_is_held_does_not_keep_the_adder_busy(adder, pace):
    adder.hold("stored", 3.0)
    adder.give("a", 100, 0.0)
    pace.at_s = 3.0
    assert [adder.take_due(), adder.take_due()] == [(1.0, "a"), (3.0, "stored")]
