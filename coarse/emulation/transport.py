"""Chunks of rings in emulated time: their bytes go as live, and count once links and adder would be through.

The fabric carries a token for each chunk. A chunk is handed on when bytes and token have both come, and, where it is
to be added, when the device's adder has added it.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from coarse.emulation.adder import Adder
from coarse.emulation.envelope import FabricPort, Submission
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.protocol.codec import RING_HEADER_BYTES, decode_ring_header
from coarse.protocol.records import RingChunk
from coarse.proxy.protocol import ProxyProtocol
from coarse.transport.device_transport import DeviceTransport

Arrival = tuple[int, int, np.ndarray]


class EmulatedTransport:
    """See DeviceTransport: one device's messages to the others."""

    carries_features = False
    """The fabric has tokens for chunks of rings alone."""

    def __init__(
        self, carrier: DeviceTransport, proxy: ProxyProtocol, box: EmulatedMailbox, adder: Adder
    ) -> None:
        """`carrier` moves the bytes; `proxy` says which chunks are added."""
        self._carrier = carrier
        self._first_device = box.endpoint - proxy.device
        self._proxy = proxy
        self._box = box
        self._adder = adder
        self._arrived: dict[RingChunk, Arrival] = {}
        """Chunks whose bytes have come."""
        self._told: dict[RingChunk, float] = {}
        """Chunks whose token has come, and when they arrived in emulated time."""
        self._ready: deque[tuple[float, Arrival]] = deque()
        box.on_token[FabricPort.DEVICES] = self._on_token

    def send(self, device: int, tag: int, payload: np.ndarray) -> None:
        """See DeviceTransport: with a token through the fabric."""
        self._carrier.send(device, tag, payload)
        box, frame = self._box, payload[:RING_HEADER_BYTES].tobytes()
        priority = box.places.descriptor(decode_ring_header(frame).key).priority
        nbytes, endpoint = payload.nbytes - RING_HEADER_BYTES, self._first_device + device
        way = FabricPort.DEVICES
        box.submit(Submission(box.moment_s(), nbytes, self._proxy.device, device, endpoint, way, priority, frame))

    def poll(self) -> Iterator[Arrival]:
        """See DeviceTransport: what is done with a chunk begins at its emulated time."""
        for arrival in self._carrier.poll():
            header = decode_ring_header(arrival[2][:RING_HEADER_BYTES].tobytes())
            self._arrived[header] = arrival
            if header in self._told:
                self._take_in(header, self._told.pop(header))
        self._adder.run_due()
        while self._ready:
            self._box.now_s, arrival = self._ready.popleft()
            yield arrival

    @property
    def is_busy(self) -> bool:
        """Whether a send is under way, or a chunk has half come."""
        return self._carrier.is_busy or bool(self._told or self._arrived)

    @property
    def has_unwritten(self) -> bool:
        """See DeviceTransport."""
        return self._carrier.has_unwritten

    @property
    def sent_bytes(self) -> list[int]:
        """See DeviceTransport."""
        return self._carrier.sent_bytes

    @property
    def received_bytes(self) -> list[int]:
        """See DeviceTransport."""
        return self._carrier.received_bytes

    def take_lost(self) -> list[int]:
        """See DeviceTransport."""
        return self._carrier.take_lost()

    def close(self) -> None:
        """See DeviceTransport."""
        self._carrier.close()

    def _on_token(self, _: FabricPort, frame: bytes, due_s: float) -> None:
        header = decode_ring_header(frame)
        if header in self._arrived:
            self._take_in(header, due_s)
        else:
            self._told[header] = due_s

    def _take_in(self, header: RingChunk, due_s: float) -> None:
        arrival = self._arrived.pop(header)
        nbytes = arrival[2].nbytes - RING_HEADER_BYTES if self._proxy.adds(header) else 0

        def taken(at_s: float) -> None:
            self._ready.append((at_s, arrival))

        if nbytes:
            self._adder.add(nbytes, due_s, taken)
        else:
            self._adder.at(due_s, taken)
