"""The control plane within a node: rings of records in mapped memory, and doorbells.

Every ordered pair of endpoints has a ring with one writer and one reader, so there is no lock that
a dying process could hold. An endpoint with nothing to do marks itself asleep and blocks on a Unix
datagram socket; whoever writes to it then rings. While all are awake nobody makes a system call.

[Note: fences] A writer stores a record and then loads the reader's asleep mark; the reader stores
the mark and then loads the ring. x86 may delay a store past a later load, so both sides take and
release a lock in between, which is an atomic instruction and drains the store buffer.

[Note: lingering] Waking a core that has gone idle takes longer than a small record's whole way.
Before it sleeps, an endpoint therefore offers its core to others a few times (sched_yield) and
looks again: some 20 microseconds once per sleep, nothing while idle.

[Note: records and frames] `send` and `records` are what protocols speak through; another driver's mailbox overrides
these two. `post` and `frames` move bytes that mean something to the two ends alone.
"""

import contextlib
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

from coarse.errors import CoarseError, NotInitializedError
from coarse.protocol.codec import decode, encode
from coarse.protocol.records import Record

RING_BYTES = 1 << 18
_HEADER_BYTES = 128
_STATUS_BYTES = 128
MAX_FRAME_BYTES = RING_BYTES // 2 - 64
"""A frame of this size fits an empty ring wherever that begins."""
_LENGTH = struct.Struct("<I")
_WRAP = 0xFFFFFFFF
_YIELDS = 20
ASLEEP, STATUS = 0, 8
"""Word offsets within an endpoint's status block; each on a cache line of its own."""
RUNNING, LEFT, TERMINATED = 0, 1, 2


def control_bytes(num_endpoints: int) -> int:
    """Return the bytes of the control segment of a node."""
    return num_endpoints * _STATUS_BYTES + num_endpoints**2 * (_HEADER_BYTES + RING_BYTES)


class _Ring:
    """One direction between two endpoints; head and tail count bytes for ever."""

    def __init__(self, control: memoryview, num_endpoints: int, writer: int, reader: int) -> None:
        start = num_endpoints * _STATUS_BYTES
        start += (writer * num_endpoints + reader) * (_HEADER_BYTES + RING_BYTES)
        self._words = control[start : start + _HEADER_BYTES].cast("Q")
        begin = start + _HEADER_BYTES
        self._data = control[begin : begin + RING_BYTES]

    def write(self, frame: bytes) -> bool:
        """Append a frame; False where there is no room."""
        words, data = self._words, self._data
        head, tail = words[0], words[8]
        length = (len(frame) + 11) & ~7
        at = tail % RING_BYTES
        skip = RING_BYTES - at if at + length > RING_BYTES else 0
        if tail + skip + length - head > RING_BYTES:
            return False
        if skip:
            _LENGTH.pack_into(data, at, _WRAP)
            tail += skip
            at = 0
        _LENGTH.pack_into(data, at, len(frame))
        data[at + 4 : at + 4 + len(frame)] = frame
        words[8] = tail + length
        return True

    def has_frames(self) -> bool:
        """Return whether a read would find frames."""
        words = self._words
        return words[0] != words[8]

    def read(self) -> bytes | None:
        """Remove the oldest frame."""
        words = self._words
        head = words[0]
        if head == words[8]:
            return None
        at = head % RING_BYTES
        (length,) = _LENGTH.unpack_from(self._data, at)
        if length == _WRAP:
            head += RING_BYTES - at
            at = 0
            (length,) = _LENGTH.unpack_from(self._data, at)
        frame = bytes(self._data[at + 4 : at + 4 + length])
        words[0] = head + ((length + 11) & ~7)
        return frame


class Mailbox:
    """One endpoint's end of all its rings."""

    def __init__(
        self,
        endpoint: int,
        num_endpoints: int,
        peers: tuple[int, ...],
        control: memoryview,
        run: str,
        *,
        is_punctual: bool = False,
    ) -> None:
        """Open the mailbox; a punctual one wakes up when the time of a sleep is over, not up to a millisecond later."""
        self.endpoint = endpoint
        self._run = run
        self._is_punctual = is_punctual
        self._inbound = [(peer, _Ring(control, num_endpoints, peer, endpoint)) for peer in peers]
        self._inbound_rings = [ring for _, ring in self._inbound]
        self._outbound = {peer: _Ring(control, num_endpoints, endpoint, peer) for peer in peers}
        self._waiting: dict[int, deque[bytes]] = {}
        self._status = {
            e: control[e * _STATUS_BYTES : (e + 1) * _STATUS_BYTES].cast("Q")
            for e in (*peers, endpoint)
        }
        self._unrung: set[int] = set()
        self._fence = threading.Lock()
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._bell.setblocking(False)
        self._bell.bind(self._address(endpoint))
        self._poll = select.epoll()
        self._poll.register(self._bell, select.EPOLLIN)
        self._watched: dict[int, int] = {}

    def _address(self, endpoint: int) -> str:
        return f"\0coarse-{self._run}-{endpoint}"

    # --- writing

    def send(self, peer: int, record: Record) -> None:
        """Write a record; its reader is woken by the next `ring_bells`."""
        self.post(peer, encode(record))

    def moment_s(self) -> float:
        """Return the time of what is being done, for `as_of`; here the present."""
        return 0.0

    @contextlib.contextmanager
    def as_of(self, moment_s: float) -> Iterator[None]:
        """Give a context in which this thread goes on with something of an earlier moment, which had to wait."""
        yield

    def send_to_all(self, record: Record) -> None:
        """Write a record to every endpoint of the node and wake them."""
        for peer in self._outbound:
            self.send(peer, record)
        self.ring_bells()

    def post(self, peer: int, frame: bytes) -> None:
        """Write a frame; its reader is woken by the next `ring_bells`."""
        if len(frame) > MAX_FRAME_BYTES:
            raise CoarseError(
                f"a record of {len(frame)} bytes is above {MAX_FRAME_BYTES}; use shorter names, and bring bytes by "
                "device memory"
            )
        ring = self._outbound.get(peer)
        if ring is None:
            raise CoarseError(
                f"a record for endpoint {peer}, and this node has {sorted(self._outbound)}; tell a device of it, "
                "which hands it on"
            )
        queue = self._waiting.get(peer)
        if queue or not ring.write(frame):
            self._waiting.setdefault(peer, deque()).append(frame)
        self._unrung.add(peer)

    def ring_bells(self) -> None:
        """Wake the readers of everything posted since the last call, if they are asleep."""
        if self._waiting:
            self._flush()
        if self._unrung:
            with self._fence:
                pass
            for peer in self._unrung:
                self._ring(peer)
            self._unrung.clear()

    def _ring(self, peer: int) -> None:
        words = self._status[peer]
        if words[ASLEEP]:
            words[ASLEEP] = 0
            self.ring_always(peer)

    def ring_always(self, peer: int) -> None:
        """Wake a reader without asking whether it sleeps (for messages that did not come by a ring)."""
        # refused: it has datagrams enough to wake, or is gone, and its death is noticed elsewhere
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            self._bell.sendto(b"!", self._address(peer))

    def _flush(self) -> None:
        for peer, queue in list(self._waiting.items()):
            self._unrung.add(peer)
            while queue and self._outbound[peer].write(queue[0]):
                queue.popleft()
            if not queue:
                del self._waiting[peer]

    @property
    def has_unsent(self) -> bool:
        """True if a full ring keeps frames back."""
        return bool(self._waiting)

    # --- reading

    def records(self) -> Iterator[Record]:
        """Yield all records that have come."""
        for _, ring in self._inbound:
            while (frame := ring.read()) is not None:
                yield decode(frame)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield all frames that have come, each with its writer."""
        for peer, ring in self._inbound:
            while (frame := ring.read()) is not None:
                yield peer, frame

    def sleep(self, timeout_s: float) -> list[int]:
        """Block until a bell rings, a peer dies or the time is over; return the keys of the dead (see `watch`).

        One thread at a time, which has called `ring_bells` under its lock.
        """
        if self._linger():
            return []
        if self._poll.closed:
            raise NotInitializedError(
                "this wait came after coarse.shutdown(), and its result had not come before; wait first"
            )
        words = self._status[self.endpoint]
        words[ASLEEP] = 1
        with self._fence:
            pass
        if self.has_unsent:
            timeout_s = min(timeout_s, 0.001)
        if self._has_frames():
            words[ASLEEP] = 0
            return []
        if self._is_punctual and timeout_s > 0:
            select.select([self._poll], [], [], timeout_s)
            timeout_s = 0.0
        events = self._poll.poll(timeout_s)
        words[ASLEEP] = 0
        for descriptor, _ in events:
            if descriptor == self._bell.fileno():
                self._drain_bell()
        return self._ended(events)

    def take_ended(self) -> list[int]:
        """Return the keys of processes that have ended (see `watch`) since the last call; no sleeper is woken."""
        return [] if self._poll.closed else self._ended(self._poll.poll(0.0))

    def _ended(self, events: list[tuple[int, int]]) -> list[int]:
        dead = []
        for descriptor, _ in events:
            if (key := self._watched.pop(descriptor, None)) is not None:
                self._poll.unregister(descriptor)
                os.close(descriptor)
                dead.append(key)
        return dead

    def _has_frames(self) -> bool:
        return any(map(_Ring.has_frames, self._inbound_rings))

    def _linger(self) -> bool:
        """Linger for frames ([Note: lingering]); return whether some came."""
        for _ in range(_YIELDS):
            if self._has_frames():
                return True
            os.sched_yield()
        return False

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(16)

    # --- the living

    def watch(self, process_descriptor: int, key: int) -> None:
        """Let `sleep` report `key` once the process of a pidfd has ended; the descriptor is this mailbox's now."""
        self._watched[process_descriptor] = key
        self._poll.register(process_descriptor, select.EPOLLIN)

    def wake_on(self, descriptor: int) -> None:
        """Let `sleep` end where a descriptor has something to read, whose reader has to empty it."""
        self._poll.register(descriptor, select.EPOLLIN)

    def ignore(self, descriptor: int) -> None:
        """Let a descriptor wake this mailbox no longer."""
        if not self._poll.closed:
            self._poll.unregister(descriptor)

    def set_left(self) -> None:
        """Say to all that this endpoint ended on purpose."""
        self._status[self.endpoint][STATUS] = LEFT

    def set_terminated(self) -> None:
        """Say to all that this endpoint was told to end, and is no reason for others to."""
        self._status[self.endpoint][STATUS] = TERMINATED

    def was_terminated(self, endpoint: int) -> bool:
        """Return whether an endpoint of this node was told to end from outside, by mpirun for example."""
        return self._status[endpoint][STATUS] == TERMINATED

    def has_left(self, endpoint: int) -> bool:
        """Return whether an endpoint of this node ended on purpose."""
        return self._status[endpoint][STATUS] == LEFT

    def close(self) -> None:
        """Give up the doorbell and the watched processes; the rings go with their mapping."""
        self._poll.close()
        self._bell.close()
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched.clear()
