"""Links of UDP datagrams, on the loopback interface."""

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise

import numpy as np
import pytest

from coarse.errors import ConfigError
from coarse.luwu import datagrams
from coarse.luwu.datagrams import DatagramLink, address_of, own_addresses, own_place
from coarse.luwu.many_to_one.frames import HEADER_BYTES, Frame, beyond_bytes, header_of, headers_of
from coarse.luwu.many_to_one.packets import Beat, Data, Probe

LOOPBACK = "127.0.0.1"
SETTLED_S = 0.05
"""On the loopback interface what was sent is there when the call returns."""


@contextmanager
def linked(loss: float = 0.0, seed: tuple[int, ...] = (0,)) -> Iterator[tuple[DatagramLink, DatagramLink]]:
    """Two ends; what comes to the second one is lost."""
    with closing(DatagramLink()) as one, closing(DatagramLink(loss, seed)) as other:
        one.connect(LOOPBACK, other.port)
        other.connect(LOOPBACK, one.port)
        yield one, other


@pytest.fixture
def ends():
    with linked() as both:
        yield both


def values(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def packets_of(nbytes: int, packet_bytes: int, begin: int = 0) -> Frame:
    count = -(-nbytes // packet_bytes)
    return Frame(3, 4, True, Data(begin, begin + count, begin + count - 1, True))


def send(link: DatagramLink, frame: Frame, payloads: list[np.ndarray], packet_bytes: int) -> None:
    link.send_packets(headers_of(frame), payloads, packet_bytes)


def tell(link: DatagramLink, frame: Frame) -> None:
    link.send([header_of(frame), beyond_bytes(frame.message) if isinstance(frame.message, Beat) else b""])


def come(link: DatagramLink, count: int | None = None) -> list[tuple[Frame, np.ndarray]]:
    """Frames and what they carry: until so many datagrams came, or none comes any more."""
    found = []
    while count is None or link.num_received < count:
        ready, _, _ = select.select([link], [], [], SETTLED_S if count is None else 10)
        if not ready:
            assert count is None, f"{link.num_received} of {count} came"
            return found
        found += [(frame, carried.copy()) for frame, carried in link.receive()]
    return found


def bytes_of(found: list[tuple[Frame, np.ndarray]]) -> bytes:
    return b"".join(carried.tobytes() for _, carried in found)


def require_in_order(found: list[tuple[Frame, np.ndarray]], frame: Frame) -> None:
    """The runs make up one frame, and only what was its last packet asks."""
    data, whole = [one.message for one, _ in found], frame.message
    assert (data[0].begin, data[-1].end, data[-1].stamp) == (whole.begin, whole.end, whole.stamp)
    for one, other in pairwise(data):
        assert (one.end, one.stamp + other.end - other.begin) == (other.begin, other.stamp)
    assert [one.asks for one in data] == [False] * (len(data) - 1) + [True]
    assert all((one.model, one.root, one.is_up, one.is_empty) == (3, 4, True, False) for one, _ in found)
    assert all(len(carried) == one.message.end - one.message.begin for one, carried in found)


# --- packets


@pytest.mark.parametrize("cuts", [True, False], ids=["the kernel cuts", "each has a call"])
@pytest.mark.parametrize("packet_bytes", [24, 64, 1448, 8192, 32_768, -1])
@pytest.mark.parametrize("short", [0, 8])
@pytest.mark.parametrize("count", [1, 2, 64, 65, 100])
def test_packets_come_as_they_were_sent(ends, cuts, packet_bytes, short, count):
    one, other = ends
    one._cuts = cuts
    if packet_bytes < 0:
        packet_bytes = one.payload_bytes - HEADER_BYTES
    count = min(count, max(1, other.room_bytes // 4 // packet_bytes))  # the kernel keeps no more
    payload = values(packet_bytes * count - short)
    frame = packets_of(len(payload), packet_bytes, begin=7)
    send(one, frame, [payload], packet_bytes)
    found = come(other, count)
    require_in_order(found, frame)
    assert bytes_of(found) == payload.tobytes()
    assert one.num_sent == other.num_received == count
    assert one.sent_bytes == other.received_bytes == len(payload) + count * HEADER_BYTES


def test_payloads_of_one_frame_lie_in_several_places(ends):
    one, other = ends
    payloads = [values(5 * 100, 1), values(70 * 100, 2), values(3 * 100 - 60, 3)]
    frame = Frame(3, 4, True, Data(0, 78, 77, True))
    send(one, frame, payloads, 100)
    found = come(other, 78)
    require_in_order(found, frame)
    assert bytes_of(found) == b"".join(payload.tobytes() for payload in payloads)
    assert [carried.shape[1] for _, carried in found][-1] == 40


def test_more_than_sixteen_large_datagrams_at_once_all_come(ends):
    one, other = ends
    packet_bytes = min(60_000, other.room_bytes // 160)
    for number in range(40):
        frame = Frame(3, 4, True, Data(number, number + 1, number, True))
        send(one, frame, [values(packet_bytes, number)], packet_bytes)
    found = come(other, 40)
    assert [frame.message.begin for frame, _ in found] == list(range(40))
    for number, (_, carried) in enumerate(found):
        assert carried.tobytes() == values(packet_bytes, number).tobytes()


@pytest.mark.parametrize("count", [15, 16, 17, 31, 32, 33])
def test_any_number_of_datagrams_is_read(ends, count):
    one, other = ends
    for number in range(count):
        tell(one, Frame(3, 4, False, Probe(number)))
    assert [frame.message.stamp for frame, _ in come(other)] == list(range(count))


def test_frames_of_all_kinds_keep_their_order(ends):
    one, other = ends
    sent: list[Frame] = []
    for number in range(30):
        data = Frame(3, 4, True, Data(number, number + 1, number, number % 3 == 0))
        said = [Frame(3, 4, False, Probe(number)), Frame(3, 4, True, Beat(number, number + 8, 1 << number % 90, 5))]
        send(one, data, [values(100, number)], 100)
        for frame in said[: number % 3]:
            tell(one, frame)
        sent += [data, *said[: number % 3]]
    found = come(other, len(sent))
    split = [
        frame._replace(message=Data(packet, packet + 1, packet, frame.message.asks and packet + 1 == frame.message.end))
        if isinstance(frame.message, Data) else frame
        for frame, _ in found
        for packet in (range(*frame.message[:2]) if isinstance(frame.message, Data) else (0,))
    ]  # fmt: skip
    assert split == sent


# --- frames that carry nothing, or little


def test_a_question_carries_nothing(ends):
    one, other = ends
    tell(one, Frame(3, 4, False, Probe(5)))
    ((frame, carried),) = come(other, 1)
    assert frame == Frame(3, 4, False, Probe(5))
    assert carried.shape == (0,)


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_data_of_which_nobody_has_values_carries_nothing(ends, count):
    one, other = ends
    sent = Frame(3, 4, True, Data(9, 9 + count, 99, True), is_empty=True)
    tell(one, sent)
    ((frame, carried),) = come(other, 1)
    assert frame == sent
    assert carried.size == 0


@pytest.mark.parametrize("beyond", [0, 1, 0b1010, 1 << 63, 1 << 64, (1 << 5957) - 2])
def test_a_heartbeat_says_what_came_beyond(ends, beyond):
    one, other = ends
    sent = Frame(3, 4, True, Beat(10, 20, beyond, 30))
    tell(one, sent)
    assert [frame for frame, _ in come(other, 1)] == [sent]


@pytest.mark.parametrize("raw", [b"", b"x", bytes(HEADER_BYTES - 1), bytes(HEADER_BYTES), b"\xff" * 100])
def test_what_is_no_frame_is_left_out(ends, raw):
    one, other = ends
    for _ in range(3):
        one._socket.send(raw)
    tell(one, Frame(3, 4, False, Probe(5)))
    assert [frame.message for frame, _ in come(other)] == [Probe(5)]


def test_datagrams_of_strangers_do_not_come(ends):
    _, other = ends
    with closing(DatagramLink()) as stranger:
        stranger.connect(LOOPBACK, other.port)
        tell(stranger, Frame(3, 4, False, Probe(5)))
        assert come(other) == []


# --- a kernel that is full, or cuts nothing


class Kernel:
    """A socket before which some calls fail, by their number."""

    def __init__(self, inner: socket.socket, failing: dict[int, OSError]) -> None:
        self._inner = inner
        self._failing = failing
        self.num_calls = 0

    def sendmsg(self, *given):
        self.num_calls += 1
        if (error := self._failing.get(self.num_calls)) is not None:
            raise error
        return self._inner.sendmsg(*given)

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP])
def test_where_the_kernel_cuts_nothing_each_datagram_has_a_call(ends, refusal):
    one, other = ends
    one._socket = kernel = Kernel(one._socket, {1: OSError(refusal, os.strerror(refusal))})
    payload = values(10 * 100 - 20)
    send(one, packets_of(len(payload), 100), [payload], 100)
    assert kernel.num_calls == 1 + 10
    assert bytes_of(come(other, 10)) == payload.tobytes()
    send(one, packets_of(len(payload), 100), [payload], 100)
    assert kernel.num_calls == 1 + 2 * 10  # it is not asked again
    assert one.num_sent == 20


@pytest.mark.parametrize("cuts", [True, False], ids=["the kernel cuts", "each has a call"])
@pytest.mark.parametrize("full", [BlockingIOError(), OSError(errno.ENOBUFS, "No buffer space")])
def test_what_the_kernel_has_no_room_for_is_held_and_may_be_overwritten(ends, cuts, full):
    one, other = ends
    one._cuts = cuts
    one._socket = Kernel(one._socket, {1: full, 2: full})
    payload = values(3 * 100)
    right = payload.tobytes()
    send(one, packets_of(len(payload), 100), [payload], 100)
    tell(one, Frame(3, 4, False, Probe(5)))
    payload[:] = 0
    assert one.has_held
    assert one.num_sent == 0
    assert not one.flush()
    assert one.flush()
    assert not one.has_held
    found = come(other, 4)
    assert bytes_of(found) == right
    assert found[-1][0].message == Probe(5)  # behind what came before


def test_a_peer_that_is_gone_is_no_error(ends):
    one, other = ends
    other.close()
    for _ in range(3):
        tell(one, Frame(3, 4, False, Probe(5)))
        assert list(one.receive()) == []


def test_a_kernels_other_answers_are_raised(ends):
    one, _ = ends
    one._socket = Kernel(one._socket, {1: OSError(errno.EPERM, "Operation not permitted")})
    with pytest.raises(PermissionError):
        tell(one, Frame(3, 4, False, Probe(5)))


# --- losses


def lost(loss: float, seed: tuple[int, ...], count: int = 4000) -> tuple[set[int], int]:
    """Packets that do not come, and how many the link says were dropped."""
    with linked(loss, seed) as (one, other):
        seen: set[int] = set()
        for begin in range(0, count, 500):
            send(one, packets_of(500 * 24, 24, begin), [values(500 * 24)], 24)
            for frame, carried in come(other, begin + 500):
                assert len(carried) == frame.message.end - frame.message.begin
                seen |= set(range(*frame.message[:2]))
        return set(range(count)) - seen, other.num_dropped


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.5])
def test_losses_follow_from_their_seed_and_are_about_their_share(loss):
    first, num_dropped = lost(loss, (1, 2))
    assert len(first) == num_dropped
    assert abs(num_dropped - 4000 * loss) < 5 * (4000 * loss * (1 - loss)) ** 0.5
    assert lost(loss, (1, 2))[0] == first
    assert lost(loss, (1, 3))[0] != first


def test_nothing_is_lost_unasked():
    assert lost(0.0, (1,)) == (set(), 0)


def test_what_carries_nothing_may_be_lost_too():
    with linked(0.5) as (one, other):
        for number in range(200):
            tell(one, Frame(3, 4, False, Probe(number)))
        found = come(other)
        assert len(found) + other.num_dropped == 200
        assert 50 < other.num_dropped < 150


# --- looked at by nobody


def test_raw_bytes_are_taken_as_they_come(ends):
    one, other = ends
    buffer = np.zeros(1 << 16, np.uint8)
    assert other.receive_raw(buffer) == 0
    one.send([b"abc", b"de"])
    assert select.select([other], [], [], 10)[0]
    assert other.receive_raw(buffer) == 5
    assert buffer[:5].tobytes() == b"abcde"


# --- who is where


def test_a_process_reaches_those_of_its_network_by_the_loopback_interface():
    assert own_place() == own_place()
    assert address_of(own_place(), ["10.9.8.7/24"], []) == LOOPBACK
    assert address_of(own_place(), [], []) == LOOPBACK


def test_own_addresses_are_on_this_host():
    for address in own_addresses():
        text, bits = address.split("/")
        assert 0 < int(bits) <= 32
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
            bound.bind((text, 0))
        assert not text.startswith("127.")


@pytest.mark.parametrize(
    ("there", "own", "right"),
    [
        (["10.0.0.2/24"], ["10.0.0.1/24"], "10.0.0.2"),
        (["192.168.1.2/24", "10.0.0.2/24"], ["10.0.0.1/24"], "10.0.0.2"),
        (["192.168.1.2/24", "10.0.0.2/24"], ["10.0.0.1/24", "192.168.1.1/24"], "192.168.1.2"),
        (["192.168.1.2/24", "10.0.0.2/24"], ["172.16.0.1/16"], "192.168.1.2"),
        (["192.168.1.2/24"], [], "192.168.1.2"),
        (["10.0.0.2/16"], ["10.0.0.1/24"], "10.0.0.2"),
        (["172.17.0.1/16", "10.0.1.2/24"], ["172.17.0.1/16", "10.0.0.1/24"], "10.0.1.2"),  # a bridge that both have
    ],
)
def test_a_peer_is_reached_by_a_network_that_both_have_or_by_its_first(there, own, right):
    assert address_of("another", there, own) == right


def test_a_peer_without_an_address_is_refused():
    with pytest.raises(ConfigError, match="no IPv4 address but the loopback's") as refused:
        address_of("another", [], ["10.0.0.1/24"])
    assert refused.value.key == "network"


def test_an_interface_without_an_address_has_none(monkeypatch):
    monkeypatch.setattr(datagrams.socket, "if_nameindex", lambda: [(1, "lo"), (99, "none-such")])
    assert own_addresses() == []
