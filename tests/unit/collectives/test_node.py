"""Where a node's members stage what they pass on."""

import numpy as np
import pytest

from coarse.collectives.node import NUM_SLOTS, Node, counts_bytes, shared_bytes, slot_bytes
from coarse.collectives.node_memory import NodeRegion

CACHE_LINE_BYTES = 64


class Devices:
    """One device of a node, of which the region is the whole."""

    def __init__(self, num_members):
        self.array = np.zeros(shared_bytes(num_members), np.uint8)

    def view(self, region):
        return self.array


@pytest.mark.parametrize("num_members", [2, 3, 8])
def test_slots_follow_the_counts_lie_apart_on_cache_lines_and_come_in_turn(num_members):
    devices, members = Devices(num_members), tuple(range(num_members))
    node = Node(devices, NodeRegion(0, 0, 0), members, 1, members)
    first = devices.array.__array_interface__["data"][0]
    turns = [node.take_slot().array for _ in range(NUM_SLOTS + 1)]
    begins = [turn.__array_interface__["data"][0] - first for turn in turns]
    assert begins == [
        counts_bytes(num_members) + turn % NUM_SLOTS * slot_bytes(num_members) for turn in range(NUM_SLOTS + 1)
    ]
    assert {turn.nbytes for turn in turns} == {slot_bytes(num_members)}
    assert begins[NUM_SLOTS - 1] + slot_bytes(num_members) == shared_bytes(num_members)
    assert not [begin for begin in begins if begin % CACHE_LINE_BYTES]


def test_a_member_alone_on_its_node_has_counts_and_no_slots():
    assert shared_bytes(1) == counts_bytes(1) >= CACHE_LINE_BYTES
