"""Where the slices of an all-gather arrive, piece by piece, and from where a node's members copy them."""

from typing import Protocol

import numpy as np

from coarse.collectives.node import BufferTurn, Node
from coarse.collectives.node_memory import NodeBuffer
from coarse.collectives.pieces import Pieces
from coarse.collectives.progress import Waits


class StagingBuffer(Protocol):
    """A place for each piece of each slice. Pieces are begun, and ended, in order."""

    def begin(self, piece: int) -> Waits:
        """Wait until a piece's places may be written."""
        ...

    def place(self, rank: int, piece: int) -> np.ndarray:
        """The bytes of a piece of one slice."""
        ...

    def end(self, piece: int) -> Waits:
        """This member's rail has brought its slices of a piece: see that all slices come into `out`."""
        ...


class InOut:
    """Straight into `out`, for a member that is alone on its node."""

    def __init__(self, pieces: Pieces, out: np.ndarray) -> None:
        self._pieces = pieces
        self._out = out

    def begin(self, piece: int) -> Waits:
        """See StagingBuffer."""
        yield from ()

    def place(self, rank: int, piece: int) -> np.ndarray:
        """See StagingBuffer."""
        first, last = self._pieces.bounds(rank, piece)
        return self._out[first:last]

    def end(self, piece: int) -> Waits:
        """See StagingBuffer."""
        yield from ()


class InSlots:
    """Into the node's staging buffer, a slot for each piece, from which every member copies."""

    def __init__(self, node: Node, pieces: Pieces, out: np.ndarray, ranks: tuple[int, ...], own: int) -> None:
        """`ranks` are those whose slices `out` has, in order; its own slice is there already."""
        self._node = node
        self._pieces = pieces
        self._out = out
        self._ranks = ranks
        self._own = own
        self._slots: dict[int, BufferTurn] = {}

    def begin(self, piece: int) -> Waits:
        """See StagingBuffer."""
        slot = self._slots[piece] = self._node.take_slot()
        yield slot.is_free()

    def place(self, rank: int, piece: int) -> np.ndarray:
        """See StagingBuffer."""
        begin = self._ranks.index(rank) * self._pieces.piece_elements
        return self._slots[piece].array[begin : begin + self._pieces.length(self._ranks.index(rank), piece)]

    def end(self, piece: int) -> Waits:
        """See StagingBuffer."""
        yield self._node.ticks.all_passed(self._node.ticks.tick())
        for position, rank in enumerate(self._ranks):
            if rank != self._own:
                first, last = self._pieces.bounds(position, piece)
                self._out[first:last] = self.place(rank, piece)
        self._slots.pop(piece).has_read()


class InKept:
    """Into a buffer of the node's memory where the bytes stay.

    All members have come to this gather, by its headers, and so read what it held before.
    """

    def __init__(self, node: Node, pieces: Pieces, out: np.ndarray, kept: NodeBuffer, own: int) -> None:
        self._node = node
        self._pieces = pieces
        self._out = out
        self._kept = kept
        self._own = own

    def begin(self, piece: int) -> Waits:
        """See StagingBuffer."""
        yield from ()

    def place(self, rank: int, piece: int) -> np.ndarray:
        """See StagingBuffer."""
        first, last = self._pieces.bounds(rank, piece)
        return self._kept.array[first:last]

    def end(self, piece: int) -> Waits:
        """See StagingBuffer."""
        yield self._node.ticks.all_passed(self._node.ticks.tick())
        for rank in range(self._pieces.num_slices):
            if rank != self._own:
                first, last = self._pieces.bounds(rank, piece)
                self._out[first:last] = self.place(rank, piece)
