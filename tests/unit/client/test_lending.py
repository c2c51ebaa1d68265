"""What a worker lends, what it says of it, and how it takes it back; no process, no kernel's call but on itself."""

import gc
import threading
import weakref

import numpy as np
import pytest

from coarse.client.lending import Lending
from coarse.client.protocol import ClientKey, ClientProtocol, ToDevice
from coarse.client.regions import KeyRegions
from coarse.errors import NotKeptError, StallError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Descriptor,
    Failed,
    Lend,
    Reach,
    Reached,
    Ready,
    Reclaim,
    Reclaimed,
    Registered,
    Tables,
)
from coarse.storage.lent import address_of
from coarse.storage.region import DeviceMemory, create_memory_file
from coarse.strategy.builtin import Coarse

CAPACITY_BYTES = 1 << 20
PLACE = Placement(
    client_nodes=(0, 0), device_nodes=(0, 0), local_proxies=(0, 1), ranks=(0, 1, 2, 3), planner=Coarse(),
    num_sync_groups=1,
)  # fmt: skip
NUM_ELEMENTS = 1000
LEAST_BYTES = 2000


class Link:
    """A line to two devices that answer what they are asked, or not."""

    def __init__(self, refusal: str = "") -> None:
        self.protocol = ClientProtocol(0, PLACE)
        self.protocol.on_record(Tables(1, ((0, 0, 0, 1000), (0, 1, 1, 1000))))
        self.lock = threading.RLock()
        self.sent: list[ToDevice] = []
        self.refusal = refusal
        self.stall_timeout_s = 1.0
        self.answers_reclaims = True
        self.before_answer = lambda device: None

    def send(self, records) -> None:
        self.sent += records

    def ask(self, requests, tokens, what):
        assert all(type(request.record) is Reach for request in requests)
        return [Reached(r.device, r.record.token, self.refusal if r.device else "") for r in requests]

    def wait_until(self, is_done, timeout_s) -> bool:
        for device, record in self.sent:
            if type(record) is Reclaim and self.answers_reclaims:
                self.before_answer(device)
                self.protocol.on_record(Reclaimed(record.key, device, record.token))
        return is_done()

    def take(self) -> list[ToDevice]:
        sent, self.sent = self.sent, []
        return sent


class Worker:
    """A client of which nothing but the lending is real."""

    def __init__(self, refusal: str = "") -> None:
        self.memory = DeviceMemory(create_memory_file("test", CAPACITY_BYTES), CAPACITY_BYTES)
        self.link = Link(refusal)
        self.regions = KeyRegions({0: self.memory})
        self.lending = Lending(self.link, self.regions)
        self.lending.open((0, 1), LEAST_BYTES)

    def key(self, name: str, num_elements: int = NUM_ELEMENTS, dtype: DType = DType.FLOAT32) -> ClientKey:
        """A key that is about to be pushed."""
        protocol = self.link.protocol
        if name not in protocol.named:
            protocol.register(Descriptor(name, int(dtype), int(Op.SUM), (num_elements,), 0))
            key = protocol.key(name)
            protocol.on_record(Registered(key, 1, 0, 8192 * len(protocol.named)))
        protocol.begin(protocol.key(name), is_claimed=True)
        return protocol.named[name]

    def lend_and_ask_back(self, state: ClientKey, source: np.ndarray, target: np.ndarray) -> None:
        """A call that lends and stalls, while devices do not answer."""
        self.lending.lend(state, source, target, is_waited=True)
        self.link.answers_reclaims = False
        self.lending.take_back(state.key)

    def land(self, state: ClientKey, first: int = 0, last: int | None = None) -> None:
        self.link.protocol.on_record(Ready(state.key, first, last or state.plan.num_shards, present=True))

    def take(self, state: ClientKey) -> None:
        assert self.link.protocol.take(state.key)
        self.lending.end(state.key)


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.memory.close()


def array(num_elements: int = NUM_ELEMENTS, dtype: type = np.float32) -> np.ndarray:
    return np.arange(num_elements).astype(dtype)


def test_what_a_call_in_place_lends_is_said_to_each_device_that_adds_it(worker):
    state, x = worker.key("w"), array()
    assert worker.lending.lend(state, x, x, is_waited=False)
    at = address_of(x)
    wanted = Lend(0, state.key, 0, state.offset, state.nbytes, at, at)
    assert worker.link.take() == [ToDevice(0, wanted), ToDevice(1, wanted)]


def test_the_same_tensor_is_announced_once_and_another_one_anew(worker):
    x, y = array(), array()
    for given, num_records in ((x, 2), (x, 0), (y, 2), (x, 2)):
        state = worker.key("w")
        assert worker.lending.lend(state, given, given, is_waited=False)
        assert len(worker.link.take()) == num_records
        worker.land(state)
        worker.take(state)


def test_a_copy_after_a_loan_is_announced_so_that_the_region_counts(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    worker.land(state)
    worker.take(state)
    worker.link.take()
    state = worker.key("w")
    assert not worker.lending.lend(state, x, array(), is_waited=False)
    assert [(record.source, record.target) for _, record in worker.link.take()] == [(0, 0), (0, 0)]


LENT = {
    "in place": lambda x: (x, x, False),
    "a call that waits": lambda x: (x, np.empty_like(x), True),
    "a worker that has joined": lambda x: (None, x, False),
    "read only, but for the result": lambda x: (np.broadcast_to(x, x.shape), np.empty_like(x), True),
}
COPIED = {
    "a call that returns at once": lambda x: (x, np.empty_like(x), False),
    "in the region already": lambda x: (x, None, True),
    "not contiguous": lambda x: (x[::-1], x[::-1], True),
    "a result that is not": lambda x: (x, np.empty((NUM_ELEMENTS, 2), x.dtype)[:, 0], True),
    "another type": lambda x: (x.view(np.int32), x, True),
}


@pytest.mark.parametrize("case", LENT)
def test_is_lent(worker, case):
    source, target, is_waited = LENT[case](array())
    assert worker.lending.lend(worker.key("w"), source, target, is_waited=is_waited)


@pytest.mark.parametrize("case", COPIED)
def test_is_copied(worker, case):
    source, target, is_waited = COPIED[case](array())
    assert not worker.lending.lend(worker.key("w"), source, target, is_waited=is_waited)
    assert not worker.link.sent


def test_source_and_target_that_overlap_are_copied(worker):
    both = array(NUM_ELEMENTS + 1)
    assert not worker.lending.lend(worker.key("w"), both[:-1], both[1:], is_waited=True)


def test_a_result_that_may_not_be_written_is_no_loan(worker):
    x = array()
    x.flags.writeable = False
    assert not worker.lending.lend(worker.key("w"), x, x, is_waited=True)


def test_small_tensors_are_copied(worker):
    x = array(LEAST_BYTES // 4 - 1)
    assert not worker.lending.lend(worker.key("w", len(x)), x, x, is_waited=True)


def test_memory_of_a_device_is_no_loan(worker):
    x = worker.memory.view(65536, 4 * NUM_ELEMENTS).view(np.float32)
    assert not worker.lending.lend(worker.key("w"), x, x, is_waited=True)
    assert not worker.lending.lend(worker.key("v"), array(), x, is_waited=True)


def test_nothing_is_lent_where_one_device_could_not_reach_this_process():
    worker = Worker(refusal="Operation not permitted")
    assert not worker.lending.lend(worker.key("w"), x := array(), x, is_waited=True)
    worker.memory.close()


@pytest.mark.parametrize(
    ("source", "target", "lends"),
    [
        ("x", "x", False),  # its result is on the way there
        ("x", "y", False),  # it is being overwritten
        ("y", "x", False),
        ("s", "y", True),  # two read it
        ("s", "s", False),  # it is being read
        ("y", "y", True),
    ],
)
def test_of_what_is_under_way_nothing_is_written_twice_and_nothing_written_is_read(worker, source, target, lends):
    arrays = {name: array() for name in "sxy"}
    assert worker.lending.lend(worker.key("first"), arrays["s"], arrays["x"], is_waited=True)
    assert worker.lending.lend(worker.key("w"), arrays[source], arrays[target], is_waited=True) is lends


def test_a_loan_ends_with_its_result_and_is_kept_alive_until_then(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is not None
    worker.land(state)
    worker.take(state)
    gc.collect()
    assert alive() is None


def test_what_nobody_takes_is_kept_until_its_result_has_come_and_no_longer_than_the_next_loan(worker):
    state, x = worker.key("dropped"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    alive = weakref.ref(x)
    del x
    worker.link.protocol.abandon(state.key, state.flight)
    worker.lending.lend(worker.key("w"), y := array(), y, is_waited=False)
    assert alive() is not None
    worker.land(state)
    worker.lending.lend(worker.key("v"), z := array(), z, is_waited=False)
    gc.collect()
    assert alive() is None


# --- where a result is


def test_a_result_is_found_in_the_tensor_of_its_call_and_nowhere_else(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    assert worker.lending.find(state.key, None) is x
    worker.land(state)
    worker.take(state)
    assert worker.lending.find(state.key, x) is x
    for other in (None, x[:], x.copy()):
        with pytest.raises(NotKeptError, match=r"'w' .*float32\[1000\].*push\(\)"):
            worker.lending.find(state.key, other)


def test_what_somebody_pulls_is_left_at_the_devices_from_then_on(worker):
    x = array()
    for lends in (True, False, False):
        state = worker.key("w")
        assert worker.lending.lend(state, x, x, is_waited=True) is lends
        worker.land(state)
        worker.take(state)
        if lends:
            with pytest.raises(NotKeptError):
                worker.lending.find(state.key, None)
        else:
            assert worker.lending.find(state.key, None) is None


# --- taking back


def numbered(state: ClientKey, region: np.ndarray) -> list[float]:
    """The first element of each shard."""
    return [float(region[state.plan.bounds(s, s + 1)[0]]) for s in range(state.plan.num_shards)]


def test_what_is_taken_back_lies_in_the_region_contributions_and_results(worker):
    """Device 0 has shards 0 and 1 and answers after 0 has landed; device 1 has 2 and 3, which land after its answer."""
    state, x, out = worker.key("w"), np.full(NUM_ELEMENTS, 1, np.float32), np.zeros(NUM_ELEMENTS, np.float32)
    assert state.plan.num_shards == 4
    worker.lending.lend(state, x, out, is_waited=True)

    def before_answer(device: int) -> None:
        if device == 0:
            out[: state.plan.bounds(0, 1)[1]] = 7
            worker.land(state, 0, 1)
        else:
            worker.regions.view(state)[state.plan.bounds(1, 2)[0] : state.plan.bounds(1, 2)[1]] = 8
            worker.land(state, 1, 2)  # device 0 is through with what was lent, and has written to the region

    worker.link.before_answer = before_answer
    worker.lending.take_back(state.key)
    assert numbered(state, worker.regions.view(state)) == [7, 8, 1, 1]
    assert worker.lending.find(state.key, None) is None
    worker.link.take()
    worker.land(state, 1, 4)
    worker.take(state)
    again = worker.key("w")
    assert worker.lending.lend(again, x, out, is_waited=True)
    assert len([record for _, record in worker.link.take() if type(record) is Lend]) == 2


def test_a_result_that_came_before_it_was_taken_back_is_in_the_region_too(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=True)
    x[:] = 5
    worker.land(state)
    worker.lending.take_back(state.key)
    assert (worker.regions.view(state) == 5).all()


def test_a_device_that_answers_late_counts_whenever_it_does(worker):
    """Device 0 does its first shard before its answer, which comes after the call has given up; device 1 never answers
    while it has all its shards to do, and is through with them before it would."""
    state, x, out = worker.key("w"), np.full(NUM_ELEMENTS, 1, np.float32), np.zeros(NUM_ELEMENTS, np.float32)
    worker.lend_and_ask_back(state, x, out)
    assert worker.lending.find(state.key, None) is out
    (token,) = [record.token for device, record in worker.link.take() if type(record) is Reclaim and device == 0]
    out[:] = 7
    worker.land(state, 0, 1)
    worker.link.protocol.on_record(Reclaimed(state.key, 0, token))
    assert worker.lending.find(state.key, None) is out
    worker.regions.view(state)[state.plan.bounds(1, 2)[0]] = 8
    worker.land(state, 1, 4)
    assert worker.lending.find(state.key, None) is None
    assert numbered(state, worker.regions.view(state)) == [7, 8, 7, 7]


def test_what_is_taken_back_twice_is_asked_for_once(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=True)
    worker.link.answers_reclaims = False
    for _ in range(2):
        worker.lending.take_back(state.key)
    assert len([record for _, record in worker.link.take() if type(record) is Reclaim]) == 2


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(worker):
    state, x = worker.key("w"), array()
    worker.lend_and_ask_back(state, x, x)
    tokens = [(device, record.token) for device, record in worker.link.take() if type(record) is Reclaim]
    worker.land(state)
    assert worker.lending.find(state.key, None) is None
    for device, token in tokens:
        worker.link.protocol.on_record(Reclaimed(state.key, device, token))
    assert not worker.link.protocol.answers
    assert not worker.link.protocol._done_then


def test_a_tensor_that_was_to_be_given_back_is_announced_anew_at_the_same_place(worker):
    """Nobody took the result of the push that stalled; its devices answer late, or never."""
    state, x = worker.key("w"), array()
    worker.lend_and_ask_back(state, x, x)
    worker.link.protocol.abandon(state.key, state.flight)
    worker.land(state)
    worker.link.take()
    assert worker.lending.lend(worker.key("w"), x, x, is_waited=True)
    assert len(worker.link.take()) == 2
    assert worker.lending.find(state.key, None) is x


def test_the_tensor_of_a_dropped_handle_is_not_where_the_next_result_is(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    worker.link.protocol.abandon(state.key, state.flight)
    worker.land(state)
    assert not worker.lending.lend(worker.key("w"), array(), array(), is_waited=False)
    assert worker.lending.find(state.key, None) is None


def test_devices_of_another_epoch_are_told_that_nothing_is_lent_there_any_more(worker):
    """Under new tables a key has one shard, so that one device adds it alone."""
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=True)
    worker.land(state)
    worker.take(state)
    worker.link.take()
    protocol = worker.link.protocol
    protocol.on_record(Tables(2, ((0, 0, 0, 1 << 20), (0, 1, 1, 1 << 20))))
    protocol.register(state.descriptor)
    protocol.on_record(Registered(state.key, 2, 0, state.offset))
    again = worker.key("w")
    assert len(again.targets) == 1
    assert worker.lending.lend(again, x, x, is_waited=True)
    told = {device: (record.source, record.target) for device, record in worker.link.take()}
    adder = again.targets[0][0]
    assert told == {adder: (address_of(x), address_of(x)), 1 - adder: (0, 0)}


@pytest.mark.parametrize("why", ["silent", "stalled"])
def test_what_a_device_may_still_touch_is_kept(worker, monkeypatch, why):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=True)
    worker.link.answers_reclaims = False
    if why == "stalled":
        monkeypatch.setattr(worker.link, "wait_until", lambda is_done, timeout_s: (_ for _ in ()).throw(StallError("")))
    worker.lending.take_back(state.key)
    assert worker.lending.find(state.key, None) is x


def test_a_worker_that_leaves_takes_back_all_that_is_under_way(worker):
    states = [worker.key(name) for name in ("v", "w")]
    tensors = [array() + i for i in range(2)]
    for state, x in zip(states, tensors, strict=True):
        worker.lending.lend(state, x, x, is_waited=False)
    worker.lending.take_all_back()
    for state, x in zip(states, tensors, strict=True):
        assert np.array_equal(worker.regions.view(state), x)


def test_a_key_that_is_given_up_is_lent_no_more(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    worker.link.take()
    worker.link.protocol.on_record(Failed(state.key, 1, "LentMemoryError", "gone"))
    worker.lending.take_back(state.key)
    worker.lending.deregister(state)
    assert worker.lending.find(state.key, x) is None


def test_a_key_that_is_deregistered_has_its_loan_called_off(worker):
    state, x = worker.key("w"), array()
    worker.lending.lend(state, x, x, is_waited=False)
    worker.land(state)
    worker.take(state)
    worker.link.take()
    worker.lending.deregister(state)
    assert [(record.source, record.target) for _, record in worker.link.take()] == [(0, 0), (0, 0)]
    assert worker.lending.find(state.key, None) is None
