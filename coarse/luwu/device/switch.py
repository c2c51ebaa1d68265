# Pure: no MPI, threads, clock or environment.
"""Memory device between workers and a model's optimizer node: it adds pushes, and copies pulls.

Its children are workers of its host, whose values lie in its memory, and other devices, whose packets come into rings.
Sums wait in a ring for the parent's heartbeats. [Note: one worker] Where the only child is a worker that pushes what
devices push, nothing is added: its values leave from where they are, and stay there until the parent has them.
"""

from dataclasses import dataclass, field
from functools import cached_property

from coarse.luwu.device.places import ChildPackets, ClientPlaces, PacketPlan, PushedValues, cut
from coarse.luwu.device.served import Out
from coarse.luwu.many_to_one.frames import Frame, whole_beat, whole_data, whole_probe
from coarse.luwu.many_to_one.packets import Beat, Data, Free, Full, Instruction, Probe, Take, Transmit
from coarse.luwu.many_to_one.sender import Sender
from coarse.luwu.many_to_one.switch import PARENT, AddingSwitch, BroadcastingSwitch
from coarse.luwu.many_to_one.tree import Tree
from coarse.luwu.records import PagedAsk, PagedBeat, PagedData
from coarse.luwu.steps import AddPackets, PlaceOfValues, SendFrame, ZeroValues
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.operations import Push, from_wire
from coarse.luwu.store.stream import ChunkStream, Ring, Span


@dataclass(frozen=True, kw_only=True)
class SwitchPlaces:
    """Memory of a switch."""

    clients: dict[int, ClientPlaces] = field(default_factory=dict)
    rings: dict[int, Ring] = field(default_factory=dict)
    """Ring for the packets that each device below it pushes."""
    sums: Ring | None = None
    """Ring for the sums; None: see [Note: one worker]."""
    copies: Ring
    """Ring for the packets that are pulled."""


class ModelSwitch:
    """Part of a device that is not the root in one tree of one model."""

    def __init__(
        self,
        number: int,
        device: int,
        tree: Tree,
        declaration: Declaration,
        packets: PacketPlan,
        places: SwitchPlaces,
        num_staging: int,
    ) -> None:
        self.number = number
        self.tree = tree
        self._num_clients = tree.placement.num_clients
        self._parent = tree.parents[device]
        self._children = tree.children(device)
        self._child_of = {endpoint: child for child, endpoint in enumerate(self._children)}
        self._workers = [endpoint for endpoint in self._children if endpoint < self._num_clients]
        self._places = places
        window = packets.window
        self.adds = AddingSwitch(len(self._children), window, window)
        near = [self._child_of[worker] for worker in self._workers]
        self.copies = BroadcastingSwitch(
            len(self._children), window, [window] * len(self._children), lossless=near
        )
        assert packets.up_elements is not None
        self._wire, self._combine = declaration.wire, declaration.combine
        self._up = ChunkStream(declaration.pushed, packets.up_elements)
        self._up_elements = packets.up_elements
        self._values = PushedValues(self._up, places.clients, num_staging, declaration)
        self._below = {device: ChildPackets(ring, self._wire) for device, ring in places.rings.items()}
        self._empty: set[int] = set()
        """Packets for whose sums no worker below has a value."""
        self._short_copies: dict[int, int] = {}
        """Pulled packet that is smaller than others -> its bytes."""
        self._freed = 0

    @cached_property
    def senders(self) -> dict[tuple[int, bool], Sender]:
        """Senders by device at the other end, and whether the stream is that of pushes."""
        found = {(self._parent, True): self.adds.sender}
        for endpoint, sender in zip(self._children, self.copies.children, strict=True):
            if endpoint >= self._num_clients:
                found[endpoint - self._num_clients, False] = sender
        return found

    def look(self, worker: int) -> int:
        """Return the offset of the slot for values that a worker of this host looks at."""
        return self._places.clients[worker].look

    # --- from workers of this host

    def on_ask(self, ask: PagedAsk) -> None:
        """Note a worker's request to the optimizer node for an operation."""
        operation = from_wire(ask.operation)
        if isinstance(operation, Push):
            self._values.on_push(ask.client, operation, ask.present, ask.offset)

    def on_data(self, record: PagedData) -> list[Out]:
        """Take a worker's packets, which lie in its memory."""
        data = Data(record.begin, record.end, record.stamp, record.asks)
        return self._push_on(self.adds.on_data(self._child_of[record.client], data))

    def on_beat(self, record: PagedBeat) -> list[Out]:
        """Take a worker's heartbeat about its pulls."""
        beat = Beat(record.ack, record.credit, record.beyond, record.echo)
        return self._pull_on(self.copies.on_beat(self._child_of[record.client], beat))

    # --- from devices

    def on_frame(self, device: int, frame: Frame, nbytes: int) -> list[Out]:
        """Take a frame; each packet of data has `nbytes` bytes."""
        is_up, message = frame.is_up, frame.message
        if device == self._parent:
            if is_up:
                assert isinstance(message, Beat)
                return self._push_on(self.adds.on_beat(whole_beat(message, self.adds.sender)))
            if isinstance(message, Data):
                return self._copy(whole_data(message, self.copies.receiver), nbytes)
            assert isinstance(message, Probe)
            return self._pull_on(self.copies.on_probe(whole_probe(message, self.copies.receiver)))
        child = self._child_of[device + self._num_clients]
        if isinstance(message, Beat):
            return self._pull_on(self.copies.on_beat(child, whole_beat(message, self.copies.children[child])))
        receiver = self.adds.children[child]
        if isinstance(message, Probe):
            return self._push_on(self.adds.on_probe(child, whole_probe(message, receiver)))
        data = whole_data(message, receiver)
        out: list[Out] = []
        wanted = self.adds.on_data(child, data)
        for one in wanted:
            if isinstance(one, Take):
                out += self._below[device].take(one.begin, one.end, data, nbytes, is_empty=frame.is_empty)
        return out + self._push_on(wanted)

    def on_timer(self, device: int, is_up: bool) -> list[Out]:
        """Handle a silence of a device that is longer than a round trip takes."""
        if is_up:
            return self._push_on(self.adds.on_timer())
        return self._pull_on(self.copies.on_timer(self._child_of[device + self._num_clients]))

    # --- pushes

    def _push_on(self, wanted: list[Instruction]) -> list[Out]:
        """Carry out the adding switch's instructions, and send the packets that it may send."""
        out: list[Out] = []
        for one in wanted:
            if isinstance(one, Full):
                out += self._add(one.begin, one.end)
            elif isinstance(one, Free):
                out += self._free(one.end)
            elif isinstance(one, Transmit):
                out += self._told(one.link, one.message, is_up=True)
        for sent in self.adds.send():
            assert isinstance(sent.message, Data)
            out += self._sent_up(sent.message)
        if not self.adds.sender.is_waiting:  # nothing will come that has workers told how far it is
            for worker in self._workers:
                child = self._child_of[worker]
                if self.adds.children[child].has_untold:
                    out += self._told(child, self.adds.children[child].heartbeat().message, is_up=True)
        return out

    def _add(self, begin: int, end: int) -> list[Out]:
        """Add packets [begin, end) of all children."""
        out: list[Out] = []
        for first, past, span in self._pieces(begin, end):
            sources = self._sources(first, span)
            if not sources:
                self._empty.update(range(first, past))
            elif self._places.sums is not None:
                ring = self._places.sums
                out += [
                    AddPackets(
                        self._sources(run, span), ring.at(run), self._num_elements(run, stop, span), self._combine,
                        int(self._wire),
                    )
                    for run, stop in ring.runs(first, past)
                ]
        return out

    def _sources(self, packet: int, span: Span | None) -> tuple[PlaceOfValues, ...]:
        """Return the places of the children's values from a packet on, in order."""
        found = []
        for endpoint in self._children:
            if endpoint < self._num_clients:
                assert span is not None
                if endpoint in self._values.of(span.message):
                    found.append(self._values.place(endpoint, span, self._within(packet, span)))
            else:
                below = self._below[endpoint - self._num_clients]
                if packet not in below.empty:
                    found.append(below.place(packet))
        return tuple(found)

    def _within(self, packet: int, span: Span) -> int:
        """Return the element of its chunk that a packet begins with."""
        return (packet - span.first) * self._up_elements

    def _pieces(self, begin: int, end: int) -> list[tuple[int, int, Span | None]]:
        """Split packets [begin, end) into runs of which only the last packet may be short.

        All packets of a run have the same children. Each run has its chunk, where workers of this host push it.
        """
        if self._workers:
            return [
                (max(begin, span.first), min(end, span.end), span) for span in self._up.overlapping(begin, end)
            ]
        edges = [packet + 1 for below in self._below.values() for packet in below.short]
        edges += [edge for below in self._below.values() for packet in below.empty for edge in (packet, packet + 1)]
        return [(first, past, None) for first, past in cut(begin, end, iter(edges))]

    def _num_elements(self, begin: int, end: int, span: Span | None) -> int:
        """Return the number of elements of packets, of which only the last may be short."""
        each = self._up_elements
        if span is not None:
            first, past = self._up.model.elements(span.unit, span.chunk)
            return min((end - begin) * each, past - first - self._within(begin, span))
        short = next((below.short[end - 1] for below in self._below.values() if end - 1 in below.short), None)
        return (end - begin - 1) * each + (each if short is None else short // self._wire.itemsize)

    def _sent_up(self, data: Data) -> list[Out]:
        """Send packets' sums to the parent."""
        out: list[Out] = []
        for first, past, span in self._pieces(data.begin, data.end):
            edges = (edge for packet in self._empty for edge in (packet, packet + 1))
            for begin, end in cut(first, past, edges):
                is_empty = begin in self._empty
                frame = Frame(self.number, self.tree.root, True, data.part(begin, end), is_empty)
                payloads = () if is_empty else self._payloads(begin, end, span)
                each = self._up_elements * self._wire.itemsize
                out.append(SendFrame(self._parent, frame, payloads, each))
        return out

    def _payloads(self, begin: int, end: int, span: Span | None) -> tuple[tuple[int, int], ...]:
        if self._places.sums is None:
            assert span is not None
            (worker,) = self._workers
            place = self._values.place(worker, span, self._within(begin, span))
            return ((place.offset, self._num_elements(begin, end, span) * self._wire.itemsize),)
        ring = self._places.sums
        return tuple(
            (ring.at(first), self._num_elements(first, past, span) * self._wire.itemsize)
            for first, past in ring.runs(begin, end)
        )

    def _free(self, end: int) -> list[Out]:
        """Free the packets below `end`, all of which the parent has.

        Rooms of gradients are zeros again before their workers know.
        """
        out: list[Out] = []
        if self._places.sums is None:
            for first, past, span in self._pieces(self._freed, end):
                assert span is not None
                for place in self._sources(first, span):
                    if place.is_zeroed:
                        nbytes = self._num_elements(first, past, span) * self._wire.itemsize
                        out.append(ZeroValues(place.offset, nbytes))
        self._freed = end
        for span in self._up.below(end):
            if span.chunk + 1 == self._up.model.num_chunks(span.unit):
                self._values.forget(span.message)
        for below in self._below.values():
            below.forget(end)
        self._empty = {packet for packet in self._empty if packet >= end} if self._empty else self._empty
        return out

    # --- pulls

    def _copy(self, data: Data, nbytes: int) -> list[Out]:
        """Keep pulled packets that came."""
        out: list[Out] = []
        wanted = self.copies.on_data(data)
        below = ChildPackets(self._places.copies, self._wire)
        for one in wanted:
            if isinstance(one, Take):
                out += below.take(one.begin, one.end, data, nbytes, is_empty=False)
        self._short_copies |= below.short
        return out + self._pull_on(wanted)

    def _pull_on(self, wanted: list[Instruction]) -> list[Out]:
        """Carry out the broadcasting switch's instructions, and send the packets that it may send."""
        out: list[Out] = []
        for one in wanted:
            if isinstance(one, Free):
                for packet in [packet for packet in self._short_copies if packet < one.end]:
                    del self._short_copies[packet]
            elif isinstance(one, Transmit):
                out += self._told(one.link, one.message, is_up=False)
        for child, endpoint in enumerate(self._children):
            for sent in self.copies.send(child):
                assert isinstance(sent.message, Data)
                out += self._sent_down(endpoint, sent.message)
        return out

    def _sent_down(self, endpoint: int, data: Data) -> list[Out]:
        if endpoint < self._num_clients:
            return [(endpoint, PagedData(endpoint, self.tree.root, self.number, False, *data))]
        ring = self._places.copies
        out: list[Out] = []
        for first, past in cut(data.begin, data.end, (packet + 1 for packet in self._short_copies)):
            payloads = tuple(
                (ring.at(begin), (end - begin - 1) * ring.packet_bytes + self._copy_bytes(end - 1))
                for begin, end in ring.runs(first, past)
            )
            frame = Frame(self.number, self.tree.root, False, data.part(first, past))
            out.append(SendFrame(endpoint - self._num_clients, frame, payloads, ring.packet_bytes))
        return out

    def _copy_bytes(self, packet: int) -> int:
        return self._short_copies.get(packet, self._places.copies.packet_bytes)

    # --- both

    def _told(self, link: int, message: object, *, is_up: bool) -> list[Out]:
        """Send a heartbeat or a probe to a child or the parent."""
        assert isinstance(message, Beat | Probe)
        if link != PARENT and (endpoint := self._children[link]) < self._num_clients:
            if isinstance(message, Probe):
                return []  # what lies in mapped memory is not lost
            return [(endpoint, PagedBeat(endpoint, self.tree.root, self.number, is_up, *message))]
        device = self._parent if link == PARENT else self._children[link] - self._num_clients
        return [SendFrame(device, Frame(self.number, self.tree.root, is_up, message))]
