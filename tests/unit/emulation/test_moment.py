"""What a GPU has held up is sent as of the emulated time at which it was asked for, whatever has happened since."""

import os
import threading

import pytest

from coarse.emulation.envelope import Submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.pace import Pace
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
    made = EmulatedMailbox(
        0, 3, (1, 2), control, f"test-moment-{os.getpid()}", placement=PLACEMENT, pace=Pace(0.0, 1.0)
    )
    made.places.note(Tables(1, ((0, 0, 0, 1 << 20),)), 1)
    made.places.note(Located(0, KEY, 1, Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (4,), 0), 0, 0), 1)
    yield made
    made.close()


@pytest.fixture
def submitted(box, monkeypatch) -> list[Submission]:
    """All transfers that are submitted."""
    found: list[Submission] = []
    monkeypatch.setattr(box, "submit", found.append)
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
        assert box.moment_s() == 1.0
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
