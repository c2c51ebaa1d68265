"""Collectives from each member to the next, every byte by MPI, as a library does that knows no nodes."""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coarse.collectives.conditions import Messages
from coarse.collectives.node import Node
from coarse.collectives.node_memory import NodeBuffer
from coarse.collectives.pieces import Pieces
from coarse.collectives.progress import Conditions
from coarse.collectives.schedule import Step, ring_gather, ring_reduce
from coarse.collectives.slice_sum import SliceSum
from coarse.protocol.units import MIB

if TYPE_CHECKING:  # importing it starts MPI
    from coarse.collectives.wire import GroupWire

_PIECE_BYTES = 4 * MIB
_IN_FLIGHT = 4
"""Number of pieces whose messages are under way at once."""


class Ring:
    """One member's part; all members of the group carry out the same jobs in the same order."""

    def __init__(self, wire: "GroupWire", node: Node) -> None:
        self._wire = wire
        self._node = node

    def gather(self, out: np.ndarray, slice_bytes: int, keep: NodeBuffer | None, what: str) -> Conditions:
        """Gather all slices into `out`, (n,) uint8.

        This member's slice is there already; a short last slice is allowed.
        """
        for step in ring_gather(self._wire.shape.size, self._wire.rank):
            yield from self._pass_on(step, _slice(out, slice_bytes, step.send_slice),
                                     _slice(out, slice_bytes, step.receive_slice), what)  # fmt: skip
        if keep is not None:
            first, last = self._own_part(len(out))
            keep.array[first:last] = out[first:last]
            yield self._node.ticks.all_passed(self._node.ticks.tick())

    def reduce(self, out: np.ndarray, full: np.ndarray, slice_elements: int, how: SliceSum, what: str) -> Conditions:
        """Reduce this member's slice of `full` over all members into `out`, both in the storage type.

        Slice r is summed in order of ranks from r+1 on: the same bits in every run.
        """
        steps = ring_reduce(self._wire.shape.size, self._wire.rank)
        first = steps[0].send_slice if steps else self._wire.rank
        total = how.of_members([_slice(full, slice_elements, first)])
        for step in steps:
            own = _slice(full, slice_elements, step.receive_slice)
            coming = np.empty(len(own), how.accumulator)
            yield from self._pass_on(step, total, coming, what)
            how.add(coming, how.of_members([own]))
            total = coming
        out[:] = how.rounded(total)

    def _pass_on(self, step: Step, outgoing: np.ndarray, coming: np.ndarray, what: str) -> Conditions:
        """Carry out one step, a few pieces at a time."""
        stride = _PIECE_BYTES // outgoing.itemsize
        under_way = deque[Messages]()
        for begin in range(0, max(len(outgoing), len(coming)), stride):
            messages = Messages()
            self._wire.receive(messages, step.receive_from, coming[begin : begin + stride], what)
            self._wire.send(messages, step.send_to, outgoing[begin : begin + stride], what)
            under_way.append(messages)
            if len(under_way) == _IN_FLIGHT:
                yield under_way.popleft()
        while under_way:
            yield under_way.popleft()

    def _own_part(self, nbytes: int) -> tuple[int, int]:
        """Return the part of a buffer, kept by its node, that this member copies."""
        pieces = Pieces(
            slice_elements=-(-nbytes // self._node.num_members),
            total_elements=nbytes,
            piece_elements=max(1, -(-nbytes // self._node.num_members)),
        )
        return pieces.bounds(self._node.position, 0)


def _slice(array: np.ndarray, slice_elements: int, rank: int) -> np.ndarray:
    return array[rank * slice_elements : (rank + 1) * slice_elements]
