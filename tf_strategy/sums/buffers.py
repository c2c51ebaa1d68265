"""Device memory of sums: buckets of one reduction's own, and a few buffers that serve all shapes."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coarse.client.handle import Handle
from coarse.parallel.data.bucket_plan import BucketPlan
from coarse.parallel.data.byte_stream import Section, capacity_of, cut, pack, unpack
from coarse.parallel.data.reducer import Flight, Reducer
from coarse.protocol.records import Descriptor
from coarse.protocol.units import MIB
from tf_strategy.sums.reduction import ReducedTensors, members_of

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.client.client import Client
NUM_SLOTS = 4
"""Pieces in flight at once."""
PIECE_BYTES = 4 * MIB
"""Largest bytes of a piece. All buffers of a type and operation together have 2 * NUM_SLOTS times as much."""


class ReductionSite:
    """Buckets of one kind of reduction."""

    def __init__(self, tensors: ReducedTensors, plans: Sequence[BucketPlan], reducer: Reducer) -> None:
        self.tensors = tensors
        self.reducer = reducer
        self.num_buckets = len(plans)
        self._views: list[list[np.ndarray]] = []
        """Memory of each bucket's tensors, by bucket."""
        self.members = tuple(members_of(plan) for plan in plans)
        """Numbers of each bucket's tensors, by bucket."""
        self.flights: dict[int, Flight] = {}
        """Flight started last for each bucket."""
        for plan in plans:
            memory = reducer.memory_of(plan.descriptor, plan.num_exact)
            slots = plan.layout.slots
            self._views.append(
                [memory[slot.offset_elements : slot.offset_elements + slot.num_elements] for slot in slots]
            )

    def fill(self, bucket: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy a bucket's tensors, of any shape, into its memory."""
        for view, array in zip(self._views[bucket], arrays, strict=True):
            view[:] = array.reshape(-1).view(view.dtype)

    def nbytes_of(self, bucket: int) -> int:
        """Return the bytes of a bucket's tensors."""
        return sum(view.nbytes for view in self._views[bucket])

    def results(self, bucket: int) -> list[np.ndarray]:
        """Return the memory of a bucket's results, flat, valid until the bucket is filled again."""
        return self._views[bucket]


class Piece(NamedTuple):
    """Bytes that one push sums, in a buffer that other shapes use too."""

    descriptor: Descriptor
    sections: tuple[Section, ...]
    """Sections of tensors that the piece holds."""


def pieces_of(tensors: ReducedTensors, piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Cut all tensors into pieces, type by type and end to end; few distinct buffers serve all shapes."""
    pieces: list[Piece] = []
    for wire in dict.fromkeys(tensors.wires):
        lengths = [nbytes if one is wire else 0 for one, nbytes in zip(tensors.wires, tensors.each_nbytes, strict=True)]
        for sections in cut(lengths, piece_bytes):
            last = sections[-1]
            length = capacity_of(last.offset + last.end - last.begin) // wire.itemsize
            name = f"tensorflow/stream/{tensors.op.name}/{wire.label}/{length}/{len(pieces) % NUM_SLOTS}"
            descriptor = Descriptor(name, int(wire), int(tensors.op), (length,), 0)
            pieces.append(Piece(descriptor, tuple(sections)))
    return pieces


def streamed(client: "Client", pieces: Sequence[Piece], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the combined arrays, in shape; all workers call it with equal pieces."""
    results = [np.empty(array.shape, array.dtype) for array in arrays]
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    combined = [result.reshape(-1).view(np.uint8) for result in results]
    under_way: deque[tuple[Handle, Piece]] = deque()
    for piece in pieces:
        if len(under_way) == NUM_SLOTS:
            _deliver(*under_way.popleft(), combined)
        under_way.append((_pushed(client, piece, parts), piece))
    for handle, piece in under_way:
        _deliver(handle, piece, combined)
    return results


def _pushed(client: "Client", piece: Piece, parts: Sequence[np.ndarray]) -> Handle:
    buffer = client.host_array(piece.descriptor)
    flat = buffer.view(np.uint8)
    pack(parts, piece.sections, flat)
    last = piece.sections[-1]
    flat[last.offset + last.end - last.begin :] = 0  # what is left of other sums would grow with each one
    return client.push_pull(piece.descriptor, None, buffer)


def _deliver(handle: Handle, piece: Piece, combined: Sequence[np.ndarray]) -> None:
    unpack(handle.wait().view(np.uint8), piece.sections, combined)
