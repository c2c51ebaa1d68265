"""Staging buffers of all-gathers: slices arrive there in pieces, and a node's members copy them."""

from typing import Protocol

import numpy as np

from coarse.collectives.node import BufferTurn, Node
from coarse.collectives.node_memory import NodeBuffer
from coarse.collectives.pieces import Pieces
from coarse.collectives.progress import Conditions


class StagingBuffer(Protocol):
    """Place for each piece of each slice.

    Pieces are begun, and ended, in order.
    """

    def begin(self, piece: int) -> Conditions:
        """Wait until a piece's places may be written."""
        ...

    def place(self, rank: int, piece: int) -> np.ndarray:
        """Return the bytes of a piece of one slice."""
        ...

    def end(self, piece: int) -> Conditions:
        """Bring all slices of a piece to `out`, once this member's rail has brought its own."""
        ...


class InOut:
    """Buffer that is `out` itself, for a member that is alone on its node."""

    def __init__(self, pieces: Pieces, out: np.ndarray) -> None:
        self._pieces = pieces
        self._out = out

    def begin(self, piece: int) -> Conditions:
        """Do nothing: the places may be written at once."""
        yield from ()

    def place(self, rank: int, piece: int) -> np.ndarray:
        """Return the place of a piece in `out`."""
        first, last = self._pieces.bounds(rank, piece)
        return self._out[first:last]

    def end(self, piece: int) -> Conditions:
        """Do nothing: the slices are in `out`."""
        yield from ()


class InSlots:
    """Buffer in the node's staging memory, a slot for each piece, from which every member copies."""

    def __init__(self, node: Node, pieces: Pieces, out: np.ndarray, ranks: tuple[int, ...], own: int) -> None:
        """Take the buffer's parts.

        `ranks` are those whose slices `out` has, in order; the slice of `own` is there already.
        """
        self._node = node
        self._pieces = pieces
        self._out = out
        self._ranks = ranks
        self._own = own
        self._slots: dict[int, BufferTurn] = {}

    def begin(self, piece: int) -> Conditions:
        """Take the next slot, and wait until it is free."""
        slot = self._slots[piece] = self._node.take_slot()
        yield slot.is_free()

    def place(self, rank: int, piece: int) -> np.ndarray:
        """Return the place of a piece in its slot."""
        begin = self._ranks.index(rank) * self._pieces.piece_elements
        return self._slots[piece].array[begin : begin + self._pieces.length(self._ranks.index(rank), piece)]

    def end(self, piece: int) -> Conditions:
        """Wait until all members have their slices of a piece, and copy those of others to `out`."""
        yield self._node.ticks.all_passed(self._node.ticks.tick())
        for position, rank in enumerate(self._ranks):
            if rank != self._own:
                first, last = self._pieces.bounds(position, piece)
                self._out[first:last] = self.place(rank, piece)
        self._slots.pop(piece).has_read()


class InKept:
    """Buffer in the node's memory where the bytes stay.

    All members have come to this gather, by its headers, and so read what it held before.
    """

    def __init__(self, node: Node, pieces: Pieces, out: np.ndarray, kept: NodeBuffer, own: int) -> None:
        self._node = node
        self._pieces = pieces
        self._out = out
        self._kept = kept
        self._own = own

    def begin(self, piece: int) -> Conditions:
        """Do nothing: the places may be written at once."""
        yield from ()

    def place(self, rank: int, piece: int) -> np.ndarray:
        """Return the place of a piece in the node's buffer."""
        first, last = self._pieces.bounds(rank, piece)
        return self._kept.array[first:last]

    def end(self, piece: int) -> Conditions:
        """Wait until all members have their slices of a piece, and copy those of others to `out`."""
        yield self._node.ticks.all_passed(self._node.ticks.tick())
        for rank in range(self._pieces.num_slices):
            if rank != self._own:
                first, last = self._pieces.bounds(rank, piece)
                self._out[first:last] = self.place(rank, piece)
