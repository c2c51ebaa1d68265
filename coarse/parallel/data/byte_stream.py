"""Stream of any amount of bytes from one rank to all others, through a few small device buffers."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coarse.client.handle import Handle
from coarse.errors import JoinedError, MismatchError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.session import current

_NUM_SLOTS = 4
"""Pieces in flight at once: the root fills one while devices and readers copy others."""
_SMALLEST_PIECE_BYTES = 256


class Section(NamedTuple):
    """Section of a piece: bytes [begin, end) of one part, at `offset` of the piece."""

    part: int
    begin: int
    end: int
    offset: int


def cut(part_bytes: Sequence[int], piece_bytes: int) -> list[list[Section]]:
    """Return pieces of at most `piece_bytes` that together hold all parts, end to end and in order."""
    pieces: list[list[Section]] = []
    filled = piece_bytes
    for part, nbytes in enumerate(part_bytes):
        begin = 0
        while begin < nbytes:
            if filled == piece_bytes:
                pieces.append([])
                filled = 0
            end = min(nbytes, begin + piece_bytes - filled)
            pieces[-1].append(Section(part, begin, end, filled))
            filled += end - begin
            begin = end
    return pieces


def capacity_of(nbytes: int) -> int:
    """Return the buffer bytes for a piece: a power of two, so that few distinct keys serve all lengths."""
    return max(_SMALLEST_PIECE_BYTES, 1 << (nbytes - 1).bit_length())


def pack(parts: Sequence[np.ndarray], sections: Sequence[Section], piece: np.ndarray) -> None:
    """Copy the sections' bytes from their parts into a piece; all are flat uint8."""
    for part, begin, end, offset in sections:
        piece[offset : offset + end - begin] = parts[part][begin:end]


def unpack(piece: np.ndarray, sections: Sequence[Section], parts: Sequence[np.ndarray]) -> None:
    """Copy the sections' bytes from a piece to their parts."""
    for part, begin, end, offset in sections:
        parts[part][begin:end] = piece[offset : offset + end - begin]


def stream(parts: Sequence[np.ndarray], root_rank: int, name: str) -> None:
    """Overwrite every rank's `parts` (flat uint8, of the same lengths) with the root's bits.

    All ranks call it in one order for one name. Large parts are cut, small ones share a piece, and
    device memory in use stays below a few times bucket_bytes, whatever the total.

    Raises:
        MismatchError: the ranks name different roots (on all ranks).
        JoinedError: the root has joined.
    """
    require_one_root(root_rank, name)
    stream_from(root_rank, parts, name)


def stream_from(root_rank: int, parts: Sequence[np.ndarray], name: str) -> None:
    """Overwrite every rank's `parts` as `stream` does, from a root that is agreed on and has not joined."""
    runtime = current()
    is_root = runtime.client_index == root_rank
    under_way: deque[tuple[Handle, np.ndarray, list[Section]]] = deque()
    pieces = cut([part.nbytes for part in parts], runtime.config.bucket_bytes)
    for index, sections in enumerate(pieces):
        if len(under_way) == _NUM_SLOTS:
            _deliver(*under_way.popleft(), parts, is_root=is_root)
        capacity = capacity_of(sections[-1].offset + sections[-1].end - sections[-1].begin)
        slot = index % _NUM_SLOTS
        descriptor = Descriptor(f"{name}/{capacity}/{slot}", int(DType.UINT8), int(Op.SUM), (capacity,), 0)
        client = runtime.require_client()
        buffer = client.host_array(descriptor)
        if is_root:
            pack(parts, sections, buffer)
        under_way.append((client.push_pull(descriptor, None, buffer, present=is_root), buffer, sections))
    for arriving in under_way:
        _deliver(*arriving, parts, is_root=is_root)


def stream_blobs(blob: bytes, name: str) -> list[bytes]:
    """Return every rank's bytes, which may differ in length, in order of rank.

    Raises:
        JoinedError: a rank has joined.
    """
    runtime = current()
    client = runtime.require_client()
    num_ranks = runtime.placement.num_clients
    assert runtime.client_index is not None
    lengths = np.zeros(num_ranks, np.int64)
    lengths[runtime.client_index] = len(blob) + 1  # a rank that has joined says 0
    descriptor = Descriptor(f"{name}/lengths", int(DType.INT64), int(Op.SUM), (num_ranks,), 0)
    client.push_pull(descriptor, lengths, lengths).wait()
    if joined := tuple(np.flatnonzero(lengths == 0).tolist()):
        raise _joined(joined, f"{name!r} gathers every rank's values")
    blobs = [np.empty(int(length) - 1, np.uint8) for length in lengths]
    blobs[runtime.client_index][:] = np.frombuffer(blob, np.uint8)
    for root, received in enumerate(blobs):
        stream_from(root, [received], name)
    return [received.tobytes() for received in blobs]


def require_one_root(root_rank: int, name: str) -> None:
    """Check that all ranks that have not joined name one of them as the root for a broadcast of `name`.

    Raises:
        ValueError: there is no such worker.
        MismatchError: the ranks name different roots (on all ranks).
        JoinedError: the root has joined.
    """
    runtime = current()
    num_ranks = runtime.placement.num_clients
    if not 0 <= root_rank < num_ranks:
        raise ValueError(f"root_rank must be a worker's rank, 0 to {num_ranks - 1}, got {root_rank}")
    extremes = np.array([root_rank, -root_rank, runtime.client_index == root_rank], np.int64)
    descriptor = Descriptor(f"{name}/root", int(DType.INT64), int(Op.MAX), (3,), 0)
    runtime.require_client().push_pull(descriptor, extremes, extremes).wait()
    highest, lowest, is_present = int(extremes[0]), -int(extremes[1]), bool(extremes[2])
    if highest != lowest:
        raise MismatchError(
            f"rank {runtime.client_index}: the broadcast of {name!r} has root {root_rank} here, but ranks name roots "
            f"from {lowest} to {highest}; give all ranks the same root_rank"
        )
    if not is_present:
        raise _joined((root_rank,), f"{name!r} is broadcast from rank {root_rank}")


def _joined(ranks: tuple[int, ...], what: str) -> JoinedError:
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {list(ranks)} have"
    return JoinedError(
        f"rank {current().client_index}: {what}, but {who} called join() and given no values; join() on all ranks "
        "before it, and take the rank that join() returns as the root",
        ranks=ranks,
    )


def _deliver(
    handle: Handle,
    buffer: np.ndarray,
    sections: list[Section],
    parts: Sequence[np.ndarray],
    *,
    is_root: bool,
) -> None:
    handle.wait()
    if not is_root:
        unpack(buffer, sections, parts)
