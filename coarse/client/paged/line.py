# Pure: no MPI, threads, clock or environment.
"""A worker's line to one optimizer node: operations, the stream of what it pulls, and that of what it pushes."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coarse.protocol.paged_records import PagedAsk, PagedBeat, PagedData
from coarse.storage.paged.declaration import PUSH_WINDOW, Declaration, window_slot_bytes
from coarse.storage.paged.operations import Operation, Pull, Push, wire_of
from coarse.storage.paged.stream import ChunkStream, Span
from coarse.transport.many_to_one.packets import NOTHING_CAME, Beat, Data, Instruction, Transmit
from coarse.transport.many_to_one.receiver import Receiver
from coarse.transport.many_to_one.sender import Sender


@dataclass(eq=False)
class Pulled:
    """A pull under way."""

    unit: int
    target: np.ndarray | None
    """(n,) uint8 of the unit's flat array; None: nobody wants it any more."""
    num_left: int
    """Chunks that are not there."""

    @property
    def is_done(self) -> bool:
        """Whether all of it is in its target."""
        return not self.num_left


@dataclass(eq=False)
class Pushed:
    """A push under way."""

    end: int
    """The packet behind its last."""
    source: np.ndarray | None
    """(n,) of what is copied to staging slots; None: the values lie in device memory, or there are none."""
    line: "NodeLine"

    @property
    def is_done(self) -> bool:
        """Whether its values were added, and their memory is free."""
        return self.line.added_end >= self.end


class Copy(NamedTuple):
    """A chunk to be copied: from the node's window to a pull's target, or from a push's source to a staging slot."""

    span: Span
    pulled: Pulled | None
    pushed: Pushed | None
    slot: int
    """Of the window, or of the staging slots."""
    stamp: int = NOTHING_CAME
    """Of a pull: that of the packets' transmission."""


class NodeLine:
    """One worker, one model, one optimizer node. Records to be sent gather in `out`."""

    def __init__(
        self, client: int, device: int, number: int, node: int, declaration: Declaration, opened: dict[str, Any]
    ) -> None:
        """`opened` is what the node answered."""
        model = declaration.model
        self.device = device
        self.declaration = declaration
        self.opened = opened
        self.pull_bytes = window_slot_bytes(model, node)
        self.out: list[PagedAsk | PagedData | PagedBeat] = []
        self.copies: deque[Copy] = deque()
        """What may be copied now."""
        self.num_operations = 0
        self._head = (client, device, number)
        self._down = ChunkStream(model)
        self._receiver = Receiver(0, opened["num_window"])
        self._pulls: dict[int, Pulled] = {}
        """By message of the stream."""
        self._early: list[PagedData] = []
        """What another worker's pulls have brought, and this one has not asked for yet."""
        self._up = ChunkStream(model)
        self._sender = Sender(0, PUSH_WINDOW)
        self._unstaged: deque[tuple[Span, Pushed]] = deque()
        self._staged: deque[int] = deque()
        """Of each staging slot in use the packet behind its chunk's last."""
        self._num_staged = 0

    # --- operations

    def ask(self, operation: Operation, present: int = 0, offset: int = -1) -> None:
        """The next operation."""
        self.num_operations += 1
        self.out.append(PagedAsk(*self._head, wire_of(operation), present, offset))

    def pull(self, unit: int, target: np.ndarray) -> Pulled:
        """Ask for a unit's parameters, into (n,) uint8."""
        self.ask(Pull(unit))
        spans = self._down.append(unit)
        pulled = self._pulls[spans[0].message] = Pulled(unit, target, len(spans))
        early, self._early = self._early, []
        for record in early:
            self.on_data(record)
        return pulled

    def push(self, push: Push, present: int, offset: int = -1, source: np.ndarray | None = None) -> Pushed:
        """Push a unit's values: from `offset` of device memory, or from `source`; where nothing is present, none."""
        self.ask(push, present, offset)
        spans = self._up.append(push.unit)
        pushed = Pushed(spans[-1].end, source if offset < 0 and present else None, self)
        if pushed.source is None:
            self._sender.offer(spans[0].first, spans[-1].end)
        else:
            self._unstaged += [(span, pushed) for span in spans]
        self._send_on()
        return pushed

    @property
    def added_end(self) -> int:
        """The packet below which all were added; see [Note: mapped hops]."""
        return self._sender.credit - PUSH_WINDOW

    # --- what the node says

    def on_data(self, record: PagedData) -> None:
        """Packets of what is pulled are in the window, to be copied: perhaps before this worker has asked for them."""
        for span in self._down.overlapping(record.begin, record.end):
            slot = span.order % self.opened["num_window"]
            stamp = record.stamp - (record.end - span.end)
            self.copies.append(Copy(span, self._pulls[span.message], None, slot, stamp))
        if record.end > self._down.end:
            self._early.append(record._replace(begin=max(record.begin, self._down.end)))

    def on_beat(self, record: PagedBeat) -> None:
        """The node's heartbeat of what is pushed."""
        self._sender.on_beat(Beat(record.ack, record.credit, record.beyond, record.echo))
        self._up.forget(self.added_end)
        self._send_on()

    def on_copied(self, copy: Copy) -> None:
        """A chunk was copied."""
        span = copy.span
        if copy.pulled is None:
            self._sender.offer(span.first, span.end)
            self._send_on()
            return
        copy.pulled.num_left -= 1
        if copy.pulled.is_done:
            del self._pulls[span.message]
        receiver = self._receiver
        self._do(receiver.on_data(Data(span.first, span.end, copy.stamp, asks=False)), is_up=False)
        self._do(receiver.consume(receiver.ack), is_up=False)
        self._down.forget(receiver.ack)

    # --- within

    def _send_on(self) -> None:
        """Stage what has room, and send what may be sent."""
        num_slots = self.opened["num_staging"]
        while self._staged and self._staged[0] <= self.added_end:
            self._staged.popleft()
        while self._unstaged and len(self._staged) < num_slots:
            span, pushed = self._unstaged.popleft()
            self._staged.append(span.end)
            self.copies.append(Copy(span, None, pushed, self._num_staged % num_slots))
            self._num_staged += 1
        self._do(list(self._sender.send()), is_up=True)

    def _do(self, wanted: list[Instruction], *, is_up: bool) -> None:
        for one in wanted:
            match one:
                case Transmit(_, Beat(ack, credit, beyond, echo)):
                    self.out.append(PagedBeat(*self._head, is_up, ack, credit, beyond, echo))
                case Transmit(_, Data(begin, end, stamp, asks)):
                    self.out.append(PagedData(*self._head, is_up, begin, end, stamp, asks))
