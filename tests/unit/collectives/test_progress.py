"""The progress thread: order within lanes, lanes beside each other, and how failures reach who waits."""

import contextlib
import threading

import pytest

from coarse.collectives import progress
from coarse.collectives.progress import ProgressThread
from coarse.errors import CapacityError, DeadRankError, MismatchError, StallError
from coarse.protocol.clock import WallClock


class Protocol:
    client = 3


class Link:
    """A line to devices of which nobody has died, until the test says so."""

    stall_timeout_s = 20.0
    protocol = Protocol()
    clock = WallClock()
    dead = None
    left: tuple[int, ...] = ()

    def left_of(self, members):
        return tuple(rank for rank in self.left if members is None or rank in members)

    def left_error(self, left, what):
        return DeadRankError(f"{what} needs {left}", rank=left[0])

    def note_thread(self, thread):
        pass

    def elsewhere(self):
        return contextlib.nullcontext()

    def wait_until(self, is_done, timeout_s):
        if self.dead is not None and not is_done():
            raise self.dead
        return is_done()


class Flag:
    """Something awaited that a test lets happen."""

    def __init__(self, *missing):
        self._is_set = threading.Event()
        self._missing = missing
        self.set = self._is_set.set

    def is_over(self):
        return self._is_set.is_set()

    def missing(self):
        return self._missing


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def thread(link):
    made = ProgressThread(link, "progress under test")
    yield made
    made.close()


def waiting_for(flag, done=lambda: None):
    def job():
        yield flag
        done()

    return job


def failing(error):
    def job():
        raise error

    return job


def test_jobs_of_a_lane_run_in_the_order_of_submission_each_after_the_last_has_ended(thread):
    order, flag = [], Flag()
    first = thread.submit("lane", waiting_for(flag, lambda: order.append("first")), "first")
    second = thread.submit("lane", lambda: order.append("second"), "second")
    thread.submit("other", flag.set, "flag").wait()
    second.wait()
    assert order == ["first", "second"]
    assert first.is_done()


def test_lanes_that_wait_for_each_other_in_a_circle_go_on(thread):
    one, two = Flag(), Flag()
    first = thread.submit("a", waiting_for(one, two.set), "a")
    second = thread.submit("b", lambda: one.set(), "b")
    third = thread.submit("b", waiting_for(two), "b")
    for pending in (third, second, first):
        pending.wait()


def test_a_wait_that_takes_too_long_names_who_is_lacking_and_may_be_repeated(thread):
    flag = Flag(5, 7)
    pending = thread.submit("lane", waiting_for(flag), "the gather of 'x'")
    with pytest.raises(
        StallError, match=r"rank 3: the gather of 'x' did not end within 0.2 s; it lacks ranks \[5, 7\]"
    ) as caught:
        pending.wait(0.2)
    assert caught.value.missing == (5, 7)
    assert not pending.is_done()
    flag.set()
    pending.wait()
    assert pending.is_done()


def test_the_dead_are_named_to_whom_waits(thread, link):
    pending = thread.submit("lane", waiting_for(Flag()), "x")
    link.dead = DeadRankError("worker 1 died", rank=1)
    with pytest.raises(DeadRankError, match="worker 1 died"):
        pending.wait()


@pytest.mark.parametrize("members", [None, (1, 3)])
def test_a_worker_that_has_shut_down_is_named_to_whom_needs_it(thread, link, monkeypatch, members):
    monkeypatch.setattr(progress, "LEFT_S", 0.0)
    link.left = (1,)
    pending = thread.submit("lane", waiting_for(Flag()), "x", members)
    with pytest.raises(DeadRankError, match=r"x needs \(1,\)"):
        pending.wait()


def test_a_worker_that_has_shut_down_may_have_done_its_part_and_may_not_be_needed(thread, link, monkeypatch):
    link.left = (1,)
    for members in ((2, 3), None):
        flag = Flag()
        threading.Timer(0.1, flag.set).start()  # what it sent is read a little later
        thread.submit("lane", waiting_for(flag), "x", members).wait()
        monkeypatch.setattr(progress, "LEFT_S", 20.0)


def test_what_ranks_refused_together_is_said_before_that_one_of_them_has_ended_for_it(thread, link):
    flag = Flag()
    pending = thread.submit("lane", refusing_after(flag), "x")
    link.dead = DeadRankError("worker 1 raised MismatchError", rank=1)
    threading.Timer(0.01, flag.set).start()  # what worker 1 had sent before is read a little later
    with pytest.raises(MismatchError, match="another order"):
        pending.wait()
    with pytest.raises(MismatchError, match="another order"):
        pending.wait()


def refusing_after(flag):
    def job():
        yield flag
        raise MismatchError("another order")

    return job


def test_a_failure_ends_its_lane_and_no_other(thread):
    broken = [thread.submit("lane", failing(ArithmeticError("broken")), "x"), thread.submit("lane", lambda: None, "y")]
    with pytest.raises(ArithmeticError, match="broken"):
        broken[0].wait()
    for pending in (broken[1], thread.submit("lane", lambda: None, "z")):
        with pytest.raises(ArithmeticError, match="broken"):
            pending.is_done()
    thread.submit("other", lambda: None, "x").wait()


def test_an_error_that_all_ranks_find_alike_ends_its_job_alone(thread):
    refused = thread.submit("lane", failing(CapacityError("full")), "x")
    after = thread.submit("lane", lambda: None, "y")
    with pytest.raises(CapacityError, match="full"):
        refused.wait()
    after.wait()


def test_callbacks_are_called_once_however_late_they_come(thread):
    flag, told = Flag(), []
    pending = thread.submit("lane", waiting_for(flag), "x")
    pending.when_over(lambda known: told.append(known))
    assert told == []
    flag.set()
    pending.wait()
    thread.submit("lane", lambda: None, "y").wait()
    pending.when_over(lambda known: told.append(known))
    assert told == [pending, pending]
    assert pending.failure is None


def test_closing_ends_what_is_left(thread):
    left = [thread.submit("lane", waiting_for(Flag()), "the sum of 'x'"), thread.submit("lane", lambda: None, "y")]
    thread.close()
    for pending in (*left, thread.submit("lane", lambda: None, "too late")):
        with pytest.raises(StallError, match="was given up"):
            pending.wait()


def test_a_thread_that_nobody_used_is_closed_as_well_and_one_may_close_itself(link):
    ProgressThread(link, "unused").close()
    thread, is_closed = ProgressThread(link, "closes itself"), threading.Event()

    def close():
        thread.close()
        is_closed.set()

    thread.submit("lane", close, "the end")
    assert is_closed.wait(20)


def test_a_lane_that_was_forgotten_may_be_used_anew(thread):
    left = thread.submit("lane", waiting_for(Flag()), "x")
    thread.forget("lane")
    with pytest.raises(StallError, match="given up"):
        left.wait()
    thread.submit("lane", lambda: None, "y").wait()


def test_messages_go_on_while_the_only_job_waits_for_memory_and_while_there_is_none(link):
    flag, driven = Flag(), threading.Semaphore(0)
    thread = ProgressThread(link, "driven", driven.release)
    pending = thread.submit("lane", waiting_for(flag), "what waits")
    assert all(driven.acquire(timeout=20) for _ in range(3))
    flag.set()
    pending.wait()
    while driven.acquire(blocking=False):
        pass
    assert all(driven.acquire(timeout=20) for _ in range(3))
    thread.close()
