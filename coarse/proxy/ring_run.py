# Pure: no MPI, threads, clock or environment.
"""One shard's way round its ring at one member: a state machine without bytes (COARSE IV-A)."""

from coarse.protocol.records import RingChunk
from coarse.protocol.ring import chunk_bounds, next_member, ring_steps
from coarse.proxy.instructions import Instruction, RingId, RingReceive, RingSend


class RingRun:
    """Steps of one shard at one member: they start with the local sum, and end after 2(p-1) chunks.

    Chunks may come before the local sum is ready, and the next chunk before the last was asked for.
    """

    def __init__(
        self,
        ring: RingId,
        num_elements: int,
        members: tuple[int, ...],
        device: int,
        direction: int,
    ) -> None:
        self._ring = ring
        position = members.index(device)
        self._steps = ring_steps(position, len(members), direction)
        self._next_device = members[next_member(position, len(members), direction)]
        self._bounds = chunk_bounds(num_elements, len(members))
        self._num_steps = len(self._steps)
        self._received: dict[int, bool] = {}
        self._step = 0
        self._round = 0
        self._is_reduced = False
        self.present = False
        self.started = False

    @property
    def is_finished(self) -> bool:
        """True if the LocalBuf holds the whole result."""
        return self._is_reduced and self._step == self._num_steps

    def on_reduced(self, round_: int, *, present: bool) -> list[Instruction]:
        """Start: the local contributions lie in the LocalBuf.

        `round_` is the round in the headers of chunks from now on.
        """
        self._is_reduced = True
        self._round = round_
        self.present |= present
        return [self._send(0), *self._advance()] if self._steps else []

    def on_chunk(self, step: int, *, present: bool) -> list[Instruction]:
        """Process the previous member's chunk for a step."""
        self._received[step] = present
        return self._advance() if self._is_reduced else []

    def _advance(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        number, received = self._step, self._received
        while number < self._num_steps and number in received:
            step = self._steps[number]
            begin, end = self._bounds[step.receive_chunk]
            self.present |= received.pop(number)
            instructions.append(RingReceive(self._ring, number, begin, end, step.accumulate))
            number = self._step = number + 1
            if number < self._num_steps:
                instructions.append(self._send(number))
        return instructions

    def _send(self, step: int) -> RingSend:
        begin, end = self._bounds[self._steps[step].send_chunk]
        key, epoch, version, shard = self._ring
        header = RingChunk(key, epoch, self._round, version, shard, step, self.present)
        return RingSend(self._ring, self._next_device, begin, end, header)
