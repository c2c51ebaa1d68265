"""Collectives along rails between nodes and through mapped memory within them.

schedule.py has the steps of each member.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coarse.collectives.conditions import Messages
from coarse.collectives.node import NUM_SLOTS, Node
from coarse.collectives.node_memory import NodeBuffer
from coarse.collectives.pieces import Pieces
from coarse.collectives.progress import Conditions
from coarse.collectives.schedule import Step, rail_gather, rail_reduce
from coarse.collectives.slice_sum import SliceSum
from coarse.collectives.staging_buffer import InKept, InOut, InSlots, StagingBuffer

if TYPE_CHECKING:  # importing it starts MPI
    from coarse.collectives.wire import GroupWire

_IN_FLIGHT = NUM_SLOTS - 1
"""Number of pieces whose messages are under way at once; with one slot more no member waits for a slow reader."""


class Hierarchical:
    """One member's part; all members of the group carry out the same jobs in the same order."""

    def __init__(self, wire: "GroupWire", node: Node) -> None:
        self._wire = wire
        self._node = node

    def gather(self, out: np.ndarray, slice_bytes: int, keep: NodeBuffer | None, what: str) -> Conditions:
        """Gather all slices into `out`, (n,) uint8.

        This member's slice is there already; a short last slice is allowed.
        """
        wire, node = self._wire, self._node
        size = wire.shape.size
        pieces = Pieces.within(
            slice_elements=slice_bytes, total_elements=len(out), room_elements=node.slot_bytes, cells=size
        )
        landing: StagingBuffer
        if keep is not None:
            landing = InKept(node, pieces, out, keep, wire.rank)
        elif node.num_members > 1:
            landing = InSlots(node, pieces, out, tuple(range(size)), wire.rank)
        else:
            landing = InOut(pieces, out)
        yield from self._exchange(out, pieces, wire.rank, landing, rail_gather(wire.shape, wire.rank), what)

    def gather_near(self, out: np.ndarray, slice_bytes: int, what: str) -> Conditions:
        """Gather the slices of the node's members into `out`, in their order; nothing moves between nodes."""
        node = self._node
        pieces = Pieces.within(
            slice_elements=slice_bytes, total_elements=len(out), room_elements=node.slot_bytes, cells=node.num_members
        )
        landing = InSlots(node, pieces, out, node.members, self._wire.rank)
        yield from self._exchange(out, pieces, node.position, landing, (), what)

    def _exchange(
        self, out: np.ndarray, pieces: Pieces, own: int, landing: StagingBuffer, steps: tuple[Step, ...], what: str
    ) -> Conditions:
        """Exchange slices piece by piece; `own` is the number of this member's slice in `out`."""
        wire, under_way = self._wire, deque[Messages]()
        for piece in range(pieces.count + _IN_FLIGHT):
            if piece < pieces.count:
                yield from landing.begin(piece)
                first, last = pieces.bounds(own, piece)
                landing.place(wire.rank, piece)[:] = out[first:last]
                messages = Messages()
                for step in steps:
                    wire.receive(messages, step.receive_from, landing.place(step.receive_slice, piece), what)
                    wire.send(messages, step.send_to, out[first:last], what)
                under_way.append(messages)
            if piece >= _IN_FLIGHT:
                yield under_way.popleft()
                yield from landing.end(piece - _IN_FLIGHT)

    def reduce(self, out: np.ndarray, full: np.ndarray, slice_elements: int, how: SliceSum, what: str) -> Conditions:
        """Reduce this member's slice of `full` over all members into `out`, both in the storage type.

        A slice is summed on each node in order of its members, then in order of nodes: the same bits in every run.
        """
        steps = rail_reduce(self._wire.shape, self._wire.rank)
        pieces = Pieces.within(
            slice_elements=slice_elements,
            total_elements=len(full),
            room_elements=self._node.slot_bytes // full.itemsize,
            cells=self._node.num_members**2,
        )
        turns = [(piece, step) for piece in range(pieces.count) for step in steps]
        written = deque[_Contributions]()
        ending = deque[_Partials]()
        for turn in range(len(turns) + 1):
            if turn < len(turns):
                written.append(_Contributions(self._wire, self._node, pieces, full))
                yield from written[-1].write(*turns[turn])
            if turn == 0:
                continue
            piece, step = turns[turn - 1]
            if step is steps[0]:
                if len(ending) == _IN_FLIGHT:
                    yield from ending.popleft().end(out, how)
                ending.append(_Partials(self._wire, pieces, piece, how, what))
                ending[-1].receive(steps)
            contributions = written.popleft()
            yield from contributions.are_there()
            ending[-1].take(step, contributions.sum(how))
        while ending:
            yield from ending.popleft().end(out, how)


class _Contributions:
    """Contributions of a node's members to one piece of the slices of one node.

    They lie in a cell by writer and by target's position.
    """

    def __init__(self, wire: "GroupWire", node: Node, pieces: Pieces, full: np.ndarray) -> None:
        self._wire = wire
        self._node = node
        self._pieces = pieces
        self._full = full
        self._slot = node.take_slot() if node.num_members > 1 else None
        self._lengths: tuple[int, ...] = ()
        self._own = full[:0]
        self._written = 0

    def write(self, piece: int, step: Step) -> Conditions:
        """Put this member's contributions where others of its node find them.

        The contribution to its own rail stays where it is.
        """
        targets = self._wire.shape.near(step.send_slice)
        self._own = self._piece(step.send_slice, piece)
        if self._slot is None:
            return
        yield self._slot.is_free()
        for position, target in enumerate(targets):
            if position != self._node.position:
                contribution = self._piece(target, piece)
                self._cell(self._node.position, position)[: len(contribution)] = contribution
        self._written = self._node.ticks.tick()

    def are_there(self) -> Conditions:
        """Wait until all members have written."""
        if self._slot is not None:
            yield self._node.ticks.all_passed(self._written)

    def sum(self, how: SliceSum) -> np.ndarray:
        """Return the sum in order of the node's members, in the accumulator type: a new array."""
        mine, length = self._node.position, len(self._own)
        sources = [
            self._own if writer == mine else self._cell(writer, mine)[:length]
            for writer in range(self._node.num_members)
        ]
        total = how.of_members(sources)
        if self._slot is not None:
            self._slot.has_read()
        return total

    def _piece(self, rank: int, piece: int) -> np.ndarray:
        first, last = self._pieces.bounds(rank, piece)
        return self._full[first:last]

    def _cell(self, writer: int, position: int) -> np.ndarray:
        assert self._slot is not None
        cells = self._slot.array.view(self._full.dtype)
        begin = (writer * self._node.num_members + position) * self._pieces.piece_elements
        return cells[begin : begin + self._pieces.piece_elements]


class _Partials:
    """Nodes' sums of one piece of this member's slice, and the sums that it sends to others of its rail."""

    def __init__(self, wire: "GroupWire", pieces: Pieces, piece: int, how: SliceSum, what: str) -> None:
        first, last = pieces.bounds(wire.rank, piece)
        start = pieces.bounds(wire.rank, 0)[0]
        self._place = slice(first - start, last - start)
        self._wire = wire
        self._what = what
        self._messages = Messages()
        self._sums = [np.empty(last - first, how.accumulator) for _ in range(wire.shape.num_nodes)]

    def receive(self, steps: tuple[Step, ...]) -> None:
        """Start to receive the other nodes' sums."""
        for step in steps:
            if step.receive_from != self._wire.rank:
                into = self._sums[self._wire.shape.place(step.receive_from)[0]]
                self._wire.receive(self._messages, step.receive_from, into, self._what)

    def take(self, step: Step, total: np.ndarray) -> None:
        """Take this node's sum for one member of the rail, or for this one."""
        if step.send_to == self._wire.rank:
            self._sums[self._wire.shape.place(self._wire.rank)[0]] = total
        else:
            self._wire.send(self._messages, step.send_to, total, self._what)

    def end(self, out: np.ndarray, how: SliceSum) -> Conditions:
        """Wait for all sums and write their sum, in order of nodes."""
        yield self._messages
        out[self._place] = how.of_nodes(self._sums)
