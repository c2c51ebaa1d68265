"""Rings of records against a deque, and doorbells between threads of one process."""

import itertools
import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import closing, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.errors import CoarseError, NotInitializedError
from coarse.protocol.records import Leave
from coarse.transport.mailbox import ASLEEP, MAX_FRAME_BYTES, RING_BYTES, Mailbox, control_bytes

FOR_EVER_S = 30.0
RUN_NUMBERS = itertools.count()
SIZES = st.one_of(
    st.integers(0, 200),
    st.integers(0, MAX_FRAME_BYTES),
    st.integers(MAX_FRAME_BYTES - 16, MAX_FRAME_BYTES),
)


@contextmanager
def mailboxes(num_endpoints: int = 2):
    """One mailbox for each endpoint, over one control segment."""
    control = memoryview(bytearray(control_bytes(num_endpoints)))
    run = f"test-{os.getpid()}-{next(RUN_NUMBERS)}"
    everybody = range(num_endpoints)
    made = [
        Mailbox(me, num_endpoints, tuple(e for e in everybody if e != me), control, run)
        for me in everybody
    ]
    try:
        yield made
    finally:
        for mailbox in made:
            mailbox.close()


def frame_of(number: int, nbytes: int) -> bytes:
    """Bytes that no other frame of the test has, unless it is too short for a number."""
    return (number.to_bytes(4, "little") + b"\xff" * nbytes)[:nbytes]


def frames_of(mailbox: Mailbox) -> list[bytes]:
    """What has come, without who wrote it."""
    return [frame for _, frame in mailbox.frames()]


# --- rings


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(SIZES, st.none()), max_size=40))
def test_frames_come_out_as_they_went_in_whatever_their_sizes(steps):
    """A size is posted; None is a read of all there is. Posts beyond a full ring are kept back."""
    with mailboxes() as (writer, reader):
        under_way: deque[bytes] = deque()

        def read_all() -> None:
            for frame in frames_of(reader):
                assert frame == under_way.popleft()

        for number, nbytes in enumerate(steps):
            if nbytes is None:
                read_all()
                writer.ring_bells()
            else:
                under_way.append(frame_of(number, nbytes))
                writer.post(1, under_way[-1])
        while under_way:
            num_before = len(under_way)
            writer.ring_bells()
            read_all()
            assert len(under_way) < num_before, "a frame that fits an empty ring was not written"
        assert not writer.has_unsent


def test_a_ring_goes_round_many_times():
    with mailboxes() as (writer, reader):
        for number in range(5 * RING_BYTES // 1000):
            writer.post(1, frame_of(number, 1000 + number % 7))
            assert frames_of(reader) == [frame_of(number, 1000 + number % 7)]
        assert not writer.has_unsent


def test_a_full_ring_keeps_frames_back_and_in_order():
    with mailboxes() as (writer, reader):
        frames = [frame_of(number, 10_000) for number in range(2 * RING_BYTES // 10_000)]
        for frame in frames:
            writer.post(1, frame)
        assert writer.has_unsent
        first = frames_of(reader)
        assert 0 < len(first) < len(frames)
        writer.ring_bells()
        rest = frames_of(reader)
        writer.ring_bells()
        assert [*first, *rest, *frames_of(reader)] == frames
        assert not writer.has_unsent


@pytest.mark.parametrize("begin", [0, 8, RING_BYTES // 2 - 8, RING_BYTES // 2, RING_BYTES - 8])
def test_the_largest_frame_fits_an_empty_ring_wherever_that_begins(begin):
    with mailboxes() as (writer, reader):
        position = 0
        while position < begin:  # a frame of n bytes takes n + 4, rounded up to 8
            step = min(begin - position, MAX_FRAME_BYTES // 2)
            writer.post(1, bytes(step - 4))
            frames_of(reader)
            position += step
        writer.post(1, bytes(MAX_FRAME_BYTES))
        assert not writer.has_unsent
        assert frames_of(reader) == [bytes(MAX_FRAME_BYTES)]


def test_an_empty_frame_is_a_frame():
    with mailboxes() as (writer, reader):
        writer.post(1, b"")
        assert frames_of(reader) == [b""]
        assert frames_of(reader) == []


def test_a_frame_that_no_ring_can_hold_is_refused():
    with mailboxes() as (writer, _), pytest.raises(CoarseError, match=f"{MAX_FRAME_BYTES + 1} bytes"):
        writer.post(1, bytes(MAX_FRAME_BYTES + 1))


def test_a_frame_for_an_endpoint_of_another_node_says_who_is_here():
    said = r"endpoint 7, and this node has \[1\]; tell a device of it"
    with mailboxes() as (writer, _), pytest.raises(CoarseError, match=said):
        writer.post(7, b"x")


def test_every_pair_has_a_ring_of_its_own():
    with mailboxes(4) as made:
        for me, mailbox in enumerate(made):
            for peer in range(4):
                if peer != me:
                    mailbox.post(peer, bytes([me, peer]))
        for me, mailbox in enumerate(made):
            assert list(mailbox.frames()) == [(peer, bytes([peer, me])) for peer in range(4) if peer != me]


def test_a_word_to_all_reaches_everybody_else():
    with mailboxes(3) as made:
        made[1].send_to_all(Leave(1))
        assert [list(mailbox.records()) for mailbox in made] == [[Leave(1)], [], [Leave(1)]]


# --- doorbells


def test_who_has_frames_does_not_sleep():
    with mailboxes() as (writer, reader):
        writer.post(1, b"frame")
        assert reader.sleep(FOR_EVER_S) == []
        assert frames_of(reader) == [b"frame"]


def test_who_sleeps_is_woken_by_a_frame_and_by_a_bell():
    with mailboxes() as (writer, reader):
        for wake in (lambda: (writer.post(1, b"frame"), writer.ring_bells()), lambda: writer.ring_always(1)):
            is_starting = threading.Event()

            def rest(is_starting: threading.Event = is_starting) -> None:
                is_starting.set()
                reader.sleep(FOR_EVER_S)

            sleeper = threading.Thread(target=rest, daemon=True)
            sleeper.start()
            is_starting.wait()
            wake()
            sleeper.join(FOR_EVER_S / 2)
            assert not sleeper.is_alive()
            frames_of(reader)


def test_who_sleeps_is_woken_by_frames_that_a_full_ring_kept_back():
    with mailboxes() as (writer, reader):
        for number in range(6):
            writer.post(1, frame_of(number, 60_000))  # four fit
        writer.ring_bells()
        assert writer.has_unsent
        assert len(frames_of(reader)) == 4
        sleeper = threading.Thread(target=reader.sleep, args=(FOR_EVER_S,), daemon=True)
        sleeper.start()
        while not reader._status[1][ASLEEP]:
            os.sched_yield()
        writer.ring_bells()
        sleeper.join(FOR_EVER_S / 2)
        assert not sleeper.is_alive()
        assert len(frames_of(reader)) == 2


def test_no_wake_up_is_lost_between_two_that_answer_each_other():
    """However long all rounds take: neither may stand still while the other sleeps."""
    num_rounds = 2000
    progress = [0, 0]

    def answer(mailbox: Mailbox, *, begins: bool) -> None:
        num_seen = 0
        if begins:
            mailbox.post(1, b"0")
            mailbox.ring_bells()
        while num_seen < num_rounds:
            for _ in mailbox.frames():
                num_seen += 1
                progress[mailbox.endpoint] = num_seen
                mailbox.post(1 - mailbox.endpoint, b"%d" % num_seen)
            mailbox.ring_bells()
            if num_seen < num_rounds:
                mailbox.sleep(FOR_EVER_S)

    with mailboxes() as (first, second):
        threads = [
            threading.Thread(target=answer, args=(first,), kwargs={"begins": True}, daemon=True),
            threading.Thread(target=answer, args=(second,), kwargs={"begins": False}, daemon=True),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            before = None
            while thread.is_alive():
                assert progress != before
                before = list(progress)
                thread.join(FOR_EVER_S / 2)
        assert progress == [num_rounds] * 2


def test_a_bell_of_somebody_gone_is_no_error():
    with mailboxes() as (writer, reader):
        reader.close()
        writer.post(1, b"frame")
        writer.ring_bells()
        writer.ring_always(1)


# --- the living


def test_the_end_of_a_watched_process_is_reported_once():
    command = [sys.executable, "-c", "input()"]
    with mailboxes() as (mailbox, _), subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        descriptor = os.pidfd_open(process.pid)
        mailbox.watch(descriptor, 7)
        assert mailbox.sleep(0.0) == []
        with closing(process.stdin):
            process.stdin.write(b"\n")
        assert mailbox.sleep(FOR_EVER_S) == [7]
        assert mailbox.sleep(0.0) == []


def test_who_leaves_on_purpose_can_be_told_from_who_was_terminated():
    with mailboxes(3) as (first, second, third):
        assert not third.has_left(0)
        first.set_left()
        second.set_terminated()
        assert third.has_left(0)
        assert not third.was_terminated(0)
        assert third.was_terminated(1)
        assert not third.has_left(1)


def test_closing_gives_up_watched_processes_and_a_wait_afterwards_says_so():
    with mailboxes() as (mailbox, _):
        descriptor = os.pidfd_open(os.getpid())
        mailbox.watch(descriptor, 7)
        mailbox.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        assert mailbox.take_ended() == []
        with pytest.raises(NotInitializedError, match=r"after coarse\.shutdown\(\)"):
            mailbox.sleep(0.0)
