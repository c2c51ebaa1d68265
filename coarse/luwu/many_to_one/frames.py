# Pure: no MPI, threads, clock or environment.
"""Bytes of a hop's messages: a header, and behind it the payload.

[Note: frames] A header is 24 bytes, little-endian: the model and the optimizer node's device (16 bits each); the kind
of message, and its flags (8 bits each); the number of packets (16 bits); three numbers of 32 bits, which `unwrapped`
makes whole again; and a check of all of it, so that a stray datagram is not taken for a frame. Behind the header of
data are its packets, all but the last of one size; behind that of a heartbeat its bits beyond Ack.
"""

import struct
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from coarse.luwu.many_to_one.packets import NOTHING_CAME, WIRE_MODULUS, Beat, Data, Message, Probe, unwrapped
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import Sender
from coarse.protocol.plan import mask_of

_HEADER = struct.Struct("<HHBBHIIII")
HEADER_BYTES = _HEADER.size
HEADERS = np.dtype([
    ("model", "<u2"), ("root", "<u2"), ("kind", "u1"), ("flags", "u1"), ("count", "<u2"),
    ("first", "<u4"), ("second", "<u4"), ("third", "<u4"), ("check", "<u4"),
])  # fmt: skip
"""Header as numpy sees it, to make or read many at once."""
_DATA, _BEAT, _PROBE = 0, 1, 2
_UP, _ASKS, _EMPTY = 1, 2, 4
MOST_PACKETS = 0xFFFF
"""Most packets of one frame, and so of a window."""
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
"""Factors of a header's words in its check; they are odd, so that a changed word changes the check."""
_SEED = 0x1D0C0A25


class Frame(NamedTuple):
    """Message on a hop of one model's tree; numbers are those on the wire."""

    model: int
    root: int
    """Device of the optimizer node."""
    is_up: bool
    """True if the stream is that of pushes."""
    message: Message
    is_empty: bool = False
    """True for data without a value of any worker below, so that no bytes come."""


def header_of(frame: Frame) -> bytes:
    """Return the header of a frame."""
    flags = _UP if frame.is_up else 0
    message = frame.message
    count, second, third = 0, 0, 0
    if isinstance(message, Data):
        kind, count, first, second = _DATA, message.end - message.begin, message.begin, message.stamp
        flags |= (_ASKS if message.asks else 0) | (_EMPTY if frame.is_empty else 0)
    elif isinstance(message, Beat):
        kind, first, second, third = _BEAT, message.ack, message.credit, message.echo
    else:
        kind, first = _PROBE, message.stamp
    fields = frame.model, frame.root, kind, flags, count, *(number % WIRE_MODULUS for number in (first, second, third))
    return _HEADER.pack(*fields, _check(_HEADER.pack(*fields, 0)))


def beyond_bytes(beat: Beat, most: int = MOST_PACKETS) -> bytes:
    """Return at most `most` bytes that follow a heartbeat's header; packets that they omit are sent again."""
    beyond = beat.beyond & mask_of(0, 8 * most)
    return beyond.to_bytes((beyond.bit_length() + 7) // 8, "little")


def headers_of(frame: Frame) -> np.ndarray:
    """Return a header for each packet of data, (n, HEADER_BYTES) uint8.

    They are stamped as the packets leave; only the last one asks.
    """
    message = frame.message
    assert isinstance(message, Data)
    count = message.end - message.begin
    made = np.zeros(count, HEADERS)
    made["model"], made["root"], made["kind"], made["count"] = frame.model, frame.root, _DATA, 1
    made["flags"] = _UP if frame.is_up else 0
    made["flags"][-1] |= _ASKS if message.asks else 0
    numbers = np.arange(count, dtype=np.int64)
    made["first"] = (message.begin + numbers) % WIRE_MODULUS
    made["second"] = (message.stamp + 1 - count + numbers) % WIRE_MODULUS
    made["check"] = _checks(made)
    return made.view(np.uint8).reshape(count, HEADER_BYTES)


def frame_of(raw: bytes | memoryview) -> Frame | None:
    """Return the frame of some bytes; None where they are no frame."""
    if len(raw) < HEADER_BYTES:
        return None
    *fields, check = _HEADER.unpack_from(raw)
    model, root, kind, flags, count, first, second, third = fields
    if kind > _PROBE or check != _check(_HEADER.pack(*fields, 0)):
        return None
    message: Message
    if kind == _DATA:
        message = Data(first, first + count, second, bool(flags & _ASKS))
    elif kind == _BEAT:
        message = Beat(first, second, int.from_bytes(raw[HEADER_BYTES:], "little"), third)
    else:
        message = Probe(first)
    return Frame(model, root, bool(flags & _UP), message, bool(flags & _EMPTY))


def runs_of_data(headers: np.ndarray) -> list[tuple[int, int, Frame]]:
    """Return datagrams that came as one in few frames: (first, past the last, frame), numbers in sequence.

    Args:
        headers: (n,) HEADERS, at least one, each of data of one packet; those that are not are left out.
    """
    is_data = (headers["kind"] == _DATA) & (headers["count"] == 1) & (headers["check"] == _checks(headers))
    one, other = headers[:-1], headers[1:]
    follows = is_data[1:] & is_data[:-1]
    for name in ("model", "root"):
        follows &= one[name] == other[name]
    follows &= one["flags"] == other["flags"] & ~np.uint8(_ASKS)
    for name in ("first", "second"):
        follows &= one[name] + np.uint32(1) == other[name]
    edges = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(headers)]
    found = []
    for begin, end in pairwise(edges):
        if is_data[begin]:
            first, last = headers[begin], headers[end - 1]
            number = int(first["first"])
            message = Data(number, number + end - begin, int(last["second"]), bool(last["flags"] & _ASKS))
            flags = int(first["flags"])
            frame = Frame(int(first["model"]), int(first["root"]), bool(flags & _UP), message, bool(flags & _EMPTY))
            found.append((begin, end, frame))
    return found


def _checks(headers: np.ndarray) -> np.ndarray:
    """Return the checks of (n,) HEADERS, (n,) uint32."""
    words = headers.view(np.uint32).reshape(len(headers), -1)[:, :5]
    found: np.ndarray = words @ np.array(_FACTORS, np.uint32) + np.uint32(_SEED)
    return found


def _check(header: bytes) -> int:
    return int(_checks(np.frombuffer(header, HEADERS))[0])


# --- numbers that were shortened for the wire


def whole_data(data: Data, receiver: Receiver) -> Data:
    """Return data with its numbers as its receiver counts."""
    begin = unwrapped(data.begin, receiver.ack)
    stamp = unwrapped(data.stamp, max(receiver.echo, 0))
    return Data(begin, begin + data.end - data.begin, stamp, data.asks)


def whole_beat(beat: Beat, sender: Sender) -> Beat:
    """Return a heartbeat with its numbers as the sender that hears it counts."""
    ack = unwrapped(beat.ack, sender.ack)
    credit, echo = unwrapped(beat.credit, sender.credit), unwrapped(beat.echo, sender.next_stamp)
    return Beat(ack, credit, beat.beyond, max(echo, NOTHING_CAME))


def whole_probe(probe: Probe, receiver: Receiver) -> Probe:
    """Return a probe with its number as its receiver counts."""
    return Probe(unwrapped(probe.stamp, max(receiver.echo, 0)))
