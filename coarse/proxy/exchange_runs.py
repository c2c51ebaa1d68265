# Pure: no MPI, threads, clock or environment.
"""One shard's way through an exchange at one member, a ring (COARSE IV-A) or a star: state machines without bytes.

[Note: asked to begin] A member whose own clients contribute nothing, since they have joined or are routed elsewhere,
does not know that others have begun. In a ring the chunk of the member before it says so; in a star nothing would come.
So the first member asks all others to begin, by a message without elements.
"""

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


class StarRun:
    """Steps of one shard at one member; it has the four methods of a RingRun.

    The first of p members adds what the others send, steps 0..p-2, in the order of the members, so that sums have the
    same bits in any order of arrival. It sends the total back in steps p-1..2p-3, and its requests to begin in steps
    2p-2..3p-4: see [Note: asked to begin].
    """

    def __init__(self, ring: RingId, num_elements: int, members: tuple[int, ...], device: int) -> None:
        self._ring = ring
        self._num_elements = num_elements
        self._members = members
        self._place = members.index(device)
        others = len(members) - 1
        self._awaited = range(others) if self._place == 0 else (2 * others + self._place - 1, others + self._place - 1)
        """Steps in which a chunk comes here, in the order in which they are taken."""
        self._received: dict[int, bool] = {}
        self._num_taken = 0
        self._round = 0
        self._is_reduced = False
        self.present = False
        self.started = False

    @property
    def is_finished(self) -> bool:
        """True if the LocalBuf holds the whole result."""
        return self._is_reduced and self._num_taken == len(self._awaited)

    def on_reduced(self, round_: int, *, present: bool) -> list[Instruction]:
        """Start: the local contributions lie in the LocalBuf.

        `round_` is the round in the headers of chunks from now on.
        """
        self._is_reduced = True
        self._round = round_
        self.present |= present
        if self._place:
            return [self._send(self._members[0], self._place - 1, self._num_elements), *self._advance()]
        first = 2 * len(self._members) - 2
        return [*self._to_others(first, 0), *self._advance()]

    def on_chunk(self, step: int, *, present: bool) -> list[Instruction]:
        """Process another member's sum, the total, or a request to begin."""
        self._received[step] = present
        return self._advance() if self._is_reduced else []

    def _advance(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        others, awaited = len(self._members) - 1, self._awaited
        while self._num_taken < len(awaited) and awaited[self._num_taken] in self._received:
            step = awaited[self._num_taken]
            self.present |= self._received.pop(step)
            end = self._num_elements if step < 2 * others else 0
            instructions.append(RingReceive(self._ring, step, 0, end, step < others))
            self._num_taken += 1
            if self._place == 0 and self._num_taken == others:
                instructions += self._to_others(others, self._num_elements)
        return instructions

    def _to_others(self, first_step: int, num_elements: int) -> list[Instruction]:
        return [
            self._send(member, first_step + number, num_elements) for number, member in enumerate(self._members[1:])
        ]

    def _send(self, device: int, step: int, num_elements: int) -> RingSend:
        key, epoch, version, shard = self._ring
        header = RingChunk(key, epoch, self._round, version, shard, step, self.present)
        return RingSend(self._ring, device, 0, num_elements, header)
