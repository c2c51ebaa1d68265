"""What the clocks do, without waiting for any."""

import threading

import pytest

from coarse.protocol import clock
from coarse.protocol.clock import VirtualClock, WallClock


def test_the_wall_clock_sleeps_for_as_long_as_it_is_told_and_tells_the_systems_time(monkeypatch):
    slept_s = []
    monkeypatch.setattr(clock, "_sleep", slept_s.append)
    monkeypatch.setattr(clock, "_perf_counter", lambda: 7.5)
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


def test_a_script_s_clocks_may_go_by_another_and_those_of_other_threads_stay(monkeypatch):
    for name, told in (("perf_counter", 7.0), ("time", 100.0), ("perf_counter_ns", 7), ("time_ns", 100)):
        monkeypatch.setattr(clock.time, name, lambda told=told: told)
    own_s, shown = [3.0], []
    give_back = clock.replace_time(lambda: own_s[0])
    own_s[0] += 0.5
    script = clock.time
    assert (script.perf_counter(), script.time()) == (7.5, 100.5)
    assert (script.perf_counter_ns(), script.time_ns()) == (7_500_000_000, 100_500_000_000)
    other = threading.Thread(target=lambda: shown.extend([script.perf_counter(), script.time_ns()]))
    other.start()
    other.join()
    assert shown == [7.0, 100]
    give_back()
    assert (script.perf_counter(), script.time(), script.time_ns()) == (7.0, 100.0, 100)


def test_virtual_time_jumps_forward_and_never_back():
    virtual = VirtualClock()
    for now_s in (1.5, 1.5, 4.0):
        virtual.advance_to(now_s)
        assert virtual.now_s() == now_s
    with pytest.raises(ValueError, match=r"4\.0 s and cannot go back to 3\.0 s"):
        virtual.advance_to(3.0)
