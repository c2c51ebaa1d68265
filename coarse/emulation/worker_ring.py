"""The workers' own ring in emulated time: bytes are read from the neighbour's region.

Every worker's gradient lies in device memory that all have mapped, so a chunk that has arrived is read
where it lies. It cannot have changed: a member overwrites a chunk that it has sent only with a value that
came round the ring through the reader.
"""

from collections.abc import Sequence

import numpy as np

from coarse.collectives.ring_stream import RingStream
from coarse.emulation.envelope import FabricPort, Submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.protocol.codec import decode_ring_header, encode_ring_header
from coarse.proxy.instructions import Instruction, RingId, RingReceive, RingSend
from coarse.proxy.ring_buffers import take_chunk


class EmulatedWorkerRing:
    """One worker's stream of all-reduces, one gradient after the other."""

    def __init__(
        self,
        worker: int,
        num_workers: int,
        box: EmulatedMailbox,
        own: Sequence[np.ndarray],  # (n,) float32 each, in the order in which they are given
        previous: Sequence[np.ndarray],  # the same of the worker before this one in the ring
    ) -> None:
        self._stream = RingStream(worker, tuple(range(num_workers)), [len(array) for array in own])
        self._box = box
        self._own = own
        self._previous = previous
        box.on_token[FabricPort.WORKERS] = self._on_token

    @property
    def is_done(self) -> bool:
        """Whether nothing is under way."""
        return self._stream.is_idle

    def push(self, position: int) -> None:
        """Give a gradient at the moment of the mailbox; it is summed in place."""
        self._carry_out(self._stream.push(position), self._box.moment_s())

    def _carry_out(self, instructions: list[Instruction], begin_s: float) -> None:
        for step in instructions:
            if isinstance(step, RingReceive):
                chunk = self._previous[step.ring.key][step.begin : step.end]
                take_chunk(step, self._own[step.ring.key], chunk)
            elif isinstance(step, RingSend):
                nbytes = (step.end - step.begin) * self._own[step.ring.key].itemsize
                frame = encode_ring_header(step.header)
                to = step.device
                self._box.submit(Submission(begin_s, nbytes, self._stream.worker, to, to, FabricPort.WORKERS, 0, frame))

    def _on_token(self, _: FabricPort, frame: bytes, due_s: float) -> None:
        header = decode_ring_header(frame)
        ring = RingId(header.key, header.epoch, header.version, header.shard)
        self._carry_out(self._stream.on_chunk(ring, header.step), due_s)
