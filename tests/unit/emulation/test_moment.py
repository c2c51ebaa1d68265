"""Moments of a mailbox: what was held up is sent as of its own, and emulated time waits for it."""

import math
import os
import threading

import pytest

from coarse.emulation.envelope import Submission, unpack_submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Located, Push, Tables
from coarse.strategy.builtin import Coarse
from coarse.transport.mailbox import control_bytes

KEY = 5
PLACEMENT = Placement(
    client_nodes=(0,), device_nodes=(0,), local_proxies=(0,), ranks=(0, 1), planner=Coarse(), num_sync_groups=1
)
PUSH = Push(0, KEY, 1, 0, 0, 1, True)


@pytest.fixture
def box():
    """Client 0's mailbox, beside device 1 and the fabric."""
    control = memoryview(bytearray(control_bytes(3)))
    made = EmulatedMailbox(0, 3, (1, 2), control, f"test-moment-{os.getpid()}", placement=PLACEMENT)
    made.places.note(Tables(1, ((0, 0, 0, 1 << 20),)), 1)
    made.places.note(Located(0, KEY, 1, Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (4,), 0), 0, 0), 1)
    yield made
    made.close()


def bound(box) -> float:
    """What the fabric reads: negative where the endpoint listens."""
    return float(box._bounds[2])


@pytest.fixture
def submitted(box, monkeypatch) -> list[Submission]:
    """All transfers that are submitted."""
    found: list[Submission] = []
    monkeypatch.setattr(box, "post", lambda _, frame: found.append(unpack_submission(frame)))
    return found


def begins(submitted: list[Submission]) -> list[float]:
    """When each may begin."""
    return [submission.begin_s for submission in submitted]


def test_what_was_held_up_begins_when_it_was_asked_for(box, submitted):
    box.now_s = 1.0
    asked_s = box.moment_s()
    box.now_s = 3.0
    with box.as_of(asked_s):
        box.send(1, PUSH)
        assert box.at_s() == 1.0
    box.send(1, PUSH)
    assert begins(submitted) == [1.0, 3.0]


def test_another_thread_s_time_goes_on_meanwhile(box, submitted):
    box.now_s = 1.0
    within, goes_on = threading.Event(), threading.Event()

    def send_late() -> None:
        with box.as_of(0.5):
            within.set()
            goes_on.wait()
            box.send(1, PUSH)

    late = threading.Thread(target=send_late)
    late.start()
    within.wait()
    box.now_s = 2.0
    box.send(1, PUSH)
    goes_on.set()
    late.join()
    assert begins(submitted) == [2.0, 0.5]
    assert box.now_s == 2.0


def test_an_earlier_moment_within_another_is_left_again(box, submitted):
    box.now_s = 4.0
    with box.as_of(2.0):
        with box.as_of(1.0):
            box.send(1, PUSH)
        box.send(1, PUSH)
    assert begins(submitted) == [1.0, 2.0]


def test_while_a_worker_computes_nothing_is_submitted_before_it_is_through(box):
    box.go_on_until(2.5)
    assert (box.now_s, bound(box)) == (2.5, 2.5)
    box.go_on_until(1.0)
    assert (box.now_s, bound(box)) == (2.5, 2.5)


def test_whoever_waits_listens_and_submits_nothing_of_its_own(box):
    box.go_on_until(2.5)
    box.sleep(0.0)
    assert bound(box) == -math.inf


def test_whoever_waits_elsewhere_does_not_listen(box):
    with box.away():
        assert bound(box) == math.inf
    assert bound(box) == 0.0


def test_emulated_time_goes_no_further_than_what_was_held_up(box, submitted):
    box.now_s = 1.0
    asked_s = box.moment_s()
    box.go_on_until(5.0)
    assert bound(box) == 1.0
    with box.as_of(asked_s):
        box.send(1, PUSH)
    assert bound(box) == 5.0
    assert begins(submitted) == [1.0]


def test_a_bound_stays_where_it_is_while_the_ring_to_the_fabric_is_full(box):
    while not box.has_unsent:
        box.send(1, PUSH)
    box.go_on_until(3.0)
    assert bound(box) == 0.0
