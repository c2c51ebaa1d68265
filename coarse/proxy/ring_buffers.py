# Pure: no MPI, threads, clock or environment.
"""The three buffers of the rings that a sync core takes part in (COARSE IV-A), and what fills them.

A shard's LocalBuf holds its running result in the accumulator type; a SendBuf is a header and one
chunk, ready for the wire; a RecvBuf keeps a chunk that came until its step is due.
"""

from collections.abc import Callable

import numpy as np

from coarse.protocol.codec import RING_HEADER_BYTES, decode_ring_header, encode_ring_header
from coarse.protocol.dtypes import DType, Op, narrowed
from coarse.protocol.records import RingChunk
from coarse.proxy.instructions import (
    Reduce,
    Region,
    RingFinish,
    RingId,
    RingReceive,
    RingReduce,
    RingSend,
)
from coarse.storage.reduce import Elements, accumulate, reduce, reduce_local, scale, write

ArrayOf = Callable[[Region, DType, int], np.ndarray]
"""Function (region, dtype, number of elements) -> the elements of a region in place."""


def take_chunk(receive: RingReceive, local: np.ndarray, chunk: np.ndarray, op: Op = Op.SUM) -> None:
    """Combine a chunk with its part of a running result, (n,) in the accumulator type, or store it there."""
    target = local[receive.begin : receive.end]
    if receive.accumulate:
        accumulate(target, chunk, op)
    else:
        target[:] = chunk


class RingBuffers:
    """Ring buffers of one device; every driver of a ProxyProtocol carries out rings by them."""

    def __init__(self, array_of: ArrayOf) -> None:
        self._array_of = array_of
        self._local: dict[RingId, tuple[np.ndarray, DType, Op]] = {}
        self._received: dict[tuple[RingId, int], np.ndarray] = {}

    @property
    def in_use(self) -> bool:
        """True if a ring is under way at this device."""
        return bool(self._local)

    def reduce(self, work: Reduce | RingReduce) -> None:
        """Combine the sources in place, into all targets or into the shard's LocalBuf."""
        dtype, op, num_elements = DType(work.dtype), Op(work.op), work.num_elements
        key = work.key if isinstance(work, Reduce) else work.ring.key
        sources = [self.source(key, region, dtype, num_elements) for region in work.sources]
        if isinstance(work, RingReduce):
            self.begin(work, reduce_local(sources, num_elements, dtype, op))
            return
        targets = [self.target(key, region, dtype, num_elements) for region in work.targets]
        reduce(sources, targets, dtype, op, work.divisor)

    def begin(self, work: RingReduce, local: np.ndarray) -> None:
        """Keep a ring's LocalBuf, (n,) in the accumulator type: the local contributions, combined."""
        self._local[work.ring] = (local, DType(work.dtype), Op(work.op))

    def source(self, key: int, region: Region, dtype: DType, num_elements: int) -> Elements:
        """Return the elements of a contribution; a driver may return another place than the region."""
        return self._array_of(region, dtype, num_elements)

    def target(self, key: int, region: Region, dtype: DType, num_elements: int) -> Elements:
        """Return the elements of a result in their place."""
        return self._array_of(region, dtype, num_elements)

    def frame_of(self, send: RingSend) -> np.ndarray:
        """Return the SendBuf, (header and chunk bytes,) uint8."""
        local, _, _ = self._local[send.ring]
        chunk = local[send.begin : send.end].view(np.uint8)
        frame = np.empty(RING_HEADER_BYTES + chunk.nbytes, np.uint8)
        frame[:RING_HEADER_BYTES] = np.frombuffer(encode_ring_header(send.header), np.uint8)
        frame[RING_HEADER_BYTES:] = chunk
        return frame

    def keep(self, frame: np.ndarray) -> RingChunk:
        """Keep a frame of another device's `frame_of` as a RecvBuf, and return its header."""
        header = decode_ring_header(frame[:RING_HEADER_BYTES].tobytes())
        ring = RingId(header.key, header.epoch, header.version, header.shard)
        self._received[ring, header.step] = frame[RING_HEADER_BYTES:]
        return header

    def receive(self, receive: RingReceive) -> None:
        """Combine the RecvBuf of a step with the LocalBuf, or store it there, and free it."""
        local, _, op = self._local[receive.ring]
        chunk = self._received.pop((receive.ring, receive.step)).view(local.dtype)
        take_chunk(receive, local, chunk, op)

    def finish(self, finish: RingFinish) -> None:
        """Write the result into all targets, rounded once; the LocalBuf is free."""
        result, dtype = self.result_of(finish)
        for region in finish.targets:
            write(self.target(finish.ring.key, region, dtype, len(result)), 0, result)

    def result_of(self, finish: RingFinish) -> tuple[np.ndarray, DType]:
        """Return a ring's result, (n,) of the storage type; the LocalBuf is free."""
        local, dtype, _ = self._local.pop(finish.ring)
        if not finish.present:
            local[:] = 0
        scale(local, finish.divisor, out=local)
        return local if dtype.accumulator == dtype.storage else narrowed(local, dtype), dtype
