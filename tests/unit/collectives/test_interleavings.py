"""The collectives themselves, carried out by all members in one process, in any order in which their steps may fall.

A message's bytes are copied at some moment between its send and its end: a buffer that changes too early, or is read
too late, gives wrong results here, and members that wait in a circle are seen at once.
"""

import random
from collections import defaultdict

import numpy as np
import pytest

from coarse.collectives import headers, node
from coarse.collectives.headers import Header
from coarse.collectives.hierarchical import Hierarchical
from coarse.collectives.node import Node, counts_bytes, shared_bytes
from coarse.collectives.node_memory import NodeBuffer, NodeRegion
from coarse.collectives.ring import Ring
from coarse.collectives.shape import Collective, GroupShape
from coarse.collectives.slice_sum import SliceSum
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.joint import CollectiveKind
from coarse.protocol.records import Tag

SHAPES = {"1x3": (0, 0, 0), "2x1": (0, 1), "2x2": (0, 0, 1, 1), "3x2 dealt in turn": (0, 1, 2, 0, 1, 2)}
SLICE_BYTES = 701
"""More pieces than slots, the last one short."""


class Request:
    done = False

    def Test(self):
        return self.done


class Network:
    """Sends and receives that meet, in order for each pair of members and tag."""

    def __init__(self):
        self._sends, self._receives = defaultdict(list), defaultdict(list)

    def post(self, kind, source, target, tag, array):
        request = Request()
        queues = self._sends if kind == "send" else self._receives
        queues[source, target, tag].append((array.reshape(-1).view(np.uint8), request))
        return request

    def ready(self):
        return [way for way, sends in self._sends.items() if sends and self._receives[way]]

    def deliver(self, way):
        (payload, sent), (into, received) = self._sends[way].pop(0), self._receives[way].pop(0)
        assert len(into) == len(payload)
        into[:] = payload
        sent.done = received.done = True


class Wire:
    """As coarse.collectives.wire has it, on a Network."""

    def __init__(self, network, shape, rank):
        self._network = network
        self.shape, self.rank, self.workers = shape, rank, tuple(range(shape.size))

    def send(self, messages, to, payload, what, tag=Tag.SLICE):
        if payload.nbytes:
            messages.add(self._network.post("send", self.rank, to, tag, payload), to, payload)

    def receive(self, messages, source, into, what, tag=Tag.SLICE):
        if into.nbytes:
            messages.add(self._network.post("receive", source, self.rank, tag, into), source, into)


class Devices:
    """One device of a node, of which the region is the whole."""

    def __init__(self, num_members):
        self._bytes = np.zeros(shared_bytes(num_members), np.uint8)
        self._bytes[counts_bytes(num_members) :] = 255

    def view(self, region):
        return self._bytes


def carry_out(jobs, network, chooser):
    """Step members and deliver messages, one at a time and in a chosen order, until all jobs have ended."""
    awaited = dict.fromkeys(range(len(jobs)))
    while awaited:
        moves = [member for member, known in awaited.items() if known is None or known.is_over()]
        moves += network.ready()
        assert moves, f"members {sorted(awaited)} wait in a circle"
        move = chooser.choice(moves)
        if isinstance(move, tuple):
            network.deliver(move)
            continue
        try:
            awaited[move] = next(jobs[move])
        except StopIteration:
            del awaited[move]


class Team:
    """All members of a group, with the memory of their nodes."""

    def __init__(self, nodes, collective):
        self.shape = GroupShape(nodes)
        self.network = Network()
        self.ways = []
        devices = [Devices(len(members)) for members in self.shape.members_by_node]
        kept = [np.zeros(SLICE_BYTES * len(nodes), np.uint8) for _ in devices]
        self.kept = []
        way = Hierarchical if collective is Collective.HIERARCHICAL else Ring
        for rank in range(len(nodes)):
            number, _ = self.shape.place(rank)
            near = self.shape.near(rank)
            wire = Wire(self.network, self.shape, rank)
            self.ways.append((wire, way(wire, Node(devices[number], NodeRegion(0, 0, 0), near, rank, near))))
            self.kept.append(NodeBuffer("kept", NodeRegion(0, 0, len(kept[number])), kept[number], lambda buffer: None))

    def run(self, job_of, seed):
        """Two rounds of a member's job, headers before each."""

        def rounds(rank):
            wire, way = self.ways[rank]
            for number in range(2):
                header = Header.of(CollectiveKind.BARRIER, number, "x", 0)
                yield from headers.agree(wire, range(self.shape.size), header, "x")
                yield from job_of(rank, way, number)

        carry_out([rounds(rank) for rank in range(self.shape.size)], self.network, random.Random(seed))


@pytest.fixture(params=[(name, collective) for name in SHAPES for collective in Collective], ids=" ".join)
def team(request, monkeypatch):
    monkeypatch.setattr(node, "_LEAST_SLOT_BYTES", 256)
    monkeypatch.setattr(node, "_CELL_BYTES", 16)
    monkeypatch.setattr("coarse.collectives.ring._PIECE_BYTES", 64)
    name, collective = request.param
    return Team(SHAPES[name], collective)


def slice_of(rank, number):
    return np.random.default_rng([rank, number]).integers(0, 255, SLICE_BYTES).astype(np.uint8)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_gather_ends_with_all_slices_whatever_comes_first(team, seed, is_kept):
    size = team.shape.size
    total = SLICE_BYTES * size - 5  # the last slice is short
    outs = [[np.zeros(total, np.uint8) for _ in range(size)] for _ in range(2)]

    def gather(rank, way, number):
        out = outs[number][rank]
        place = out[rank * SLICE_BYTES : (rank + 1) * SLICE_BYTES]
        place[:] = slice_of(rank, number)[: len(place)]
        yield from way.gather(out, SLICE_BYTES, team.kept[rank] if is_kept else None, "x")
        if is_kept:
            np.testing.assert_array_equal(team.kept[rank].array[:total], out)

    team.run(gather, seed)
    for number in range(2):
        wanted = np.concatenate([slice_of(rank, number) for rank in range(size)])[:total]
        for out in outs[number]:
            np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("seed", range(8))
def test_a_reduction_ends_with_sums_of_the_same_bits_whatever_comes_first(team, seed):
    size, num_elements = team.shape.size, SLICE_BYTES // 4
    how = SliceSum(DType.FLOAT32, Op.SUM, size)
    outs = [[np.zeros(num_elements, np.float32) for _ in range(size)] for _ in range(2)]

    def full_of(rank, number):
        return np.random.default_rng([rank, number]).standard_normal(num_elements * size).astype(np.float32)

    def reduce(rank, way, number):
        yield from way.reduce(outs[number][rank], full_of(rank, number), num_elements, how, "x")

    team.run(reduce, seed)
    for number in range(2):
        for rank, out in enumerate(outs[number]):
            part = slice(rank * num_elements, (rank + 1) * num_elements)
            fulls = [full_of(member, number)[part] for member in range(size)]
            np.testing.assert_array_equal(out, summed(team, rank, fulls))


def summed(team, rank, fulls):
    """The members' contributions in the stated order: by node, or round the ring from the next rank on."""
    if isinstance(team.ways[0][1], Hierarchical):
        return in_order([in_order([fulls[member] for member in members]) for members in team.shape.members_by_node])
    return in_order([fulls[(rank + 1 + i) % len(fulls)] for i in range(len(fulls))])


def in_order(arrays):
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
