"""Transport between devices in emulated time: bytes go as live, and count when the model says.

The fabric carries a token for each message. A message is handed on when bytes and token have both come and, if it is a
chunk that is to be added, when the device's adder has added it.
"""

import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from coarse.emulation.envelope import FabricDelivery, FabricPort
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.protocol.codec import RING_HEADER_BYTES, decode_ring_header
from coarse.protocol.records import RingChunk, Tag
from coarse.proxy.protocol import ProxyProtocol
from coarse.transport.device_transport import DeviceTransport

Arrival = tuple[int, int, np.ndarray]
_NUMBER = struct.Struct("<Q")


class _Message(NamedTuple):
    """Identity of a message: the n-th of a device to this one."""

    source: int
    number: int


class EmulatedTransport:
    """Transport of one device's messages to the others (a DeviceTransport)."""

    def __init__(self, carrier: DeviceTransport, proxy: ProxyProtocol, box: EmulatedMailbox) -> None:
        """Wrap a transport: `carrier` moves the bytes; `proxy` says which chunks are added."""
        self._carrier = carrier
        self._first_device = box.endpoint - proxy.device
        self._proxy = proxy
        self._box = box
        self._num_sent: dict[int, int] = {}
        self._num_come: dict[int, int] = {}
        """Messages of a device whose bytes have come: those of one device come in its order."""
        self._come: dict[_Message, Arrival] = {}
        """Messages whose bytes have come, and not their token."""
        self._told: dict[_Message, float] = {}
        """Messages whose token has come, and when they arrived in emulated time; those times are held."""
        self._ready: deque[tuple[float, Arrival]] = deque()
        """Messages to be handed on, and when; those times are held."""
        self._charged: int | None = None
        """Bytes of the message that is being sent, if its costs state them."""
        box.on_message = self._on_token

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """Send a message, with a token through the fabric; a ring's chunk travels without its header."""
        self._carrier.send(device, tag, payload)
        box, nbytes, priority, way = self._box, payload.nbytes, 0, FabricPort.MESSAGES
        if tag == Tag.RING:
            nbytes, way = nbytes - RING_HEADER_BYTES, FabricPort.DEVICES
            priority = box.places.descriptor(_header(payload).key).priority
        elif self._charged is not None:
            nbytes = self._charged
        number = self._num_sent[device] = self._num_sent.get(device, -1) + 1
        endpoint = self._first_device + device
        box.send_message(way, nbytes, self._proxy.device, device, endpoint, _NUMBER.pack(number), priority)

    @contextmanager
    def charging(self, nbytes: int) -> Iterator[None]:
        """Charge messages, within the context, the time of so many bytes: their cost, without their head."""
        self._charged = nbytes
        try:
            yield
        finally:
            self._charged = None

    def poll(self) -> Iterator[Arrival]:
        """Yield messages; the work on each begins at its emulated time."""
        for arrival in self._carrier.poll():
            source = arrival[0]
            number = self._num_come[source] = self._num_come.get(source, -1) + 1
            message = _Message(source, number)
            if message in self._told:
                due_s = self._told.pop(message)
                self._box.go_back_to(due_s)
                self._take_in(arrival, due_s)
            else:
                self._come[message] = arrival
        while self._ready:
            due_s, arrival = self._ready.popleft()
            self._box.go_back_to(due_s)
            yield arrival

    @property
    def is_busy(self) -> bool:
        """True if a send is under way, or a message has half come."""
        return self._carrier.is_busy or bool(self._told or self._come)

    @property
    def has_unwritten(self) -> bool:
        """True if messages to other devices wait for this one to send them."""
        return self._carrier.has_unwritten

    @property
    def sent_bytes(self) -> list[int]:
        """Bytes sent, by device."""
        return self._carrier.sent_bytes

    @property
    def received_bytes(self) -> list[int]:
        """Bytes received, by device."""
        return self._carrier.received_bytes

    def take_lost(self) -> list[int]:
        """Return the devices that were found dead since the last call."""
        return self._carrier.take_lost()

    def close(self) -> None:
        """Close the carrier: nothing more is sent."""
        self._carrier.close()

    def _on_token(self, delivery: FabricDelivery) -> None:
        (number,) = _NUMBER.unpack(delivery.frame)
        message = _Message(delivery.peer - self._first_device, number)
        if message in self._come:
            self._take_in(self._come.pop(message), delivery.due_s)
        else:
            self._told[message] = delivery.due_s
            self._box.hold(delivery.due_s)

    def _take_in(self, arrival: Arrival, due_s: float) -> None:
        """Take a message that is here; one that is added has to be added first."""
        _, tag, payload = arrival
        if tag == Tag.RING and self._proxy.adds(_header(payload)):
            device, nbytes = self._proxy.device, payload.nbytes - RING_HEADER_BYTES
            given = partial(self._give, arrival)
            self._box.spend(FabricPort.ADDER, nbytes, device, device, given, at_s=due_s)
        else:
            self._give(arrival, due_s)

    def _give(self, arrival: Arrival, at_s: float) -> None:
        self._ready.append((at_s, arrival))
        self._box.hold(at_s)


def _header(payload: np.ndarray) -> RingChunk:
    return decode_ring_header(payload[:RING_HEADER_BYTES].tobytes())
