"""Links between memory devices of models' trees: frames over MPI or UDP, to and from device memory."""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from coarse.errors import CoarseError, UnsupportedError
from coarse.luwu.datagrams import DatagramLink, address_of, own_addresses, own_place
from coarse.luwu.device.models import DeviceModels
from coarse.luwu.device.values import add_values
from coarse.luwu.many_to_one.frames import (
    HEADER_BYTES,
    Frame,
    beyond_bytes,
    frame_of,
    header_of,
    headers_of,
    whole_beat,
)
from coarse.luwu.many_to_one.packets import Beat, Data
from coarse.luwu.many_to_one.round_trips import RoundTrips
from coarse.luwu.records import PagedLooked
from coarse.luwu.steps import (
    AddPackets,
    CloseLinks,
    ConnectLinks,
    OpenLinks,
    SendFrame,
    SendLooked,
    StorePackets,
    ZeroValues,
)
from coarse.luwu.store.fixed_point import COMBINE
from coarse.protocol.clock import Clock
from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType
from coarse.proxy.instructions import Instructions, Send
from coarse.storage.region import DeviceMemory

PACKETS, LOOKED = 0, 1
"""Messages between devices: frames of trees, and values that a worker of another host looks at."""
MPI_PAYLOAD_BYTES = 1 << 16
"""Payload bytes of a packet over MPI, which has no datagrams to fill."""
_UNBOUNDED_BYTES = 1 << 40
"""Room for packets over MPI: it keeps everything that came and was not read."""
_FIRST_TIMEOUT_S = 0.05
_LEAST_TIMEOUT_S = 2e-3
_BUSY_S = 2e-4
"""Seconds until the next look where the kernel has had no room."""
_LENGTH = struct.Struct("<I")
Hop = tuple[int, int, int]
"""(Model, root, device at the other end)."""


@dataclass(eq=False)
class _Timer:
    """Timer of one sender, which ends when the sender has heard nothing for too long."""

    trips: RoundTrips = field(default_factory=lambda: RoundTrips(_FIRST_TIMEOUT_S, least_s=_LEAST_TIMEOUT_S))
    due_s: float = 0.0
    is_calm: bool = False
    """True if its sender waited for nothing when it was looked at."""

    def set_out(self, now_s: float) -> None:
        """Begin to wait."""
        self.is_calm = False
        self.due_s = now_s + self.trips.timeout_s


class Sleeper(Protocol):
    """Sleep of the service that ends when a descriptor is readable."""

    def wake_on(self, descriptor: int) -> None:
        """Watch a descriptor from now on."""
        ...

    def ignore(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        ...


class TreeLinks:
    """Links of one device.

    All of it runs in the service's thread.
    """

    def __init__(
        self,
        models: DeviceModels,
        memory: DeviceMemory,
        device: int,
        send: Callable[[int, int, np.ndarray], None] | None,
        sleeper: Sleeper,
        clock: Clock,
        take_looked: Callable[[int, int], np.ndarray],
    ) -> None:
        """Start without links.

        `send` sends by MPI, where that carries packets. `take_looked` gives values that a worker of another host looks
        at.
        """
        self._models = models
        self._memory = memory
        self._device = device
        self._send_message = send
        self._sleeper = sleeper
        self._clock = clock
        self._take_looked = take_looked
        self._results: deque[Callable[[], Instructions]] = deque()
        self._links: dict[Hop, DatagramLink | None] = {}
        """Links by hop; None where MPI carries."""
        self._timers: dict[tuple[Hop, bool], _Timer] = {}
        self._carried = np.empty((0, 0), np.uint8)
        """(n, bytes): packets of the frame that is being processed."""
        self._closed_bytes: dict[int, tuple[int, int]] = {}
        """Bytes that closed links have sent and received, by device."""
        self.carriers: dict[type, Callable[..., None]] = {
            OpenLinks: self._open,
            ConnectLinks: self._connect,
            CloseLinks: self._close,
            SendFrame: self._send,
            StorePackets: self._store,
            AddPackets: self._add,
            ZeroValues: self._zero,
            SendLooked: self._send_looked,
        }
        """Handler for each kind of step."""

    # --- what the service asks

    def take(self, carry_out: Callable[[Instructions], None]) -> bool:
        """Process all frames that came and all timers that are due; return whether there was anything."""
        was_busy = bool(self._results)
        while self._results:
            carry_out(self._results.popleft()())
        for hop, link in list(self._links.items()):
            if link is None:
                continue
            link.flush()
            for frame, carried in link.receive():
                was_busy = True
                self._hand_over(hop[2], frame, carried, carry_out)
        self._ask_the_silent(carry_out)
        return was_busy

    def on_packets(self, device: int, raw: np.ndarray, carry_out: Callable[[Instructions], None]) -> None:
        """Process a frame that came by MPI."""
        frame = frame_of(raw.data)
        if frame is None:
            return
        rest = raw[HEADER_BYTES:]
        if isinstance(frame.message, Data) and len(rest):
            rest = rest.reshape(frame.message.end - frame.message.begin, -1)
        self._hand_over(device, frame, rest, carry_out)

    def on_looked(self, raw: np.ndarray) -> Instructions:
        """Take values that a worker of this host looks at; return the record that tells it."""
        (length,) = _LENGTH.unpack_from(raw.data)
        begin = _LENGTH.size
        record = decode(raw[begin : begin + length].tobytes())
        assert isinstance(record, PagedLooked)
        switch = self._models.trees.switch(record.model, record.device)
        if switch is None:
            return []
        values = raw[begin + length :]
        self._memory.view(switch.look(record.client), len(values))[:] = values
        return [Send(record.client, record)]

    def longest_sleep_s(self, otherwise_s: float) -> float:
        """Return the seconds, at most `otherwise_s`, for which there is no work unless something comes."""
        if self._results:
            return 0.0
        if not self._links:
            return otherwise_s
        if any(link is not None and link.has_held for link in self._links.values()):
            return min(otherwise_s, _BUSY_S)
        now_s = self._clock.now_s()
        dues = [timer.due_s for timer in self._timers.values() if not timer.is_calm]
        return min(otherwise_s, max(0.0, min(dues, default=now_s + otherwise_s) - now_s))

    def carried(self, device: int) -> tuple[int, int]:
        """Return bytes of datagrams sent to a device and received from it.

        Headers of frames count, those of the network do not.
        """
        links = [link for hop, link in self._links.items() if hop[2] == device and link is not None]
        sent, received = self._closed_bytes.get(device, (0, 0))
        return sent + sum(one.sent_bytes for one in links), received + sum(one.received_bytes for one in links)

    # --- links

    def _open(self, step: OpenLinks) -> None:
        if self._send_message is None:
            error = UnsupportedError(
                "models in the network go from host to host by live links alone, and here links are emulated or there "
                "is one host; start it live, or on one host without switches"
            )
            self._fail(step, error)
            return
        described: dict[int, dict[str, Any]] = {}
        try:
            here = {"place": own_place(), "addresses": own_addresses()} if step.network == "udp" else {}
            for peer in step.peers:
                link = None
                described[peer] = {}
                if step.network == "udp":
                    link = DatagramLink(step.loss, (step.model, step.root, self._device, peer))
                    self._sleeper.wake_on(link.fileno())
                    described[peer] = {"port": link.port, **here}
                self._links[step.model, step.root, peer] = link
        except OSError as refused:
            self._fail(step, refused)
            return
        self._results.append(partial(self._models.trees.on_links_open, step, described))

    def _connect(self, step: ConnectLinks) -> None:
        payload_bytes, room_bytes = MPI_PAYLOAD_BYTES + HEADER_BYTES, _UNBOUNDED_BYTES
        own = own_addresses()
        try:
            for peer, there in step.peers.items():
                link = self._links[step.model, step.root, peer]
                if link is not None:
                    link.connect(address_of(there["place"], there["addresses"], own), there["port"])
                    payload_bytes = min(payload_bytes, link.payload_bytes)
                    room_bytes = min(room_bytes, link.room_bytes // 2)
        except (CoarseError, OSError) as error:
            self._fail(step, error)
            return
        self._results.append(partial(self._models.trees.on_connected, step, payload_bytes, room_bytes))

    def _fail(self, step: OpenLinks | ConnectLinks, error: CoarseError | OSError) -> None:
        failed = error if isinstance(error, CoarseError) else CoarseError(f"a link cannot be made: {error}")
        self._results.append(partial(self._models.trees.on_links_failed, step, failed))

    def _close(self, step: CloseLinks) -> None:
        for hop in [hop for hop in self._links if hop[:2] == (step.model, step.root)]:
            carried = self.carried(hop[2])
            link = self._links.pop(hop)
            for is_up in (True, False):
                self._timers.pop((hop, is_up), None)
            if link is not None:
                self._closed_bytes[hop[2]] = carried
                self._sleeper.ignore(link.fileno())
                link.close()

    # --- frames

    def _hand_over(
        self, device: int, frame: Frame, carried: np.ndarray, carry_out: Callable[[Instructions], None]
    ) -> None:
        message, nbytes = frame.message, 0
        if isinstance(message, Data):
            self._carried = carried
            nbytes = carried.shape[1] if carried.ndim > 1 else 0
        elif isinstance(message, Beat):
            self._note_beat((frame.model, frame.root, device), frame)
        carry_out(self._models.on_frame(device, frame, nbytes))

    def _note_beat(self, hop: Hop, frame: Frame) -> None:
        timer = self._timers.get((hop, frame.is_up))
        sender = self._models.senders(frame.model, frame.root).get((hop[2], frame.is_up))
        if timer is not None and sender is not None:
            assert isinstance(frame.message, Beat)
            now_s = self._clock.now_s()
            timer.trips.on_echo(whole_beat(frame.message, sender).echo, now_s)
            timer.set_out(now_s)

    def _send(self, step: SendFrame) -> None:
        frame, message = step.frame, step.frame.message
        hop = frame.model, frame.root, step.device
        if hop not in self._links:
            return  # it was closed
        if not isinstance(message, Beat):
            timer = self._timers.setdefault((hop, frame.is_up), _Timer())
            now_s = self._clock.now_s()
            timer.trips.on_sent(message.stamp, now_s)
            timer.set_out(now_s)
        payloads = [self._memory.view(offset, nbytes) for offset, nbytes in step.payloads]
        link = self._links[hop]
        if link is None:
            self._send_by_mpi(step, payloads)
            return
        if payloads:
            link.send_packets(headers_of(frame), payloads, step.packet_bytes)
        else:
            parts: list[bytes] = [header_of(frame)]
            if isinstance(message, Beat):
                parts.append(beyond_bytes(message, link.payload_bytes - HEADER_BYTES))
            link.send(parts)

    def _send_by_mpi(self, step: SendFrame, payloads: list[np.ndarray]) -> None:
        message = step.frame.message
        assert self._send_message is not None
        if not payloads:
            text = header_of(step.frame)
            text += beyond_bytes(message, MPI_PAYLOAD_BYTES) if isinstance(message, Beat) else b""
            self._send_message(step.device, PACKETS, np.frombuffer(text, np.uint8))
            return
        assert isinstance(message, Data)
        begin = message.begin
        for payload in payloads:
            whole = len(payload) // step.packet_bytes
            for count, values in (
                (whole, payload[: whole * step.packet_bytes]),
                (1, payload[whole * step.packet_bytes :]),  # a short one has a frame of its own
            ):
                if not len(values):
                    continue
                end = begin + count
                frame = step.frame._replace(message=message.part(begin, end))
                header = np.frombuffer(header_of(frame), np.uint8)
                self._send_message(step.device, PACKETS, np.concatenate((header, values)))
                begin = end

    def _ask_the_silent(self, carry_out: Callable[[Instructions], None]) -> None:
        now_s = self._clock.now_s()
        for (hop, is_up), timer in list(self._timers.items()):
            if now_s < timer.due_s and not timer.is_calm:
                continue
            model, root, device = hop
            sender = self._models.senders(model, root).get((device, is_up))
            if sender is None or not sender.is_waiting:
                timer.is_calm = True
                continue
            if not timer.is_calm:
                timer.trips.on_silence()
                carry_out(self._models.on_timer(model, root, device, is_up=is_up))
            timer.set_out(now_s)

    # --- memory

    def _store(self, step: StorePackets) -> None:
        packets = self._carried[step.row : step.row + step.end - step.begin]
        count, nbytes = packets.shape
        each = step.ring.packet_bytes
        rows = self._memory.view(step.ring.at(step.begin), count * each).reshape(count, each)
        rows[:, :nbytes] = packets

    def _add(self, step: AddPackets) -> None:
        wire = DType(step.wire)
        target = self._memory.view(step.target, wire.itemsize * step.num_elements).view(wire.storage)
        combine = COMBINE[step.combine]
        add_values(self._memory, step.sources, step.num_elements, lambda values: combine(values, target))

    def _zero(self, step: ZeroValues) -> None:
        self._memory.view(step.offset, step.nbytes)[:] = 0

    def _send_looked(self, step: SendLooked) -> None:
        values = self._take_looked(step.model, step.token)
        record = encode(step.record)
        head = np.frombuffer(_LENGTH.pack(len(record)) + record, np.uint8)
        assert self._send_message is not None
        self._send_message(step.device, LOOKED, np.concatenate((head, values.view(np.uint8))))
