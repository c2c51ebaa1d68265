"""A proxy's service in emulated time: reductions and chunks end when the adder's rate says so."""

import numpy as np

from coarse.emulation.adder import Adder
from coarse.emulation.envelope import FabricPort
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.protocol.codec import RING_HEADER_BYTES, decode_ring_header, encode_ring_header
from coarse.protocol.dtypes import DType
from coarse.protocol.records import RingChunk
from coarse.proxy.instructions import Reduce, RingReduce, RingSend
from coarse.proxy.service import ProxyService

Work = Reduce | RingReduce | RingChunk
_POLL_S = 0.0002
"""While chunks are on their way over MPI."""


class EmulatedService(ProxyService):
    """One device's service loop. Chunks of rings come over MPI as they do live, and count once the fabric
    has delivered their token and the adder has taken them in."""

    def emulate(self, adder: Adder[Work]) -> None:
        """Called once, before `serve`."""
        assert isinstance(self._mailbox, EmulatedMailbox)
        box = self._box = self._mailbox
        self._adder = adder
        self._arrived: dict[RingChunk, np.ndarray] = {}
        """Chunks whose bytes have come over MPI."""
        self._told: dict[RingChunk, float] = {}
        """Chunks whose token has come, and when they arrived in emulated time."""
        box.on_token = self._on_token

    def _take_records(self) -> None:
        super()._take_records()
        while (due := self._adder.take_due()) is not None:
            self._box.now_s, work = due
            self._finish_work(work)

    def _finish_work(self, work: Work) -> None:
        if isinstance(work, RingChunk):
            header = self._rings.keep(self._arrived.pop(work))
            self._carry_out(self._protocol.on_chunk(header))
            return
        self._work.append((0, 0, work))
        self._do_next()

    def _queue_work(self, work: Reduce | RingReduce) -> None:
        nbytes = work.num_elements * DType(work.dtype).itemsize * len(work.sources)
        self._adder.give(work, nbytes, self._box.now_s)

    def _sleep_s(self) -> float:
        left_s = self._adder.wall_s_until_next()
        longest_s = super()._sleep_s()
        if self._told or self._arrived:
            longest_s = min(longest_s, _POLL_S)
        return longest_s if left_s is None else min(longest_s, left_s)

    # --- chunks of rings

    def _ring_send(self, send: RingSend) -> None:
        super()._ring_send(send)
        descriptor = self._box.descriptor(send.ring.key)
        nbytes = (send.end - send.begin) * DType(descriptor.dtype).accumulator.itemsize
        endpoint = self._placement.num_clients + send.device
        frame = encode_ring_header(send.header)
        self._box.send_token(FabricPort.DEVICES, send.device, endpoint, nbytes, descriptor.priority, frame)

    def _take_messages(self, transport: object) -> None:
        for _, _, payload in self._transport.poll():  # type: ignore[union-attr]
            header = decode_ring_header(payload[:RING_HEADER_BYTES].tobytes())
            self._arrived[header] = payload
            if header in self._told:
                self._take_in(header, self._told.pop(header))

    def _on_token(self, _: FabricPort, frame: bytes, due_s: float) -> None:
        header = decode_ring_header(frame)
        if header in self._arrived:
            self._take_in(header, due_s)
        else:
            self._told[header] = due_s

    def _take_in(self, header: RingChunk, due_s: float) -> None:
        """Reduce-scatter adds; all-gather only stores."""
        num_members = self._placement.num_devices
        if header.step < num_members - 1:
            nbytes = self._arrived[header].nbytes - RING_HEADER_BYTES
            self._adder.give(header, nbytes, due_s)
        else:
            self._adder.hold(header, due_s)
