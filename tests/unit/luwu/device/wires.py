"""Sockets and a kernel for datagrams within one process: what is lost, comes twice or overtakes others is drawn."""

import errno
import random
import socket
import struct
from collections import deque
from types import SimpleNamespace

from coarse.luwu.many_to_one import frames
from coarse.luwu.many_to_one.packets import Data

UDP_SEGMENT, UDP_GRO, IP_MTU = 103, 104, 14
IP_AND_UDP_BYTES = 28
OVERTAKING = 8
"""Datagrams that may be overtaken at once."""


class Stamps:
    """Of one end of a link: each transmission has a number of its own, in the order in which they leave."""

    def __init__(self) -> None:
        self._last: dict[bool, int] = {}

    def note(self, raw: bytes) -> None:
        frame = frames.frame_of(raw)
        assert frame is not None
        if isinstance(frame.message, Data):
            begin, end, stamp, _ = frame.message
            ahead = (stamp + 1 - (end - begin) - self._last.get(frame.is_up, -1)) % frames.WIRE_MODULUS
            assert 0 < ahead < frames.WIRE_MODULUS // 2
            self._last[frame.is_up] = stamp


class Wires:
    """All sockets of a test, and what is under way between them."""

    def __init__(self, rng: random.Random, *, payload_bytes: int, room_bytes: int, loss: float) -> None:
        """`loss`: the share of datagrams that are lost; as many come twice, and overtake others."""
        self.rng = rng
        self.payload_bytes, self.room_bytes, self.loss = payload_bytes, room_bytes, loss
        self.sockets: list[WiredSocket] = []
        self.num_lost = 0

    def module(self) -> SimpleNamespace:
        """In place of the module socket."""
        return SimpleNamespace(**{**vars(socket), "socket": self.socket})

    def socket(self, *_: object) -> "WiredSocket":
        self.sockets.append(WiredSocket(self, len(self.sockets)))
        return self.sockets[-1]

    def draws(self) -> bool:
        """Whether one of what happens seldom does."""
        return self.loss > 0 and self.rng.random() < self.loss


class WiredSocket:
    def __init__(self, wires: Wires, number: int) -> None:
        self.wires = wires
        self.number = number
        self.peer: int | None = None
        self.is_closed = False
        self._stamps = Stamps()
        self.flying: deque[bytes] = deque()
        """On its way here."""
        self.come: deque[bytes] = deque()

    def bind(self, _: object) -> None:
        pass

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, level: int, name: int) -> int:
        if (level, name) == (socket.IPPROTO_IP, IP_MTU):
            return self.wires.payload_bytes + IP_AND_UDP_BYTES
        assert (level, name) == (socket.SOL_SOCKET, socket.SO_RCVBUF)
        return self.wires.room_bytes

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.number

    def fileno(self) -> int:
        return self.number

    def connect(self, address: tuple[str, int]) -> None:
        self.peer = address[1]

    def close(self) -> None:
        self.is_closed = True
        self.flying.clear()
        self.come.clear()

    def sendmsg(self, parts: list[memoryview], cut: list[tuple[int, int, bytes]] | None = None) -> None:
        assert not self.is_closed
        assert self.peer is not None
        if self.wires.draws():
            raise BlockingIOError
        raw = b"".join(parts)
        size = len(raw)
        if cut:
            ((level, name, text),) = cut
            assert (level, name) == (socket.SOL_UDP, UDP_SEGMENT)
            (size,) = struct.unpack("=H", text)
        if size > self.wires.payload_bytes:
            raise OSError(errno.EMSGSIZE, "Message too long")
        there = self.wires.sockets[self.peer]
        for begin in range(0, len(raw), size):
            self._stamps.note(raw[begin : begin + size])
            if there.is_closed or self.wires.draws():
                self.wires.num_lost += 1
                continue
            datagram = raw[begin : begin + size]
            there.flying += [datagram, datagram] if self.wires.draws() else [datagram]

    def deliver(self) -> None:
        """Some of what is under way comes."""
        for _ in range(self.wires.rng.randrange(1, 2 + len(self.flying))):
            if not self.flying:
                return
            at = self.wires.rng.randrange(min(OVERTAKING, len(self.flying))) if self.wires.draws() else 0
            self.come.append(self.flying[at])
            del self.flying[at]

    def recvmsg_into(self, buffers: list[memoryview], _: int) -> tuple[int, list[tuple[int, int, bytes]], int, None]:
        """Datagrams of one size, and one that is shorter behind them, may come as one."""
        assert not self.is_closed
        if not self.come:
            raise BlockingIOError
        found = [self.come.popleft()]
        size = len(found[0])
        while self.come and len(found[-1]) == size >= len(self.come[0]) and self.wires.rng.random() < 0.8:
            found.append(self.come.popleft())
        raw = b"".join(found)
        buffers[0][: len(raw)] = raw
        ancillary = [(socket.SOL_UDP, UDP_GRO, struct.pack("=i", size))] if len(found) > 1 else []
        return len(raw), ancillary, 0, None
