"""The modelled machine behind the fabric's mailbox: what takes how long, and in which order it is handed on."""

import math

import pytest

from coarse.emulation.envelope import NUMBER_BYTES, FabricDelivery, FabricPort, Submission
from coarse.emulation.fabric import FabricModel
from coarse.hardware.degradation import RateChange
from coarse.hardware.links import Link
from coarse.protocol.joint import OWN_GROUP, CollectiveKind, Joint, Meeting, pack_call
from coarse.simulation.sites import Site

SITE = Site(
    links=(Link(name="a", latency_s=1.0, bytes_per_s=10.0), Link(name="b", latency_s=0.0, bytes_per_s=5.0)),
    push={(0, 0): (0,), (1, 0): (1,)}, pull={(0, 0): (0,)}, between_devices={(0, 0): (1,), (0, 1): (0,)},
    between_workers={(0, 1): (0,), (1, 0): (1,)}, adder_bytes_per_s=4.0,
)  # fmt: skip
DEVICE = 2


class Run:
    """A model, and what it has handed on."""

    def __init__(self, *changes: RateChange, listening: bool = False) -> None:
        self.found: list[tuple[int, FabricDelivery]] = []
        self.listening = listening
        self.model = FabricModel(SITE, (0, 0), self.deliver, changes)

    def deliver(self, endpoint: int, delivery: FabricDelivery) -> bool:
        self.found.append((endpoint, delivery))
        return self.listening

    def submit(
        self, way: FabricPort, at_s: float, nbytes: int = 0, *, peer: int = 0, target: int = 0, endpoint: int = DEVICE,
        frame: bytes = b"", priority: int = 0,
    ) -> None:  # fmt: skip
        source = peer if peer < DEVICE else 0
        self.model.submit(peer, Submission(at_s, nbytes, source, target, endpoint, way, priority, frame))

    def handed_on(self) -> list[tuple[float, bytes]]:
        return [(delivery.due_s, delivery.frame) for _, delivery in self.found]


def test_a_transfer_takes_its_latency_and_its_bytes_and_one_port_sends_one_after_the_other():
    run = Run()
    run.submit(FabricPort.PUSH, 2.0, 20, frame=b"first")
    run.submit(FabricPort.PUSH, 2.0, 10, frame=b"second")
    run.model.advance(math.inf)
    assert run.handed_on() == [(5.0, b"first"), (6.0, b"second")]


def test_messages_to_unlike_devices_overlap_and_a_rings_chunks_do_not():
    found = {}
    for way in (FabricPort.MESSAGES, FabricPort.DEVICES):
        run = Run()
        for target in (0, 1, 0):
            run.submit(way, 0.0, 10, peer=DEVICE, target=target, endpoint=DEVICE + 1, frame=bytes([target]))
        run.model.advance(math.inf)
        found[way] = run.handed_on()
        assert run.model.report().charged == (("devices", 30),)
    assert found[FabricPort.MESSAGES] == [(2.0, b"\0"), (2.0, b"\1"), (4.0, b"\0")]
    assert found[FabricPort.DEVICES] == [(2.0, b"\0"), (3.0, b"\1"), (5.0, b"\0")]


def test_of_those_that_wait_at_a_port_the_most_urgent_goes_first():
    run = Run()
    for frame, priority in ((b"first", 0), (b"second", 0), (b"urgent", 1)):
        run.submit(FabricPort.PUSH, 0.0, 10, frame=frame, priority=priority)
    run.model.advance(math.inf)
    assert [frame for _, frame in run.handed_on()] == [b"first", b"urgent", b"second"]


def test_nothing_happens_at_the_horizon_but_records():
    run = Run()
    run.submit(FabricPort.PUSH, 1.0, 10, frame=b"bytes")
    run.submit(FabricPort.RECORD, 1.0, peer=1, frame=b"record")
    run.model.advance(1.0)
    assert run.handed_on() == [(1.0, b"record")]
    run.model.advance(3.0)  # when the bytes arrive
    assert len(run.found) == 1
    run.model.advance(3.1)
    assert run.handed_on() == [(1.0, b"record"), (3.0, b"bytes")]


def test_the_order_at_equal_times_does_not_depend_on_who_is_read_first():
    def order(peers):
        run = Run()
        for peer in peers:
            run.submit(FabricPort.ADDER, 1.0, 4, peer=peer, frame=b"%d" % peer)
        run.model.advance(math.inf)
        return [frame for _, frame in run.handed_on()]

    assert order([2, 3]) == order([3, 2]) == [b"2", b"3"]


def test_a_record_comes_after_all_that_its_pair_has_submitted_before_and_past_that_of_others():
    run = Run()
    run.submit(FabricPort.PUSH, 0.0, 20, frame=b"bytes")
    run.submit(FabricPort.RECORD, 0.0, frame=b"behind")
    run.submit(FabricPort.RECORD, 0.5, frame=b"behind that")
    run.submit(FabricPort.RECORD, 0.5, peer=1, frame=b"another's")
    run.model.advance(math.inf)
    assert run.handed_on() == [(0.5, b"another's"), (3.0, b"bytes"), (3.0, b"behind"), (3.0, b"behind that")]


def test_an_adder_adds_one_thing_after_the_other():
    run = Run()
    for at_s, frame in ((0.0, b"a"), (0.5, b"b"), (9.0, b"c")):
        run.submit(FabricPort.ADDER, at_s, 4, peer=DEVICE, frame=frame)
    run.model.advance(math.inf)
    assert run.handed_on() == [(1.0, b"a"), (2.0, b"b"), (10.0, b"c")]


def test_an_all_reduce_goes_round_once_all_have_begun_it():
    run, call = Run(), pack_call(Meeting((0, 1), OWN_GROUP), Joint(CollectiveKind.ALL_REDUCE, 40, 4))
    run.submit(FabricPort.JOINT, 0.0, peer=0, endpoint=0, frame=bytes(NUMBER_BYTES) + call)
    run.model.advance(math.inf)
    assert run.found == []
    run.submit(FabricPort.JOINT, 7.0, peer=1, endpoint=1, frame=bytes(NUMBER_BYTES) + call)
    run.model.advance(math.inf)
    # Two halves of 20 bytes each way: worker 0 sends on the link a (1 s and 2 s), worker 1 on b (4 s).
    assert {endpoint: delivery.due_s for endpoint, delivery in run.found} == {0: 15.0, 1: 14.0}


def test_workers_that_meet_go_on_when_the_last_has_come():
    run = Run()
    run.submit(FabricPort.MEET, 3.0, peer=0, endpoint=0)
    run.submit(FabricPort.MEET, 5.0, peer=1, endpoint=1)
    run.model.advance(math.inf)
    assert [(endpoint, delivery.due_s) for endpoint, delivery in run.found] == [(0, 5.0), (1, 5.0)]


def test_who_asks_hears_how_far_time_has_come_in_the_end_and_waits_for_nobody():
    run = Run()
    run.submit(FabricPort.PUSH, 2.0, 20, frame=b"pushed")
    run.submit(FabricPort.NOW, 1.0, peer=0, endpoint=0, frame=b"asked")
    run.model.advance(9.0)
    run.submit(FabricPort.NOW, 7.0, peer=1, endpoint=1, frame=b"later")
    run.model.advance(0.0)
    assert run.handed_on() == [(5.0, b"pushed"), (5.0, b"asked"), (7.0, b"later")]
    assert run.model.report().num_late == 0


def test_a_run_begins_at_0_and_links_change_at_its_seconds():
    run = Run(RateChange(2.0, 0, 5.0))
    run.submit(FabricPort.PUSH, 0.0, 100, frame=b"before")
    run.model.advance(50.0)
    for worker in range(2):
        run.submit(FabricPort.RUN, 60.0, peer=worker, endpoint=worker)
    run.model.advance(math.inf)
    run.submit(FabricPort.PUSH, 0.0, 20, frame=b"within")
    run.model.advance(math.inf)
    assert run.handed_on() == [(11.0, b"before"), (0.0, b""), (0.0, b""), (4.0, b"within")]
    assert run.model.report().num_late == 0


def test_what_is_submitted_after_its_time_is_counted_and_begins_at_once():
    run = Run()
    run.submit(FabricPort.PUSH, 0.0, 10)
    run.model.advance(math.inf)
    run.submit(FabricPort.PUSH, 0.5, 10, frame=b"late")
    run.model.advance(math.inf)
    assert run.handed_on()[1] == (4.0, b"late")
    assert run.model.report()[:5] == (2, 1, pytest.approx(1.5), (20.0, 0.0), ())
    assert run.model.report().charged == (("push", 20),)


def test_a_delivery_to_one_that_may_react_ends_what_the_horizon_allows():
    run = Run(listening=True)
    run.submit(FabricPort.PUSH, 0.0, 10, frame=b"first")
    run.submit(FabricPort.PUSH, 0.0, 11, peer=1, frame=b"later")
    run.model.advance(math.inf)
    assert run.handed_on() == [(2.0, b"first")]
    run.listening = False
    run.model.advance(math.inf)
    assert run.handed_on() == [(2.0, b"first"), (2.2, b"later")]
