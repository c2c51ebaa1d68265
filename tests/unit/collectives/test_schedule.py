"""Schedules replayed over small integers: what every member ends with, and what crosses between nodes."""

import pytest

from coarse.collectives.schedule import bytes_between_nodes, rail_gather, rail_reduce, ring_gather, ring_reduce
from coarse.collectives.shape import Collective, GroupShape

SHAPES = {f"{n}x{m}": (n, m) for n in range(1, 5) for m in range(1, 5)}
ORDERS = ("by node", "round robin")


@pytest.fixture(params=[(name, order) for name in SHAPES for order in ORDERS], ids=" ".join)
def shape(request):
    """N nodes of L members; ranks are dealt node by node, or one to each node in turn."""
    name, order = request.param
    num_nodes, members = SHAPES[name]
    ranks = range(num_nodes * members)
    return GroupShape(tuple(rank // members if order == "by node" else rank % num_nodes for rank in ranks))


class Mail:
    """Messages in order of sending for each pair of members; counts what crosses between nodes, in slices."""

    def __init__(self, shape):
        self.shape = shape
        self.sent = [0] * shape.num_nodes
        self.received = [0] * shape.num_nodes
        self._boxes = {}

    def send(self, source, target, value):
        self._boxes.setdefault((source, target), []).append(value)
        from_node, to_node = self.shape.place(source)[0], self.shape.place(target)[0]
        if from_node != to_node:
            self.sent[from_node] += 1
            self.received[to_node] += 1

    def receive(self, source, target):
        return self._boxes[source, target].pop(0)

    def is_empty(self):
        return not any(self._boxes.values())


def contribution(rank, index):
    """What a member has in slice `index`, so that every sum tells who is in it, and how often."""
    return 10**rank * (index + 1)


def steps_in_turn(shape, steps_of):
    """(member, step) for the first step of all members, then the second."""
    schedules = [steps_of(rank) for rank in range(shape.size)]
    assert len({len(schedule) for schedule in schedules}) == 1
    for turn in zip(*schedules, strict=True):
        yield list(enumerate(turn))


# --- all-gather


def test_rails_bring_every_slice_to_every_node_once(shape):
    mail = Mail(shape)
    nodes = [{rank: contribution(rank, rank) for rank in members} for members in shape.members_by_node]
    for turn in steps_in_turn(shape, lambda rank: rail_gather(shape, rank)):
        for rank, step in turn:
            assert step.send_slice == rank
            mail.send(rank, step.send_to, contribution(rank, step.send_slice))
        for rank, step in turn:
            held = nodes[shape.place(rank)[0]]
            assert step.receive_slice not in held
            held[step.receive_slice] = mail.receive(step.receive_from, rank)
    everything = {rank: contribution(rank, rank) for rank in range(shape.size)}
    assert nodes == [everything] * shape.num_nodes
    assert mail.is_empty()
    assert mail.sent == mail.received == [bytes_between_nodes(Collective.HIERARCHICAL, shape, shape.size)] * len(nodes)


def test_a_ring_brings_every_slice_to_every_member(shape):
    mail = Mail(shape)
    held = [{rank: contribution(rank, rank)} for rank in range(shape.size)]
    for turn in steps_in_turn(shape, lambda rank: ring_gather(shape.size, rank)):
        for rank, step in turn:
            mail.send(rank, step.send_to, held[rank][step.send_slice])
        for rank, step in turn:
            held[rank][step.receive_slice] = mail.receive(step.receive_from, rank)
    assert held == [{rank: contribution(rank, rank) for rank in range(shape.size)}] * shape.size
    require_ring_volume(shape, mail)


# --- reduce-scatter


def total_of(shape, index):
    return sum(contribution(rank, index) for rank in range(shape.size))


def test_rails_end_with_every_members_sum_of_its_slice(shape):
    mail = Mail(shape)
    sums = [{} for _ in range(shape.size)]
    for turn in steps_in_turn(shape, lambda rank: rail_reduce(shape, rank)):
        for rank, step in turn:
            on_node = sum(contribution(member, step.send_slice) for member in shape.near(rank))
            mail.send(rank, step.send_to, on_node)
        for rank, step in turn:
            assert step.receive_slice == rank
            sums[rank][shape.place(step.receive_from)[0]] = mail.receive(step.receive_from, rank)
    for rank, by_node in enumerate(sums):
        assert sorted(by_node) == list(range(shape.num_nodes))
        assert sum(by_node.values()) == total_of(shape, rank)
    assert mail.is_empty()
    volume = bytes_between_nodes(Collective.HIERARCHICAL, shape, shape.size)
    assert mail.sent == mail.received == [volume] * shape.num_nodes


def test_on_a_node_every_slice_is_summed_by_the_member_of_its_rail(shape):
    for members in shape.members_by_node:
        summed = sorted(step.send_slice for rank in members for step in rail_reduce(shape, rank))
        assert summed == list(range(shape.size))


def test_in_one_step_a_nodes_members_sum_slices_of_one_node(shape):
    """So a step needs a cell for each pair of members, however many nodes there are."""
    for members in shape.members_by_node:
        for steps in zip(*(rail_reduce(shape, rank) for rank in members), strict=True):
            assert sorted(step.send_slice for step in steps) == list(shape.near(steps[0].send_slice))


def test_a_ring_ends_with_the_sum_of_slice_r_on_rank_r(shape):
    mail, size = Mail(shape), shape.size
    running = [{} for _ in range(size)]
    for turn in steps_in_turn(shape, lambda rank: ring_reduce(size, rank)):
        for rank, step in turn:
            own = contribution(rank, step.send_slice)
            mail.send(rank, step.send_to, running[rank].pop(step.send_slice, own))
        for rank, step in turn:
            coming = mail.receive(step.receive_from, rank)
            running[rank][step.receive_slice] = coming + contribution(rank, step.receive_slice)
    ends = [{rank: total_of(shape, rank)} if size > 1 else {} for rank in range(size)]
    assert running == ends
    require_ring_volume(shape, mail)


# --- volumes


def require_ring_volume(shape, mail):
    """All slices but one cross every border of the ring between two nodes."""
    borders = [0] * shape.num_nodes
    for rank in range(shape.size):
        node, following = (shape.place(member)[0] for member in (rank, (rank + 1) % shape.size))
        borders[node] += node != following
    assert mail.is_empty()
    assert mail.sent == [borders_of_node * (shape.size - 1) for borders_of_node in borders]
    is_by_node = list(shape.node_by_rank) == sorted(shape.node_by_rank)
    if is_by_node:
        assert mail.sent == [bytes_between_nodes(Collective.RING, shape, shape.size)] * shape.num_nodes


def test_hierarchical_moves_less_than_a_ring_wherever_nodes_have_several_members(shape):
    rails, ring = (bytes_between_nodes(collective, shape, 1) for collective in Collective)
    members = len(shape.members_by_node[0])
    assert rails < ring if members > 1 and shape.num_nodes > 1 else rails == ring


def test_four_gpus_on_two_nodes_halve_what_crosses_instead_of_three_quarters():
    shape = GroupShape((0, 0, 1, 1))
    assert bytes_between_nodes(Collective.HIERARCHICAL, shape, 1000) == 500
    assert bytes_between_nodes(Collective.RING, shape, 1000) == 750
