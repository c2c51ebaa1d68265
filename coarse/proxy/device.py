# Pure: no MPI, threads, clock or environment.
"""One memory device in any driver: its proxy decides, the driver carries records and keeps time.

A driver implements `DeviceDriver` and reports events: `on_record` when a record has arrived, `on_chunk` when a
ring's chunk has, `reduce` when it is a sum's turn. docs/design.md (A driver) says this with an example.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from coarse.errors import CoarseError, LentMemoryError
from coarse.protocol.records import Record, RingChunk
from coarse.proxy.feature import FeatureMachine
from coarse.proxy.instructions import (
    Finished,
    Instruction,
    Reduce,
    Reserve,
    RingFinish,
    RingReceive,
    RingReduce,
    RingSend,
    Send,
)
from coarse.proxy.protocol import ProxyProtocol

ReduceWork = Reduce | RingReduce
"""Sum that a device takes when it is its turn."""


class DeviceDriver(Protocol):
    """Requests of a device to its driver.

    No method may pass anything to a device before it returns.
    """

    def send(self, send: Send) -> None:
        """Bring a record to a client's protocol or to another device.

        Records from one device to another arrive in order.
        """
        ...

    def send_chunk(self, send: RingSend) -> None:
        """Bring a header and elements [begin, end) of the shard's LocalBuf to another device."""
        ...

    def reduce(self, work: ReduceWork) -> None:
        """Call `Device.reduce` with the work when it is its turn."""
        ...

    def reserve(self, reserve: Reserve) -> str:
        """Make bytes of the device's memory real.

        Return why that is impossible, or an empty string.
        """
        ...

    def finish(self) -> None:
        """End the driver: all clients have left, and no more records will arrive."""
        ...


class DeviceBytes(Protocol):
    """Adder and mover of bytes in a device's memory, which RingBuffers implements.

    Its methods raise LentMemoryError if bytes that a client lent cannot be read or written any more.
    """

    def reduce(self, work: ReduceWork) -> None:
        """Add the sources."""
        ...

    def receive(self, receive: RingReceive) -> None:
        """Take a chunk into the LocalBuf."""
        ...

    def finish(self, finish: RingFinish) -> None:
        """Write a ring's result."""
        ...


class Executor(Protocol):
    """Part of a feature that carries out its instructions; see coarse.proxy.executor."""

    context: Any


class Device:
    """Proxy's protocol whose instructions are carried out as they come."""

    def __init__(
        self,
        protocol: ProxyProtocol,
        driver: DeviceDriver,
        memory: DeviceBytes | None,
    ) -> None:
        """Take the protocol and its driver.

        Without `memory` only sizes move.
        """
        self.protocol = protocol
        self._driver = driver
        self._memory = memory
        self._carriers: dict[type, Callable[[Any], None]] = {
            Send: driver.send,
            Reduce: driver.reduce,
            RingReduce: driver.reduce,
            RingSend: driver.send_chunk,
            Reserve: self._reserve,
            RingReceive: _nothing if memory is None else memory.receive,
            RingFinish: self._finish_ring,
            Finished: self._finish,
        }

    def add_feature(
        self, name: str, machine: FeatureMachine, executor: Executor, carriers: Mapping[type, Callable[[Any], None]]
    ) -> None:
        """Take a feature, and the functions that carry out its instructions.

        Raises:
            CoarseError: one of these instructions has a carrier already.
        """
        if taken := self._carriers.keys() & carriers.keys():
            named = sorted(kind.__name__ for kind in taken)
            raise CoarseError(f"a feature's executor carries out {named}, which others do; leave them to them")
        self._carriers.update(carriers)

    def on_record(self, record: Record) -> None:
        """Process a record of a client or of another device."""
        self.carry_out(self.protocol.on_record(record))

    def on_chunk(self, header: RingChunk) -> None:
        """Process a ring's chunk; where there are bytes, they are in the RecvBuf."""
        self.carry_out(self.protocol.on_chunk(header))

    def on_dead(self, rank: int, text: str) -> None:
        """Process the death of a rank."""
        self.carry_out(self.protocol.on_dead(rank, text))

    def reduce(self, work: ReduceWork) -> None:
        """Add a sum's sources, now that it is its turn, and report that it is done."""
        if self._memory is not None:
            try:
                self._memory.reduce(work)
            except LentMemoryError as error:
                ring = work.ring if isinstance(work, RingReduce) else work
                self._give_up(ring.key, ring.epoch, error, was_adding=True)
                return
        self.reduced(work)

    def reduced(self, work: ReduceWork) -> None:
        """Report that a sum is done, taken by `reduce` or by the driver itself."""
        if type(work) is Reduce:
            self.carry_out(self.protocol.on_reduced(work))
        elif type(work) is RingReduce:
            self.carry_out(self.protocol.on_ring_reduced(work.ring))

    def carry_out(self, instructions: list[Instruction]) -> None:
        """Carry out the instructions that the protocol has answered.

        Raises:
            CoarseError: an instruction has no carrier.
        """
        carriers = self._carriers
        for instruction in instructions:
            carrier = carriers.get(type(instruction))
            if carrier is None:
                kind = type(instruction).__name__
                raise CoarseError(f"nothing here carries out a {kind}; add it to the carriers of an executor")
            carrier(instruction)

    def carry_out_of(self, feature: str, steps: list[Instruction]) -> None:
        """Carry out the instructions that a feature's executor has answered."""
        self.carry_out(steps)

    def _reserve(self, reserve: Reserve) -> None:
        self.carry_out(self.protocol.on_reserved(reserve.request, self._driver.reserve(reserve)))

    def _finish_ring(self, finish: RingFinish) -> None:
        if self._memory is not None:
            try:
                self._memory.finish(finish)
            except LentMemoryError as error:
                self._give_up(finish.ring.key, finish.ring.epoch, error, was_adding=False)

    def _give_up(self, key: int, epoch: int, error: LentMemoryError, *, was_adding: bool) -> None:
        """Report bytes that cannot be reached.

        This ends the key. If the client itself has ended, the driver will hear of its death, and nothing is done here.
        """
        if not error.has_ended:
            self.carry_out(self.protocol.on_unreachable(key, epoch, str(error), was_adding=was_adding))

    def _finish(self, _: Finished) -> None:
        self._driver.finish()


def _nothing(_: Instruction) -> None:
    """Do nothing, for there are no bytes to move."""


class Work(Protocol):
    """Order of sums, which says when it is a sum's turn.

    Another driver than the live one gives a service its own.
    """

    def give(self, work: ReduceWork) -> None:
        """Take a sum that the device is to add."""
        ...

    def take(self) -> ReduceWork | None:
        """Return the next sum; None if none is due."""
        ...

    def wall_s_until_next(self) -> float | None:
        """Return the wall seconds until `take` may have something, as far as that is known."""
        ...


class UrgentFirst:
    """Order with the most urgent sum first, once the device's core is free; of equal ones the oldest."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, ReduceWork]] = []
        self._num_given = 0

    def give(self, work: ReduceWork) -> None:
        """Queue a sum."""
        self._num_given += 1
        heapq.heappush(self._waiting, (-work.priority, self._num_given, work))

    def take(self) -> ReduceWork | None:
        """Return the most urgent sum, or None."""
        return heapq.heappop(self._waiting)[2] if self._waiting else None

    def wall_s_until_next(self) -> float | None:
        """Return None: the service takes what there is before it sleeps."""
        return None
