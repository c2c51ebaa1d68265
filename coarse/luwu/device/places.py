# Pure: no MPI, threads, clock or environment.
"""Places of a model's packets in a device's memory, on their way to an optimizer node and from it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from coarse.luwu.many_to_one.packets import Data
from coarse.luwu.steps import PlaceOfValues, StorePackets
from coarse.luwu.store.declaration import Declaration, MemoryPlan, staging_slot_bytes
from coarse.luwu.store.layout import BLOCK_BYTES
from coarse.luwu.store.operations import Push
from coarse.luwu.store.stream import ChunkStream, Ring, Span
from coarse.protocol.dtypes import DType


@dataclass(frozen=True)
class ClientPlaces:
    """Places of a worker's values in the memory of the device that it is attached to."""

    gradients: int
    """Offset of the memory in which gradients may be born."""
    staging: int
    """Offset of the slots through which values are copied."""
    look: int
    """Offset of the slot for values that the worker looks at."""


@dataclass(frozen=True, kw_only=True)
class RootPlaces:
    """Memory of an optimizer node that others read and write."""

    clients: dict[int, ClientPlaces]
    """Places of the workers that are attached to its device."""
    window: int = 0
    """Offset of the window of pulls."""
    rings: dict[int, Ring] = field(default_factory=dict)
    """Ring for the packets that each device below it pushes."""


@dataclass(frozen=True, kw_only=True)
class PacketPlan:
    """Division of streams into packets, equal on all hops of a model's trees."""

    window: int
    """Number of packets of each hop that may be under way."""
    up_elements: int | None = None
    """Elements of a packet that is pushed; None: a chunk is a packet."""
    down_elements: int | None = None

    def up_bytes(self, wire: DType) -> int:
        """Return the bytes of a packet that is pushed from device to device."""
        return (self.up_elements or 0) * wire.itemsize


class MemoryLayout:
    """Pieces of device memory, one behind the other."""

    def __init__(self, offset: int) -> None:
        """Start at `offset`, where the memory begins; the first piece begins at a block."""
        self.end = -(-offset // BLOCK_BYTES) * BLOCK_BYTES
        """End of the last piece."""

    def take(self, nbytes: int) -> int:
        """Take a piece, and return its offset."""
        at = self.end
        self.end += nbytes
        return at

    def ring(self, num_packets: int, packet_bytes: int) -> Ring:
        """Take a ring of packets."""
        return Ring(self.take(num_packets * packet_bytes), num_packets, packet_bytes)

    def clients(self, clients: Iterable[int], plan: MemoryPlan, slot_bytes: int) -> dict[int, ClientPlaces]:
        """Take the memory of each worker that is attached to the device."""
        gradients = -(-plan.gradient_bytes // BLOCK_BYTES) * BLOCK_BYTES
        return {
            client: ClientPlaces(self.take(gradients), self.take(plan.num_staging * slot_bytes), self.take(slot_bytes))
            for client in clients
        }


class PushedValues:
    """Places of values that a host's workers push, by packet, until they were added."""

    def __init__(
        self, up: ChunkStream, places: dict[int, ClientPlaces], num_staging: int, declaration: Declaration
    ) -> None:
        self._up = up
        self._places = places
        self._num_staging = num_staging
        self._slot_bytes = staging_slot_bytes(declaration)
        self._type_of = declaration.type_of
        self._pushed: dict[int, dict[int, tuple[Push, int, int]]] = {}
        """Push -> worker who has values -> (operation, offset or -1, number of chunks that it had staged before)."""
        self._num_pushes = dict.fromkeys(places, 0)
        self._num_staged = dict.fromkeys(places, 0)
        self._num_begun = 0

    def on_push(self, client: int, push: Push, present: int, offset: int) -> tuple[Span, ...]:
        """Note a worker's next push; return the chunks of the stream, if the worker is the first to push it."""
        number = self._num_pushes[client]
        self._num_pushes[client] += 1
        spans: tuple[Span, ...] = ()
        if number == self._num_begun:
            self._num_begun += 1
            self._pushed[number] = {}
            spans = self._up.append(push.unit)
        if present:
            self._pushed[number][client] = push, offset, self._num_staged[client]
            if offset < 0:
                self._num_staged[client] += len(spans) or self._up.model.num_chunks(push.unit)
        return spans

    def skip(self, push: Push) -> tuple[Span, ...]:
        """Note a push that workers of other hosts began; return the chunks of the stream."""
        self._pushed[self._num_begun] = {}
        self._num_begun += 1
        return self._up.append(push.unit)

    def of(self, message: int) -> tuple[int, ...]:
        """Return the workers who have values of a push."""
        return tuple(sorted(self._pushed[message]))

    def place(self, client: int, span: Span, first: int) -> PlaceOfValues:
        """Return the place of a worker's values of a chunk, from an element of the chunk on."""
        push, offset, staged = self._pushed[span.message][client]
        dtype = self._type_of(push.array)
        if offset >= 0:
            begin, _ = self._up.model.elements(span.unit, span.chunk)
            return PlaceOfValues(offset + (begin + first) * dtype.itemsize, int(dtype), is_zeroed=True)
        slot = (staged + span.chunk) % self._num_staging
        at = self._places[client].staging + slot * self._slot_bytes
        return PlaceOfValues(at + first * dtype.itemsize, int(dtype), is_zeroed=False)

    def forget(self, message: int) -> None:
        """Forget a push, all of which was added."""
        del self._pushed[message]


@dataclass(eq=False)
class ChildPackets:
    """Packets in a ring that come from another device; pushed packets stay until they were added."""

    ring: Ring
    wire: DType
    short: dict[int, int] = field(default_factory=dict)
    """Packet that is smaller than others -> its bytes."""
    empty: set[int] = field(default_factory=set)
    """Packets for which no worker below has values."""

    def take(self, begin: int, end: int, data: Data, nbytes: int, *, is_empty: bool) -> list[StorePackets]:
        """Store the new packets [begin, end) of data that came; each has `nbytes` bytes."""
        if is_empty:
            self.empty.update(range(begin, end))
            return []
        if nbytes < self.ring.packet_bytes:
            self.short.update(dict.fromkeys(range(begin, end), nbytes))
        return [
            StorePackets(self.ring, first, past, first - data.begin) for first, past in self.ring.runs(begin, end)
        ]

    def place(self, packet: int) -> PlaceOfValues:
        """Return the place of the values from a packet on."""
        return PlaceOfValues(self.ring.at(packet), int(self.wire), is_zeroed=False, ring=self.ring)

    def forget(self, end: int) -> None:
        """Forget the packets below `end`, which were added."""
        for packet in [packet for packet in self.short if packet < end]:
            del self.short[packet]
        self.empty = {packet for packet in self.empty if packet >= end} if self.empty else self.empty


def cut(begin: int, end: int, edges: Iterator[int]) -> list[tuple[int, int]]:
    """Return [begin, end) as ranges cut at the edges within."""
    return list(pairwise([begin, *sorted({edge for edge in edges if begin < edge < end}), end]))
