"""Joint calls on a modelled machine of two nodes with two workers each: when they are over, and for whom."""

import math

import pytest

from coarse.emulation.envelope import NUMBER_BYTES, FabricPort, Submission
from coarse.emulation.fabric import FabricModel
from coarse.hardware.links import Link
from coarse.protocol.joint import CollectiveKind, Joint, Meeting, pack_call
from coarse.simulation.sites import Site

NODES = (0, 0, 1, 1)
EVERYBODY = Meeting((0, 1, 2, 3), 1)
NEAR_S, FAR_S, HOST_S = 1.0, 10.0, 100.0
"""Latency of a hop within a node, between nodes, and to or from the host; each link moves 8 bytes a second."""


def site():
    """Links that nobody shares: each pair of workers has one, and each worker one to its host and one from it."""
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    latencies = [NEAR_S if NODES[a] == NODES[b] else FAR_S for a, b in pairs] + [HOST_S] * 8
    links = tuple(Link(name=str(n), latency_s=each, bytes_per_s=8.0) for n, each in enumerate(latencies))
    hosts = [(len(pairs) + n,) for n in range(8)]
    return Site(
        links=links, push={}, pull={}, between_devices={}, adder_bytes_per_s=1.0,
        between_workers={pair: (link,) for link, pair in enumerate(pairs)},
        to_host=tuple(hosts[:4]), from_host=tuple(hosts[4:]),
    )  # fmt: skip


class Run:
    """A model, and when each worker's calls were over."""

    def __init__(self):
        self.ends_s = {}
        self.model = FabricModel(site(), NODES, self.deliver)

    def deliver(self, endpoint, delivery):
        self.ends_s.setdefault(endpoint, []).append(delivery.due_s)
        return False

    def call(self, worker, joint, at_s=0.0, meeting=EVERYBODY):
        frame = bytes(NUMBER_BYTES) + pack_call(meeting, joint)
        self.model.submit(worker, Submission(at_s, 0, worker, 0, worker, FabricPort.JOINT, 0, frame))

    def calls(self, *joints, meeting=EVERYBODY, late_s=0.0):
        """All members make them, the last one late; when they were over, by worker."""
        for joint in joints:
            for worker in meeting.members:
                self.call(worker, joint, late_s if worker == meeting.members[-1] else 0.0, meeting)
        self.model.advance(math.inf)
        return self.ends_s


@pytest.mark.parametrize(("joint", "seconds"), [
    # A ring has 3 turns of 8 bytes, and two of its hops are between nodes.
    (Joint(CollectiveKind.ALL_GATHER, 8), 3 * (FAR_S + 1)),
    (Joint(CollectiveKind.REDUCE_SCATTER, 32, 4), 3 * (FAR_S + 1)),
    # Each piece goes round one and a half times, over hops within and between nodes in turn.
    (Joint(CollectiveKind.ALL_REDUCE, 32, 4), 3 * (FAR_S + 1) + 3 * (NEAR_S + 1)),
    (Joint(CollectiveKind.BARRIER), 3 * (FAR_S + 1)),
    # Rails of 2 nodes move 16 of 32 bytes in one turn of 8; then each node has one turn of 16.
    (Joint(CollectiveKind.ALL_GATHER, 8, is_ring=False), FAR_S + 1 + NEAR_S + 2),
    (Joint(CollectiveKind.REDUCE_SCATTER, 32, 4, is_ring=False), FAR_S + 1 + NEAR_S + 2),
    (Joint(CollectiveKind.ALL_REDUCE, 32, 4, is_ring=False), 2 * (FAR_S + 1 + NEAR_S + 2)),
    # A node's two members have 8 bytes each.
    (Joint(CollectiveKind.GATHER_ON_NODE, 8), NEAR_S + 1),
    (Joint(CollectiveKind.READ_PARTS, 8), HOST_S + 1 + NEAR_S + 1),
    (Joint(CollectiveKind.READ_WHOLE, 16), HOST_S + 2),
    # From or to one of them, whose own links carry 8 bytes each.
    (Joint(CollectiveKind.BROADCAST, 8, root=1), FAR_S + 1),
    (Joint(CollectiveKind.REDUCE, 8, 4, root=2), FAR_S + 1),
    (Joint(CollectiveKind.GATHER, 8, root=3), FAR_S + 1),
    (Joint(CollectiveKind.SCATTER, 8, root=0), FAR_S + 1),
    (Joint(CollectiveKind.ALL_TO_ALL, 64, parts=(8, 16, 16, 24)), FAR_S + 3),
])  # fmt: skip
def test_a_collective_takes_the_phases_of_its_kind(joint, seconds):
    ends_s = Run().calls(joint)
    assert ends_s == {worker: [pytest.approx(seconds)] for worker in range(4)}


def test_a_collective_begins_when_the_last_member_has_come_and_calls_go_one_after_the_other():
    gather = Joint(CollectiveKind.ALL_GATHER, 8, is_ring=False)
    first_s = 7.0 + FAR_S + 1 + NEAR_S + 2
    ends_s = Run().calls(gather, gather, late_s=7.0)
    # The second one's rails begin when the first one's have ended, and end before the first one's turn within nodes.
    assert ends_s == {worker: [first_s, pytest.approx(first_s + FAR_S + 1)] for worker in range(4)}


def test_what_the_host_keeps_is_stored_after_the_gather_and_nobody_waits_for_it():
    run = Run()
    ends_s = run.calls(Joint(CollectiveKind.ALL_GATHER, 8, is_ring=False, is_kept=True))
    assert ends_s[0] == [FAR_S + 1 + NEAR_S + 2]
    moved = dict(zip([link.name for link in site().links], run.model.report().link_bytes, strict=True))
    assert [moved[str(12 + worker)] for worker in range(4)] == [16.0] * 4  # half of 32 bytes each


def test_what_is_read_of_the_host_waits_until_it_has_been_stored_there():
    run = Run()
    run.calls(Joint(CollectiveKind.ALL_GATHER, 8, is_ring=False, is_kept=True, buffer=7))
    gathered_s = FAR_S + 1 + NEAR_S + 2
    for buffer in (7, 8):
        other = Run()
        for joint in (
            Joint(CollectiveKind.ALL_GATHER, 8, is_ring=False, is_kept=True, buffer=7),
            Joint(CollectiveKind.READ_PARTS, 8, buffer=buffer),
        ):
            for worker in range(4):
                other.call(worker, joint, 0.0 if joint.is_kept else gathered_s)
        other.model.advance(math.inf)
        read_s = HOST_S + 1 + NEAR_S + 1
        begin_s = gathered_s + HOST_S + 2 if buffer == 7 else gathered_s
        assert other.ends_s[0][1] == pytest.approx(begin_s + read_s)


def test_groups_of_the_same_members_and_of_some_of_them_are_apart():
    run, pair = Run(), Meeting((0, 2), 1)
    gather = Joint(CollectiveKind.ALL_GATHER, 8)
    for worker in (0, 2):
        run.call(worker, gather, meeting=pair)
        run.call(worker, gather, meeting=pair._replace(number=2))
    run.call(0, gather)  # for which the others never come
    run.model.advance(math.inf)
    # Two hops between nodes and back, each shared by the two gathers: 2 x 8 bytes.
    assert run.ends_s == {0: [FAR_S + 2] * 2, 2: [FAR_S + 2] * 2}


def test_a_message_is_under_way_from_when_it_is_sent_and_received_when_both_are_there():
    run, ends = Run(), Meeting((1, 2), 5)
    run.call(1, Joint(CollectiveKind.SEND, 8), 3.0, ends)
    run.call(1, Joint(CollectiveKind.SEND, 8), 3.0, ends)
    run.call(2, Joint(CollectiveKind.RECEIVE, 8), 0.0, ends)
    run.call(2, Joint(CollectiveKind.RECEIVE, 8), 50.0, ends)
    run.call(2, Joint(CollectiveKind.RECEIVE, 8), 0.0, ends._replace(number=6))  # of another tag: never
    run.model.advance(math.inf)
    assert run.ends_s == {1: [3 + FAR_S + 1, 3 + FAR_S + 2], 2: [3 + FAR_S + 1, 50.0]}
