"""Links between hosts made of UDP datagrams, several of which enter and leave the kernel at once.

A link is a socket that is connected to one peer's. Linux cuts a large buffer into datagrams of one size itself, and
hands those that came together over as one (UDP_SEGMENT and UDP_GRO, since Linux 4.18 and 5.0); where it does not,
each has a call of its own. Datagrams may be lost, also on purpose, by a seed, before anybody has seen them.
"""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Interface, IPv4Network
from itertools import pairwise
from pathlib import Path

import numpy as np

from coarse.errors import ConfigError
from coarse.luwu.many_to_one.frames import HEADER_BYTES, HEADERS, Frame, frame_of, runs_of_data
from coarse.protocol.units import MIB

_UDP_SEGMENT, _UDP_GRO, _IP_MTU, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 103, 104, 14, 10, 2
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_LOOPBACK = "127.0.0.1"
_BUFFER_BYTES = 8 * MIB
"""Buffer size asked of the kernel for each socket; the size that it gives is what a window is made for."""
_MOST_SEGMENTS = 64
_MOST_AT_ONCE = 16
"""Number of large datagrams that are read before they are looked at."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(struct.calcsize("=i"))
_MOST_BYTES = 65_507
"""Most bytes of one call, and of one datagram."""
IP_AND_UDP_BYTES = 28
_ONE_BY_ONE = frozenset({errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
"""Answers of a kernel or device that cuts nothing itself."""


class DatagramLink:
    """One end of a link."""

    def __init__(self, loss: float = 0.0, seed: Sequence[int] = (0,)) -> None:
        """Open a socket; `loss` is the share of datagrams that are dropped when they come, drawn by `seed`."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.bind(("", 0))
        for forced, asked in (
            (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
            (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
        ):
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, forced, _BUFFER_BYTES)
            except OSError:
                self._socket.setsockopt(socket.SOL_SOCKET, asked, _BUFFER_BYTES)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
        self._cuts = True
        self._buffers = np.empty((_MOST_AT_ONCE, 1 << 16), np.uint8)
        self._held: deque[tuple[list[memoryview], int]] = deque()
        """Datagrams, with the size of each segment, that the kernel has had no room for."""
        self._loss = loss
        self._draws = np.random.default_rng(list(seed))
        self.num_dropped = 0
        """Number of datagrams that were lost on purpose."""
        self.num_sent = self.num_received = self.sent_bytes = self.received_bytes = 0
        """Numbers of datagrams, and their bytes without the headers of UDP and IP."""

    def fileno(self) -> int:
        """Return the descriptor, to sleep on."""
        return self._socket.fileno()

    @property
    def port(self) -> int:
        """Port to which datagrams for this end go."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def room_bytes(self) -> int:
        """Bytes that the kernel keeps of datagrams that were not read; about half of it is for payloads."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    def connect(self, address: str, port: int) -> None:
        """Connect to a peer; from now on datagrams come from it alone."""
        self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        self._socket.connect((address, port))

    @property
    def payload_bytes(self) -> int:
        """Bytes that fill a datagram which the link carries in one piece."""
        return min(self._socket.getsockopt(socket.IPPROTO_IP, _IP_MTU) - IP_AND_UDP_BYTES, _MOST_BYTES)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    # --- sending

    def send(self, parts: Sequence[memoryview | bytes]) -> None:
        """Send one datagram, made of these parts."""
        views = [memoryview(part).cast("B") for part in parts]
        self._put(views, sum(len(view) for view in views))

    def send_packets(self, headers: np.ndarray, payloads: Sequence[np.ndarray], packet_bytes: int) -> None:
        """Send a datagram for each header.

        Args:
            headers: (n, HEADER_BYTES) uint8.
            payloads: uint8, of packets that lie behind one another.
            packet_bytes: size of each packet but a payload's last, which may be smaller.
        """
        whole = packet_bytes + HEADER_BYTES
        most = min(_MOST_SEGMENTS, max(1, _MOST_BYTES // whole))
        at = 0
        for payload in payloads:
            view = payload.data.cast("B")
            count = -(-len(view) // packet_bytes)
            for first in range(0, count, most):
                past = min(first + most, count)
                parts: list[memoryview] = []
                for number in range(first, past):
                    parts.append(memoryview(headers[at + number]).cast("B"))
                    parts.append(view[number * packet_bytes : (number + 1) * packet_bytes])
                self._put(parts, whole)
            at += count

    @property
    def has_held(self) -> bool:
        """True if something is held back until the kernel has room."""
        return bool(self._held)

    def flush(self) -> bool:
        """Send what was held back; return whether nothing is held back any more."""
        while self._held:
            parts, segment = self._held[0]
            if not self._try(parts, segment):
                return False
            self._held.popleft()
        return True

    def _put(self, parts: list[memoryview], segment: int) -> None:
        if self._held or not self._try(parts, segment):
            self._held.append(([memoryview(bytes(part)) for part in parts], segment))  # they may be overwritten

    def _try(self, parts: list[memoryview], segment: int) -> bool:
        """Give the kernel parts to be cut into datagrams of so many bytes; return False where it has no room."""
        nbytes = sum(len(part) for part in parts)
        count = -(-nbytes // segment)
        try:
            if count == 1:
                self._socket.sendmsg(parts)
            elif self._cuts:
                cut = [(socket.SOL_UDP, _UDP_SEGMENT, struct.pack("=H", segment))]
                self._socket.sendmsg(parts, cut)
            else:
                for first in range(0, len(parts), 2):
                    self._socket.sendmsg(parts[first : first + 2])
        except BlockingIOError:
            return False
        except ConnectionRefusedError:
            pass  # the peer is gone, as whoever watches it finds
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return False
            if count > 1 and self._cuts and error.errno in _ONE_BY_ONE:
                self._cuts = False
                return self._try(parts, segment)
            raise
        self.num_sent += count
        self.sent_bytes += nbytes
        return True

    # --- receiving

    def receive(self) -> Iterator[tuple[Frame, np.ndarray]]:
        """Yield each frame that has come and its bytes, which are overwritten when the next is asked for.

        The bytes of data are (n, bytes of a packet) uint8, those of other frames (n,).
        """
        come = _MOST_AT_ONCE
        while come == _MOST_AT_ONCE:
            sizes: list[tuple[int, int]] = []
            while len(sizes) < _MOST_AT_ONCE and (size := self._receive_into(self._buffers[len(sizes)])) is not None:
                sizes.append(size)
            come, begin = len(sizes), 0
            while begin < come:
                nbytes, segment = sizes[begin]
                end = begin + 1
                while segment == nbytes and end < come and sizes[end] == sizes[begin]:
                    end += 1  # single datagrams of one size are as good as those that came as one
                if end - begin > 1:
                    yield from self._cut_apart(self._buffers[begin:end, :nbytes])
                else:
                    yield from self._frames(self._buffers[begin, :nbytes], segment)
                begin = end

    def _receive_into(self, buffer: np.ndarray) -> tuple[int, int] | None:
        """Read what came as one; return its bytes, and those of each of its datagrams but the last.

        None: nothing has come.
        """
        try:
            nbytes, ancillary, _, _ = self._socket.recvmsg_into([buffer.data], _ANCILLARY_BYTES)
        except (BlockingIOError, ConnectionRefusedError):
            return None
        segment = nbytes
        for level, kind, raw in ancillary:
            if level == socket.SOL_UDP and kind == _UDP_GRO:
                segment = struct.unpack_from("=i", raw)[0]
        self.num_received += -(-nbytes // segment) if segment else 0
        self.received_bytes += nbytes
        return nbytes, segment

    def receive_raw(self, buffer: np.ndarray) -> int:
        """Read what came as one into (n,) uint8 unseen; return its number of bytes, 0 if nothing has come."""
        size = self._receive_into(buffer)
        return 0 if size is None else size[0]

    def _frames(self, raw: np.ndarray, segment: int) -> Iterator[tuple[Frame, np.ndarray]]:
        whole = len(raw) // segment if segment else 0
        yield from self._cut_apart(raw[: whole * segment].reshape(whole, segment))
        yield from self._cut_apart(raw[whole * segment :].reshape(1, -1))

    def _cut_apart(self, datagrams: np.ndarray) -> Iterator[tuple[Frame, np.ndarray]]:
        """Yield frames of (n, bytes) uint8, without those too short to be one and those lost on purpose."""
        if not len(datagrams) or datagrams.shape[1] < HEADER_BYTES:
            return
        lost = np.flatnonzero(self._draws.random(len(datagrams)) < self._loss).tolist() if self._loss else []
        self.num_dropped += len(lost)
        for before, after in pairwise([-1, *lost, len(datagrams)]):
            if before + 1 < after:
                yield from self._read(datagrams[before + 1 : after])

    def _read(self, datagrams: np.ndarray) -> Iterator[tuple[Frame, np.ndarray]]:
        headers = np.ascontiguousarray(datagrams[:, :HEADER_BYTES]).reshape(-1).view(HEADERS)
        done = 0
        for begin, end, frame in runs_of_data(headers):
            yield from _others(datagrams[done:begin])
            yield frame, datagrams[begin:end, HEADER_BYTES:]
            done = end
        yield from _others(datagrams[done:])


def _others(datagrams: np.ndarray) -> Iterator[tuple[Frame, np.ndarray]]:
    """Yield frames that are no data, or data without bytes."""
    for datagram in datagrams:
        if (frame := frame_of(datagram.tobytes())) is not None:
            yield frame, datagram[HEADER_BYTES:]


# --- who is where


def own_place() -> str:
    """Return a name of this host's network namespace.

    Two processes with the same name reach one another by the loopback interface.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def own_addresses() -> list[str]:
    """Return this host's IPv4 addresses with their networks, such as 10.0.0.1/24, without the loopback's."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(asking, what, request)[20:24])
                    for what in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:
                continue  # it has none
            if not address.startswith("127."):
                found.append(f"{address}/{IPv4Network(f'0.0.0.0/{mask}').prefixlen}")
    return found


def address_of(place: str, addresses: Sequence[str], own: Sequence[str]) -> str:
    """Return the address of a peer that has sent its `own_place()` and `own_addresses()`.

    Raises:
        ConfigError: there is no way.
    """
    if place == own_place():
        return _LOOPBACK
    here = [IPv4Interface(one) for one in own]
    there = [IPv4Interface(one) for one in addresses if IPv4Interface(one).ip not in {mine.ip for mine in here}]
    near = [str(one.ip) for one in there if any(one.network == mine.network for mine in here)]
    if near or there:
        return near[0] if near else str(there[0].ip)
    raise ConfigError(f"a host has no IPv4 address but the loopback's; its addresses: {list(addresses)}", key="network")
