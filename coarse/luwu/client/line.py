# Pure: no MPI, threads, clock or environment.
"""A worker's line to one optimizer node: operations, the stream of what it pulls, and that of what it pushes."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from coarse.luwu.many_to_one.packets import NOTHING_CAME, Beat, Data, Instruction, Transmit
from coarse.luwu.many_to_one.receiver import Receiver
from coarse.luwu.many_to_one.sender import LOSSLESS, Sender
from coarse.luwu.records import PagedAsk, PagedBeat, PagedData
from coarse.luwu.store.declaration import Declaration, staging_slot_bytes, window_slot_bytes
from coarse.luwu.store.operations import Operation, Pull, Push, wire_of
from coarse.luwu.store.stream import ChunkStream, Ring, Span


@dataclass(eq=False)
class Pulled:
    """A pull under way."""

    unit: int
    target: np.ndarray | None
    """(n,) uint8 of the unit's flat array; None: nobody wants it any more."""
    num_left: int
    """Packets that are not there."""

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
    is_ready: bool = True
    """Whether its source may be copied; see `supply`."""
    exponents: np.ndarray | None = None
    """By block of the unit, of what is packed; None: its bits are."""

    @property
    def is_done(self) -> bool:
        """Whether its values were added, and their memory is free."""
        return self.line.added_end >= self.end


class GradientRoom:
    """Device memory in which a unit's gradients are born: zeros, to be added to, and then pushed."""

    def __init__(self, device: int, offset: int, values: np.ndarray) -> None:
        self.device = device
        self.offset = offset
        self.values = values
        """(n,) of the gradients' storage type: the unit's flat array."""


class Copy(NamedTuple):
    """Packets of a chunk to be copied: from a device's window to a pull's target, or from a push's source to a staging
    slot."""

    span: Span
    begin: int
    end: int
    """Packets [begin, end) of the stream."""
    offset: int
    """Where in device memory."""
    pulled: Pulled | None
    pushed: Pushed | None
    stamp: int = NOTHING_CAME
    """Of a pull: that of the packets' transmission."""


class Timeline(Protocol):
    """Who wants to know when packets are copied."""

    def now_s(self) -> float:
        """Seconds on its clock."""
        ...

    def copied(self, copy: Copy, begin_s: float, end_s: float) -> None:
        """Some were."""
        ...


class Agreement(Protocol):
    """What workers have to agree on before a push may be packed."""

    def put(self, line: "NodeLine", unit: int, pushed: Pushed, source: np.ndarray | None) -> None:
        """A push of this worker's next gradients."""
        ...

    def close(self, reason: str) -> None:
        """No push will come any more."""
        ...


class NodeLine:
    """One worker, one model, one optimizer node. Records to be sent gather in `out`."""

    def __init__(
        self, client: int, device: int, number: int, node: int, declaration: Declaration, opened: dict[str, Any]
    ) -> None:
        """`opened` is what the node, and the device that the worker is attached to, have answered."""
        model = declaration.model
        self.device = device
        self.hub: int = opened["hub"]
        """The device that the worker is attached to, in whose memory its values are: the node's own, on its host."""
        self.opened = opened
        self._model = model
        self._pull_bytes = window_slot_bytes(model, node)
        self._staging_bytes = staging_slot_bytes(declaration)
        self._push_window: int = opened["push_window"]
        self._ring = Ring(*opened["ring"]) if "ring" in opened else None
        """Where what is pulled lies; None: in the node's window, chunk by chunk."""
        self.out: list[PagedAsk | PagedData | PagedBeat] = []
        self.copies: deque[Copy] = deque()
        """What may be copied now."""
        self.num_operations = 0
        self._head = (client, device, number)
        self._down = ChunkStream(model, opened["down_elements"])
        depth = self._push_window if self._ring is not None else opened["num_window"] * self._down.most_packets
        self._receiver = Receiver(0, depth)
        self._pulls: dict[int, Pulled] = {}
        """By message of the stream."""
        self._early: list[PagedData] = []
        """What another worker's pulls have brought, and this one has not asked for yet."""
        self._up = ChunkStream(declaration.pushed, opened["up_elements"])
        self._sender = Sender(0, self._push_window, reorder=LOSSLESS)
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
        pulled = self._pulls[spans[0].message] = Pulled(unit, target, spans[-1].end - spans[0].first)
        early, self._early = self._early, []
        for record in early:
            self.on_data(record)
        return pulled

    def push(
        self, push: Push, present: int, offset: int = -1, source: np.ndarray | None = None, *, is_ready: bool = True
    ) -> Pushed:
        """Push a unit's values: from `offset` of device memory, or from `source`, which is not read before it
        `is_ready` or `supply` says so; where nothing is present, none."""
        self.ask(push, present, offset)
        spans = self._up.append(push.unit)
        pushed = Pushed(spans[-1].end, source if offset < 0 and present else None, self, is_ready)
        if pushed.source is None:
            self._sender.offer(spans[0].first, spans[-1].end)
        else:
            self._unstaged += [(span, pushed) for span in spans]
        self._send_on()
        return pushed

    def supply(self, pushed: Pushed, exponents: np.ndarray) -> None:
        """The source of a push may be packed by exponents."""
        pushed.exponents = exponents
        pushed.is_ready = True
        self._send_on()

    @property
    def added_end(self) -> int:
        """The packet below which all were added, or have left the host; see [Note: mapped hops]."""
        return self._sender.credit - self._push_window

    def elements(self, copy: Copy) -> tuple[int, int]:
        """Which elements of its unit a copy's packets have."""
        first, past = self._model.elements(copy.span.unit, copy.span.chunk)
        stream = self._down
        if copy.pulled is None or stream.packet_elements is None:
            return first, past  # a chunk is staged as a whole
        begin, end = (
            first + (packet - copy.span.first) * stream.packet_elements for packet in (copy.begin, copy.end)
        )
        return begin, min(end, past)

    # --- what the node says

    def on_data(self, record: PagedData) -> None:
        """Packets of what is pulled are in the window, to be copied: perhaps before this worker has asked for them."""
        for span in self._down.overlapping(record.begin, record.end):
            begin, end = max(record.begin, span.first), min(record.end, span.end)
            for first, past in [(begin, end)] if self._ring is None else self._ring.runs(begin, end):
                stamp = record.stamp - (record.end - past)
                offset = self._pulled_at(span, first)
                self.copies.append(Copy(span, first, past, offset, self._pulls[span.message], None, stamp))
        if record.end > self._down.end:
            self._early.append(record._replace(begin=max(record.begin, self._down.end)))

    def on_beat(self, record: PagedBeat) -> None:
        """The node's heartbeat of what is pushed."""
        self._sender.on_beat(Beat(record.ack, record.credit, record.beyond, record.echo))
        self._up.forget(self.added_end)
        self._send_on()

    def on_copied(self, copy: Copy) -> None:
        """Packets were copied."""
        span = copy.span
        if copy.pulled is None:
            self._sender.offer(copy.begin, copy.end)
            self._send_on()
            return
        copy.pulled.num_left -= copy.end - copy.begin
        if copy.pulled.is_done:
            del self._pulls[span.message]
        receiver = self._receiver
        self._do(receiver.on_data(Data(copy.begin, copy.end, copy.stamp, asks=False)), is_up=False)
        self._do(receiver.consume(receiver.ack), is_up=False)
        if self._ring is None and receiver.ack >= span.end and receiver.has_untold:
            self._do([receiver.heartbeat()], is_up=False)  # the window has chunks, which may be few and small
        self._down.forget(receiver.ack)

    # --- within

    def _pulled_at(self, span: Span, packet: int) -> int:
        """Where packets of what is pulled lie from one of a chunk on."""
        if self._ring is not None:
            return self._ring.at(packet)
        skipped = (packet - span.first) * (self._down.packet_elements or 0) * self._model.pulled.itemsize
        slot: int = span.order % self.opened["num_window"]
        return int(self.opened["window"]) + slot * self._pull_bytes + skipped

    def _send_on(self) -> None:
        """Stage what has room, and send what may be sent."""
        num_slots = self.opened["num_staging"]
        while self._staged and self._staged[0] <= self.added_end:
            self._staged.popleft()
        while self._unstaged and self._unstaged[0][1].is_ready and len(self._staged) < num_slots:
            span, pushed = self._unstaged.popleft()
            self._staged.append(span.end)
            offset = self.opened["staging"] + self._num_staged % num_slots * self._staging_bytes
            self.copies.append(Copy(span, span.first, span.end, offset, None, pushed))
            self._num_staged += 1
        self._do(list(self._sender.send()), is_up=True)

    def _do(self, wanted: list[Instruction], *, is_up: bool) -> None:
        for one in wanted:
            match one:
                case Transmit(_, Beat(ack, credit, beyond, echo)):
                    self.out.append(PagedBeat(*self._head, is_up, ack, credit, beyond, echo))
                case Transmit(_, Data(begin, end, stamp, asks)):
                    self.out.append(PagedData(*self._head, is_up, begin, end, stamp, asks))
