"""Members of a group on one node: their counts, and a staging buffer that bytes pass in pieces."""

import numpy as np

from coarse.collectives.flag_barrier import TICK_BYTES, AllPassed, FlagBarrier
from coarse.collectives.node_memory import NodeDevices, NodeRegion
from coarse.protocol.units import KIB, MIB

NUM_SLOTS = 4
_LEAST_SLOT_BYTES = 2 * MIB
_CELL_BYTES = 64 * KIB
"""Bytes that a slot has for each pair of members: messages along rails should not be shorter."""
_PAGE_BYTES = 4096


def counts_bytes(num_members: int) -> int:
    """Return the bytes of the counts, zeros at first; the slots follow."""
    return -(-num_members * TICK_BYTES // _PAGE_BYTES) * _PAGE_BYTES


def slot_bytes(num_members: int) -> int:
    """Return the bytes of a slot on a node of so many members."""
    return max(_LEAST_SLOT_BYTES, num_members**2 * _CELL_BYTES)


def shared_bytes(num_members: int) -> int:
    """Return the bytes that a group takes on each node; a member alone stages nothing."""
    return counts_bytes(num_members) + (NUM_SLOTS * slot_bytes(num_members) if num_members > 1 else 0)


class Node:
    """Shared memory of a node as one member uses it: the counts and the slots of the staging buffer."""

    def __init__(
        self, devices: NodeDevices, region: NodeRegion, members: tuple[int, ...], rank: int, workers: tuple[int, ...]
    ) -> None:
        """Map the counts and the slots.

        `members` are group ranks, of which `rank` is this one, and `workers` their ranks among workers.
        """
        self.members = members
        self.position = members.index(rank)
        self.num_members = len(members)
        self.slot_bytes = slot_bytes(self.num_members)
        self.region = region
        self._bytes = devices.view(region)
        self._free_after = [0] * NUM_SLOTS
        self._next_slot = 0
        rows = self._bytes[: self.num_members * TICK_BYTES].view(np.int64).reshape(self.num_members, -1)
        self.ticks = FlagBarrier(rows, self.position, workers)

    def take_slot(self) -> "BufferTurn":
        """Return the next slot, in the same order on all members."""
        number = self._next_slot
        self._next_slot = (number + 1) % NUM_SLOTS
        begin = counts_bytes(self.num_members) + number * self.slot_bytes
        return BufferTurn(self, number, self._bytes[begin : begin + self.slot_bytes])

    def is_free(self, number: int) -> AllPassed:
        """Return an event that is over once all members have read what a slot held."""
        return self.ticks.all_passed(self._free_after[number])

    def has_read(self, number: int) -> None:
        """Note that this member has read what it needs of a slot."""
        self._free_after[number] = self.ticks.tick()


class BufferTurn:
    """One turn of a part of the staging buffer."""

    def __init__(self, node: Node, number: int, array: np.ndarray) -> None:
        self.array = array
        """Bytes of the slot, (slot_bytes,) uint8, which may be written once `is_free` is over."""
        self._node = node
        self._number = number

    def is_free(self) -> AllPassed:
        """Return an event that is over once all members have read what was here before."""
        return self._node.is_free(self._number)

    def has_read(self) -> None:
        """Note that this member needs nothing of it any more."""
        self._node.has_read(self._number)
