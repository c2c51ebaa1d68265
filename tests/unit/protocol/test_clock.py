"""What the clocks do, without waiting for any."""

import pytest

from coarse.protocol import clock
from coarse.protocol.clock import VirtualClock, WallClock


def test_the_wall_clock_sleeps_for_as_long_as_it_is_told_and_tells_the_systems_time(monkeypatch):
    slept_s = []
    monkeypatch.setattr(clock, "_sleep", slept_s.append)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: 7.5)
    WallClock().sleep_s(0.25)
    assert slept_s == [0.25]
    assert WallClock().now_s() == 7.5


def test_a_script_s_sleep_may_be_another_and_the_clock_s_own_stays(monkeypatch):
    found = []
    monkeypatch.setattr(clock.time, "sleep", clock.time.sleep)  # given back at the end
    clock.replace_sleep(found.append)
    clock.time.sleep(3.0)
    WallClock().sleep_s(0.0)
    assert found == [3.0]


def test_virtual_time_jumps_forward_and_never_back():
    virtual = VirtualClock()
    for now_s in (1.5, 1.5, 4.0):
        virtual.advance_to(now_s)
        assert virtual.now_s() == now_s
    with pytest.raises(ValueError, match=r"4\.0 s and cannot go back to 3\.0 s"):
        virtual.advance_to(3.0)
