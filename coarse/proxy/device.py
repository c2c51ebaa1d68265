# Pure: no MPI, threads, clock or environment.
"""One memory device in any driver: its proxy decides, the driver carries records and keeps time.

A driver implements `DeviceDriver` and reports what happens: `on_record` when a record has come, `on_chunk` when a
ring's chunk has, `reduce` when a sum's turn has come. docs/design.md (A driver) says the same with an example.
"""

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
"""What a device adds when its turn has come."""


class DeviceDriver(Protocol):
    """What a device asks of its driver. None of these may hand anything to a device before it returns."""

    def send(self, send: Send) -> None:
        """Bring a record to a client's protocol or to another device; what one sends another comes in order."""
        ...

    def send_chunk(self, send: RingSend) -> None:
        """Bring a header and elements [begin, end) of the shard's LocalBuf to another device."""
        ...

    def reduce(self, work: ReduceWork) -> None:
        """Call `Device.reduce` with the work when its turn has come."""
        ...

    def reserve(self, reserve: Reserve) -> str:
        """Make bytes of the device's memory real; why that is impossible, or an empty string."""
        ...

    def finish(self) -> None:
        """All clients have left: nothing will come any more."""
        ...


class DeviceBytes(Protocol):
    """Adds and moves bytes in a device's memory; RingBuffers does.

    LentMemoryError says that bytes which a client lent cannot be read or written any more.
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
    """The part of a feature that carries out its instructions; see coarse.proxy.executor."""

    context: Any


class Device:
    """A proxy's protocol whose instructions are carried out as they come."""

    def __init__(
        self,
        protocol: ProxyProtocol,
        driver: DeviceDriver,
        memory: DeviceBytes | None,
    ) -> None:
        """Without `memory` only sizes move."""
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
        """Take a feature, and what carries out its instructions.

        Raises:
            CoarseError: others have carriers of one of them.
        """
        if taken := self._carriers.keys() & carriers.keys():
            named = sorted(kind.__name__ for kind in taken)
            raise CoarseError(f"a feature's executor carries out {named}, which others do; leave them to them")
        self._carriers.update(carriers)

    def on_record(self, record: Record) -> None:
        """A record of a client or of another device has come."""
        self.carry_out(self.protocol.on_record(record))

    def on_chunk(self, header: RingChunk) -> None:
        """A ring's chunk has come; where there are bytes, they are in the RecvBuf."""
        self.carry_out(self.protocol.on_chunk(header))

    def on_dead(self, rank: int, text: str) -> None:
        """A rank is gone."""
        self.carry_out(self.protocol.on_dead(rank, text))

    def reduce(self, work: ReduceWork) -> None:
        """The turn of what the driver was asked to reduce has come."""
        if self._memory is not None:
            try:
                self._memory.reduce(work)
            except LentMemoryError as error:
                ring = work.ring if isinstance(work, RingReduce) else work
                self._give_up(ring.key, ring.epoch, error, was_adding=True)
                return
        self.reduced(work)

    def reduced(self, work: ReduceWork) -> None:
        """What the driver was asked to reduce has been reduced, by `reduce` or by the driver itself."""
        if type(work) is Reduce:
            self.carry_out(self.protocol.on_reduced(work))
        elif type(work) is RingReduce:
            self.carry_out(self.protocol.on_ring_reduced(work.ring))

    def carry_out(self, instructions: list[Instruction]) -> None:
        """Carry out what the protocol has answered."""
        carriers = self._carriers
        for instruction in instructions:
            carrier = carriers.get(type(instruction))
            if carrier is None:
                kind = type(instruction).__name__
                raise CoarseError(f"nothing here carries out a {kind}; add it to the carriers of an executor")
            carrier(instruction)

    def carry_out_of(self, feature: str, steps: list[Instruction]) -> None:
        """Carry out what a feature's executor has answered."""
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
        """Bytes cannot be reached: that is the key's end, or its client's, of which the driver will hear."""
        if not error.has_ended:
            self.carry_out(self.protocol.on_unreachable(key, epoch, str(error), was_adding=was_adding))

    def _finish(self, _: Finished) -> None:
        self._driver.finish()


def _nothing(_: Instruction) -> None:
    """There are no bytes to move."""
