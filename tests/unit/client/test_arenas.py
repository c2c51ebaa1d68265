"""Places of small regions: none overlaps another, none is lost, and device and client agree on them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coarse.client.arenas import ARENA_BYTES, MOST_BYTES, Arenas
from coarse.client.protocol import ClientProtocol
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import Allocate, Deregister, Descriptor, Free, Register, Table
from coarse.proxy.instructions import Reserve
from coarse.proxy.protocol import ProxyProtocol
from coarse.strategy.builtin import Coarse

PLACE = Placement(
    client_nodes=(0, 0), device_nodes=(0,), local_proxies=(0, 0), ranks=(0, 1, 2), planner=Coarse(),
    num_sync_groups=1,
)  # fmt: skip
CAPACITY_BYTES = 64 * ARENA_BYTES


class Pair:
    """A client's arenas and the device that gives them; `answers` says whether it does so at once."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.client = ClientProtocol(0, PLACE)
        self.arenas = Arenas(self.client)
        self.arenas.open()
        self.device = ProxyProtocol(0, PLACE, capacity_bytes)
        for client in range(2):
            self.device.on_record(Table(client, 1, (0, 0, 0, 1 << 20)))
        self.late: list[Allocate] = []

    def take(self, nbytes: int) -> int:
        offset, records = self.arenas.take(0, nbytes)
        for device, record in records:
            assert device == 0
            if type(record) is Allocate:
                self.late.append(record)
            else:
                assert type(record) is Free
                self.device.on_record(record)
        return offset

    def answer(self) -> None:
        for request in self.late:
            steps = self.device.on_record(request)
            if type(steps[0]) is Reserve:
                steps = self.device.on_reserved(steps[0].request, "")
            self.client.on_record(steps[0].record)
        self.late.clear()

    def register(self, key: int, nbytes: int, offset: int) -> list[object]:
        descriptor = Descriptor(f"n{key}", int(DType.UINT8), int(Op.SUM), (nbytes,), 0)
        return self.device.on_record(Register(0, key, 1, descriptor, 0 if offset >= 0 else -1, offset))


def test_the_first_name_has_no_place_yet_and_the_next_ones_have():
    pair = Pair()
    assert pair.take(100) == -1
    pair.answer()
    assert [pair.take(nbytes) for nbytes in (100, 1, 64, 65)] == [2048, 2176, 2240, 2304]
    assert pair.take(MOST_BYTES + 1) == -1


def test_who_has_not_opened_them_asks_for_nothing():
    assert Arenas(ClientProtocol(0, PLACE)).take(0, 64) == (-1, [])


def test_more_room_is_asked_for_once_and_before_it_is_needed():
    pair = Pair()
    pair.take(64)
    pair.take(64)
    assert len(pair.late) == 1
    pair.answer()
    places = [pair.take(MOST_BYTES) for _ in range(ARENA_BYTES // MOST_BYTES)]
    assert len(pair.late) == 1
    assert -1 not in places
    assert pair.take(64) == -1  # the answer has not come
    pair.answer()
    assert pair.take(64) >= 0


def test_what_was_not_used_is_given_again():
    pair = Pair()
    pair.take(64)
    pair.answer()
    offset = pair.take(1000)
    pair.arenas.give_back(0, 1000)
    assert pair.take(64) == offset


def test_a_device_that_is_nearly_full_gives_no_arena_and_is_not_asked_again():
    pair = Pair(8 * ARENA_BYTES)
    assert pair.take(64) == -1
    pair.answer()
    assert pair.device.used_bytes == 0
    assert pair.take(64) == -1
    assert not pair.late


@given(st.lists(st.integers(0, MOST_BYTES + 100), max_size=150), st.randoms(use_true_random=False))
def test_whatever_is_registered_lies_alone_and_is_free_again_when_it_was_forgotten(sizes, random):
    pair = Pair()
    taken: dict[int, tuple[int, int]] = {}
    for key, nbytes in enumerate(sizes):
        offset = pair.take(nbytes)
        steps = pair.register(key, nbytes, offset)
        if offset < 0:
            (reserve,) = steps
            pair.device.on_reserved(reserve.request, "")
            offset = reserve.offset
        taken[key] = offset, offset + max(nbytes, 1)
        if random.random() < 0.5:
            pair.answer()
    ends = sorted(taken.values())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert pair.device.used_bytes >= sum(end - begin for begin, end in ends)
    for key, (offset, _) in taken.items():
        for client in range(2):
            pair.device.on_record(Deregister(client, key, *((0, offset) if client == 0 else (-1, -1)), 0))
    assert pair.device.used_bytes == 0
