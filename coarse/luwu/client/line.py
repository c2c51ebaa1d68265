# Pure: no MPI, threads, clock or environment.
"""Connection of a worker to one optimizer node: operations, and the streams of its pulls and pushes."""

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
    """Pull under way."""

    unit: int
    target: np.ndarray | None
    """(n,) uint8 of the unit's flat array; None if no one wants it any more."""
    num_left: int
    """Number of packets that have not come."""

    @property
    def is_done(self) -> bool:
        """True if all packets are in the target."""
        return not self.num_left


@dataclass(eq=False)
class Pushed:
    """Push under way."""

    end: int
    """End of the push: the packet behind its last."""
    source: np.ndarray | None
    """(n,) of the values to be copied to staging slots; None if the values lie in device memory, or there are none."""
    line: "NodeLine"
    is_ready: bool = True
    """True if the source may be copied; `supply` makes it so."""
    exponents: np.ndarray | None = None
    """Exponents by block of the unit, for values that are packed with them; None if the bits themselves are packed."""

    @property
    def is_done(self) -> bool:
        """True if the values were added, and their memory is free."""
        return self.line.added_end >= self.end


class GradientRoom:
    """Device memory in which a unit's gradients are born: zeros, to be added to, and then pushed."""

    def __init__(self, device: int, offset: int, values: np.ndarray) -> None:
        self.device = device
        self.offset = offset
        self.values = values
        """(n,) of the gradients' storage type: the unit's flat array."""


class Copy(NamedTuple):
    """Packets of a chunk to be copied.

    They go from a device's window to a pull's target, or from a push's source to a staging slot.
    """

    span: Span
    begin: int
    end: int
    """Packets [begin, end) of the stream."""
    offset: int
    """Offset in device memory."""
    pulled: Pulled | None
    pushed: Pushed | None
    stamp: int = NOTHING_CAME
    """Stamp of the packets' transmission, for a pull."""


class Timeline(Protocol):
    """Observer that is told when packets are copied."""

    def now_s(self) -> float:
        """Return the seconds on its clock."""
        ...

    def copied(self, copy: Copy, begin_s: float, end_s: float) -> None:
        """Note that packets were copied between two times."""
        ...


class Agreement(Protocol):
    """Agreement of all workers that a push needs before it may be packed."""

    def put(self, line: "NodeLine", unit: int, pushed: Pushed, source: np.ndarray | None) -> None:
        """Queue a push of this worker's next gradients."""
        ...

    def close(self, reason: str) -> None:
        """End the agreement; no push will come any more."""
        ...


class NodeLine:
    """Connection of one worker and one model to one optimizer node; records to be sent gather in `out`."""

    def __init__(
        self, client: int, device: int, number: int, node: int, declaration: Declaration, opened: dict[str, Any]
    ) -> None:
        """Start the line.

        `opened` holds the answers of the node, and of the device that the worker is attached to.
        """
        model = declaration.model
        self.device = device
        self.hub: int = opened["hub"]
        """Device that the worker is attached to, in whose memory its values are: the node's own, on its host."""
        self.opened = opened
        self._model = model
        self._pull_bytes = window_slot_bytes(model, node)
        self._staging_bytes = staging_slot_bytes(declaration)
        self._push_window: int = opened["push_window"]
        self._ring = Ring(*opened["ring"]) if "ring" in opened else None
        """Ring that holds pulled packets; None if they lie in the node's window, chunk by chunk."""
        self.out: list[PagedAsk | PagedData | PagedBeat] = []
        self.copies: deque[Copy] = deque()
        """Copies that may be made now."""
        self.num_operations = 0
        self._head = (client, device, number)
        self._down = ChunkStream(model, opened["down_elements"])
        depth = self._push_window if self._ring is not None else opened["num_window"] * self._down.most_packets
        self._receiver = Receiver(0, depth)
        self._pulls: dict[int, Pulled] = {}
        """Pulls by message of the stream."""
        self._early: list[PagedData] = []
        """Records of packets that another worker's pulls have brought, and that this one has not asked for yet."""
        self._up = ChunkStream(declaration.pushed, opened["up_elements"])
        self._sender = Sender(0, self._push_window, reorder=LOSSLESS)
        self._unstaged: deque[tuple[Span, Pushed]] = deque()
        self._staged: deque[int] = deque()
        """End of the chunk in each staging slot in use: the packet behind the chunk's last."""
        self._num_staged = 0

    # --- operations

    def ask(self, operation: Operation, present: int = 0, offset: int = -1) -> None:
        """Ask the node for the next operation."""
        self.num_operations += 1
        self.out.append(PagedAsk(*self._head, wire_of(operation), present, offset))

    def pull(self, unit: int, target: np.ndarray) -> Pulled:
        """Ask for a unit's parameters, to be copied into (n,) uint8."""
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
        """Push a unit's values from `offset` of device memory or from `source`; none where nothing is present.

        The source is not read before `is_ready` or `supply` allows it.
        """
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
        """Let the source of a push be packed with these exponents."""
        pushed.exponents = exponents
        pushed.is_ready = True
        self._send_on()

    @property
    def added_end(self) -> int:
        """Packet below which all were added, or have left the host; see [Note: mapped hops]."""
        return self._sender.credit - self._push_window

    def elements(self, copy: Copy) -> tuple[int, int]:
        """Return the range [first, past) of its unit's elements that a copy's packets have."""
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
        """Queue copies of pulled packets in the window, perhaps before this worker has asked for them."""
        for span in self._down.overlapping(record.begin, record.end):
            begin, end = max(record.begin, span.first), min(record.end, span.end)
            for first, past in [(begin, end)] if self._ring is None else self._ring.runs(begin, end):
                stamp = record.stamp - (record.end - past)
                offset = self._pulled_at(span, first)
                self.copies.append(Copy(span, first, past, offset, self._pulls[span.message], None, stamp))
        if record.end > self._down.end:
            self._early.append(record._replace(begin=max(record.begin, self._down.end)))

    def on_beat(self, record: PagedBeat) -> None:
        """Take the node's heartbeat about the pushes."""
        self._sender.on_beat(Beat(record.ack, record.credit, record.beyond, record.echo))
        self._up.forget(self.added_end)
        self._send_on()

    def on_copied(self, copy: Copy) -> None:
        """Note that packets were copied."""
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
        """Return the offset of pulled packets in device memory, from one packet of a chunk on."""
        if self._ring is not None:
            return self._ring.at(packet)
        skipped = (packet - span.first) * (self._down.packet_elements or 0) * self._model.pulled.itemsize
        slot: int = span.order % self.opened["num_window"]
        return int(self.opened["window"]) + slot * self._pull_bytes + skipped

    def _send_on(self) -> None:
        """Stage the chunks that have room, and send the packets that may be sent."""
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
