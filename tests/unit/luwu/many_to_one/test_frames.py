"""The bytes of messages: what one end writes the other reads, and what is no frame is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.luwu.many_to_one.frames import (
    HEADER_BYTES,
    HEADERS,
    MOST_PACKETS,
    Frame,
    beyond_bytes,
    frame_of,
    header_of,
    headers_of,
    runs_of_data,
    whole_beat,
    whole_data,
    whole_probe,
)
from coarse.luwu.many_to_one.packets import NOTHING_CAME, WIRE_MODULUS, Beat, Data, Message, Probe
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import Sender

SHORT = st.integers(0, 0xFFFF)
NUMBER = st.integers(0, WIRE_MODULUS - 1)
FAR = st.integers(0, 5 * WIRE_MODULUS)
"""Numbers of streams that have gone on for long."""


@st.composite
def some_data(draw, numbers=NUMBER):
    begin = draw(numbers)
    return Data(begin, begin + draw(st.integers(1, MOST_PACKETS)), draw(numbers), draw(st.booleans()))


MESSAGES = (
    some_data()
    | st.builds(Probe, NUMBER)
    | st.builds(Beat, NUMBER, NUMBER, st.integers(0, 2**300), NUMBER)
)
FRAMES = st.builds(Frame, SHORT, SHORT, st.booleans(), MESSAGES, st.just(False))


def text_of(frame: Frame) -> bytes:
    return header_of(frame) + (beyond_bytes(frame.message) if isinstance(frame.message, Beat) else b"")


def headers(*several: Frame) -> np.ndarray:
    return np.frombuffer(b"".join(header_of(one) for one in several), HEADERS)


def one_by_one(message: Data, **fields: object) -> list[Frame]:
    """A frame for each packet; only the last asks."""
    count = message.end - message.begin
    return [
        Frame(**{
            "model": 1, "root": 2, "is_up": True,
            "message": Data(
                message.begin + number, message.begin + number + 1, message.stamp + 1 - count + number,
                message.asks and number + 1 == count,
            ),
            **fields,
        })
        for number in range(count)
    ]  # fmt: skip


# --- one frame


@given(FRAMES)
def test_a_frame_is_read_as_it_was_written(frame):
    text = text_of(frame)
    assert frame_of(text) == frame
    assert frame_of(memoryview(text)) == frame


@given(SHORT, SHORT, st.booleans(), some_data())
def test_data_of_which_nobody_has_values_says_so(model, root, is_up, message):
    frame = Frame(model, root, is_up, message, is_empty=True)
    assert frame_of(header_of(frame)) == frame


@given(FRAMES)
def test_a_header_has_the_same_bytes_for_python_and_numpy(frame):
    text = header_of(frame)
    assert len(text) == HEADER_BYTES == HEADERS.itemsize
    (fields,) = np.frombuffer(text, HEADERS)
    assert (fields["model"], fields["root"]) == (frame.model, frame.root)


@given(FRAMES, st.data())
def test_a_header_with_any_flipped_bit_is_refused(frame, data):
    text = bytearray(text_of(frame))
    bit = data.draw(st.integers(0, 8 * HEADER_BYTES - 1))
    text[bit // 8] ^= 1 << bit % 8
    assert frame_of(bytes(text)) is None


def test_each_single_flipped_bit_is_refused_by_numpy_too():
    right = headers(*one_by_one(Data(7, 8, 70, True)))
    for bit in range(8 * HEADER_BYTES):
        raw = right.view(np.uint8).copy()
        raw[bit // 8] ^= 1 << bit % 8
        assert runs_of_data(raw.view(HEADERS)) == []


@given(FRAMES, st.integers(0, HEADER_BYTES - 1))
def test_bytes_that_are_too_short_are_no_frame(frame, length):
    assert frame_of(header_of(frame)[:length]) is None


@given(st.binary(min_size=HEADER_BYTES, max_size=2 * HEADER_BYTES))
def test_whatever_comes_is_read_or_refused(text):
    frame = frame_of(text)
    assert frame is None or header_of(frame) == text[:HEADER_BYTES]


def test_zeros_are_no_frame():
    assert frame_of(bytes(HEADER_BYTES)) is None
    assert runs_of_data(np.zeros(3, HEADERS)) == []


# --- many packets


@given(st.integers(1, 300), FAR, FAR, st.booleans(), st.booleans())
def test_headers_of_many_are_those_of_each(count, begin, stamp, is_up, asks):
    stamp += count
    message = Data(begin, begin + count, stamp, asks)
    made = headers_of(Frame(1, 2, is_up, message))
    assert made.shape == (count, HEADER_BYTES)
    assert made.tobytes() == b"".join(header_of(one) for one in one_by_one(message, is_up=is_up))


@given(st.lists(st.tuples(st.integers(1, 9), NUMBER, st.booleans()), min_size=1, max_size=8))
def test_many_are_read_as_few_and_none_is_lost(flights):
    """Flights that leave one after the other: a run is one flight or several that follow."""
    sent, stamp = [], 0
    for count, begin, asks in flights:
        stamp += count
        sent += one_by_one(Data(begin, begin + count, stamp, asks))
    runs = runs_of_data(headers(*sent))
    assert [edge for begin, end, _ in runs for edge in range(begin, end)] == list(range(len(sent)))
    assert len(runs) <= len(flights)
    for begin, end, frame in runs:
        assert headers_of(frame).tobytes() == headers(*sent[begin:end]).tobytes()


def test_packets_that_follow_are_one_run():
    message = Data(10, 20, 109, True)
    frame = Frame(1, 2, True, message)
    assert runs_of_data(headers(*one_by_one(message))) == [(0, 10, frame)]


FIRST, SECOND = one_by_one(Data(10, 12, 101, False))


@pytest.mark.parametrize(
    ("why", "other"),
    [
        ("a packet lies between", SECOND._replace(message=Data(12, 13, 101, False))),
        ("it is the same packet", SECOND._replace(message=Data(10, 11, 101, False))),
        ("a transmission lies between", SECOND._replace(message=Data(11, 12, 102, False))),
        ("it is of another model", SECOND._replace(model=9)),
        ("it is of another optimizer node", SECOND._replace(root=9)),
        ("it is of the other stream", SECOND._replace(is_up=False)),
        ("it has no bytes", SECOND._replace(is_empty=True)),
    ],
)
def test_a_run_ends_where_what_comes_does_not_follow(why, other):
    assert len(runs_of_data(headers(FIRST, SECOND))) == 1
    assert runs_of_data(headers(FIRST, other)) == [(0, 1, FIRST), (1, 2, other)]
    assert runs_of_data(headers(other, FIRST)) == [(0, 1, other), (1, 2, FIRST)]


def test_a_run_ends_with_what_asks():
    asks = FIRST._replace(message=FIRST.message._replace(asks=True))
    assert runs_of_data(headers(asks, SECOND)) == [(0, 1, asks), (1, 2, SECOND)]


@pytest.mark.parametrize(
    "message", [Probe(5), Beat(1, 2, 0, 3), Data(11, 13, 101, False)], ids=["a probe", "a beat", "data of two"]
)
def test_what_is_no_data_of_one_packet_is_left_out(message: Message):
    other = Frame(1, 2, True, message)
    third = SECOND._replace(message=Data(12, 13, 102, False))
    assert runs_of_data(headers(FIRST, other, third)) == [(0, 1, FIRST), (2, 3, third)]
    both = FIRST._replace(message=Data(10, 12, 101, False))
    assert runs_of_data(headers(other, FIRST, SECOND, other)) == [(1, 3, both)]
    assert runs_of_data(headers(other)) == []


# --- numbers


def receiver_at(ack: int, echo: int) -> Receiver:
    found = Receiver(0, 64, first=ack)
    if echo >= 0:
        found.on_probe(Probe(echo))
    return found


def sender_at(ack: int, next_stamp: int) -> Sender:
    found = Sender(0, 64, first=ack)
    found.next_stamp = next_stamp
    return found


NEAR = st.integers(-1000, 1000)


@given(FAR, FAR, NEAR, NEAR, st.integers(1, 99), st.booleans())
def test_data_is_whole_again(ack, echo, ahead, later, count, asks):
    data = Data(max(0, ack + ahead), max(0, ack + ahead) + count, max(0, echo + later), asks)
    came = frame_of(header_of(Frame(0, 0, True, data)))
    assert whole_data(came.message, receiver_at(ack, echo)) == data


@given(FAR, FAR, NEAR, NEAR, NEAR, st.integers(0, 2**70))
def test_a_heartbeat_is_whole_again(ack, stamp, behind, further, since, beyond):
    sender = sender_at(ack, stamp)
    beat = Beat(max(0, ack + behind), max(0, sender.credit + further), beyond, max(0, stamp + since))
    came = frame_of(text_of(Frame(0, 0, True, beat)))
    assert whole_beat(came.message, sender) == beat


@given(st.none() | FAR, NEAR)
def test_a_question_is_whole_again(echo, later):
    probe = Probe(max(0, (echo or 0) + later))
    came = frame_of(header_of(Frame(0, 0, True, probe)))
    assert whole_probe(came.message, receiver_at(0, -1 if echo is None else echo)) == probe


@given(st.integers(0, 1000))
def test_a_heartbeat_to_whose_end_nothing_came_says_so(next_stamp):
    came = frame_of(text_of(Frame(0, 0, True, Beat(0, 64, 0, NOTHING_CAME))))
    assert whole_beat(came.message, sender_at(0, next_stamp)).echo == NOTHING_CAME


@pytest.mark.parametrize("edge", [WIRE_MODULUS, 3 * WIRE_MODULUS])
def test_packets_on_both_sides_of_the_edge_are_one_run_and_taken_once(edge):
    receiver = receiver_at(edge - 5, edge - 3)
    sent = Data(edge - 5, edge + 5, edge + 4, True)
    ((_, _, frame),) = runs_of_data(headers_of(Frame(0, 0, True, sent)).reshape(-1).view(HEADERS))
    assert whole_data(frame.message, receiver) == sent
    for _ in range(2):
        receiver.on_data(whole_data(frame.message, receiver))
    assert (receiver.ack, receiver.echo) == (edge + 5, edge + 4)
