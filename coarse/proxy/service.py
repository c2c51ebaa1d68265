"""The proxy's live driver: carries out what its protocol decides, on mapped memory and over MPI.

[Note: bells] Results are written to a client's ring at once, but the client is woken only when the
device has nothing more to add or `_BELL_DELAY_S` have passed: on a machine with fewer cores than
ranks each early wake-up would push the device off its core.
"""

import heapq
import json
import os
from collections.abc import Callable, Mapping
from itertools import compress

import numpy as np

from coarse.protocol.clock import Clock
from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Died,
    StatisticsReply,
    StatisticsRequest,
    Tag,
)
from coarse.proxy.instructions import (
    Finished,
    Instruction,
    Reduce,
    Region,
    Reserve,
    RingFinish,
    RingReceive,
    RingReduce,
    RingSend,
    Send,
)
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.ring_buffers import RingBuffers, reduce_regions
from coarse.proxy.snapshot_writer import SnapshotWriter
from coarse.storage.region import DeviceMemory
from coarse.transport.mailbox import Mailbox
from coarse.transport.mpi import MpiTransport

_BELL_DELAY_S = 0.001
_IDLE_SLEEP_S = 0.5
_POLL_BUSY_S = 0.0002
_POLL_IDLE_S = 0.01
_BUSY_LINGER_S = 0.05


class ProxyService:
    """One device's service loop; runs in the device rank's main thread, or in a thread of a worker."""

    def __init__(
        self,
        protocol: ProxyProtocol,
        placement: Placement,
        mailbox: Mailbox,
        memories: Mapping[int, DeviceMemory],
        transport: MpiTransport | None,
        clock: Clock,
    ) -> None:
        self._protocol = protocol
        self._placement = placement
        self._mailbox = mailbox
        self._memories = memories
        self._transport = transport
        self._clock = clock
        self._work: list[tuple[int, int, Reduce | RingReduce]] = []
        self._sequence = 0
        self._finished = False
        self._bell_since_s: float | None = None
        self._last_arrival_s = clock.now_s()
        self._rings = RingBuffers(self._array)
        self._counters = {"folded_bytes": 0, "folds": 0, "records": 0}
        self._reduce_s = 0.0
        here = placement.device_nodes[protocol.device]
        self._is_near = [
            node == here for node in (*placement.client_nodes, *placement.device_nodes)
        ]
        self._snapshots = SnapshotWriter(protocol.snapshots, memories[protocol.device], self._wake)
        self._carry: dict[type, Callable[..., None]] = {
            Send: self._send,
            Reserve: self._reserve,
            Reduce: self._queue_work,
            RingReduce: self._queue_work,
            RingSend: self._ring_send,
            RingReceive: self._rings.receive,
            RingFinish: self._rings.finish,
            Finished: self._finish,
            **self._snapshots.carriers,
        }

    def serve(self) -> None:
        """Serve until all clients have left."""
        while not self._finished or self._snapshots.is_writing:
            self._take_records()
            self._carry_out(self._snapshots.take_results())
            if self._transport is not None:
                self._take_messages(self._transport)
            if self._work and not self._snapshots.has_urgent:
                self._do_next()
                self._ring_late_bells()
            elif self._snapshots.has_copies:
                self._ring_bells()
                self._carry_out(self._snapshots.copy_next())
            elif not self._finished or self._snapshots.is_writing:
                self._ring_bells()
                for endpoint in self._mailbox.sleep(self._sleep_s()):
                    self._on_process_ended(endpoint)
        self._mailbox.set_left()
        self._ring_bells()

    @property
    def has_failed(self) -> bool:
        """Whether a rank is known to have died."""
        return bool(self._protocol.dead)

    def warn_peers(self, text: str) -> None:
        """Tell every rank of the node that this one cannot go on."""
        endpoint = self._placement.num_clients + self._protocol.device
        self._mailbox.post_to_all(encode(Died(self._placement.ranks[endpoint], text)))

    def _sleep_s(self) -> float:
        if self._transport is None:
            return _IDLE_SLEEP_S
        busy = self._transport.is_sending or self._rings.in_use
        recent = self._clock.now_s() - self._last_arrival_s < _BUSY_LINGER_S
        return _POLL_BUSY_S if busy or recent else _POLL_IDLE_S

    # --- arrivals

    def _take_records(self) -> None:
        for frame in self._mailbox.read():
            self._counters["records"] += 1
            self._on_frame(frame)

    def _on_frame(self, frame: bytes) -> None:
        record = decode(frame)
        self._last_arrival_s = self._clock.now_s()
        if type(record) is StatisticsRequest:
            text = json.dumps(self.statistics())
            self._post(record.client, StatisticsReply(self._protocol.device, record.token, text))
        else:
            self._carry_out(self._protocol.on_record(record))

    def _take_messages(self, transport: MpiTransport) -> None:
        for _, tag, payload in transport.poll():
            if tag is Tag.RECORD:
                self._on_frame(payload.tobytes())
                continue
            self._last_arrival_s = self._clock.now_s()
            self._carry_out(self._protocol.on_chunk(self._rings.keep(payload)))
        for device in transport.take_lost():
            self._on_dead(self._placement.num_clients + device)

    def _on_process_ended(self, endpoint: int) -> None:
        if not self._mailbox.has_left(endpoint):
            self._on_dead(endpoint)

    def _on_dead(self, endpoint: int) -> None:
        text = f"{self._placement.describe(endpoint)} died"
        self._carry_out(self._protocol.on_dead(self._placement.ranks[endpoint], text))

    # --- instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            self._carry[type(instruction)](instruction)

    def _send(self, send: Send) -> None:
        self._post(send.endpoint, send.record)

    def _post(self, endpoint: int, record: object) -> None:
        frame = encode(record)  # type: ignore[arg-type]
        if self._is_near[endpoint]:
            self._mailbox.post(endpoint, frame)
            if self._bell_since_s is None:
                self._bell_since_s = self._clock.now_s()
        elif self._transport is not None and endpoint >= self._placement.num_clients:
            device = endpoint - self._placement.num_clients
            self._transport.send(device, Tag.RECORD, np.frombuffer(frame, np.uint8))

    def _wake(self) -> None:
        self._mailbox.ring_always(self._mailbox.endpoint)

    def _ring_late_bells(self) -> None:
        since_s = self._bell_since_s
        if since_s is not None and self._clock.now_s() - since_s > _BELL_DELAY_S:
            self._ring_bells()

    def _ring_bells(self) -> None:
        self._mailbox.ring_bells()
        self._bell_since_s = None

    def _reserve(self, reserve: Reserve) -> None:
        memory = self._memories[self._protocol.device]
        refusal = memory.reserve(reserve.offset, reserve.nbytes)
        self._carry_out(self._protocol.on_reserved(reserve.request, refusal))

    def _queue_work(self, work: Reduce | RingReduce) -> None:
        self._sequence += 1
        heapq.heappush(self._work, (-work.priority, self._sequence, work))

    def _do_next(self) -> None:
        _, _, work = heapq.heappop(self._work)
        began_s = self._clock.now_s()
        if type(work) is Reduce:
            reduce_regions(work, self._array)
            answer = self._protocol.on_reduced(work)
        elif type(work) is RingReduce:
            self._rings.reduce(work)
            answer = self._protocol.on_ring_reduced(work.ring)
        self._account(work.num_elements * DType(work.dtype).itemsize * len(work.sources), began_s)
        self._carry_out(answer)

    def _account(self, nbytes: int, began_s: float) -> None:
        self._counters["folds"] += 1
        self._counters["folded_bytes"] += nbytes
        self._reduce_s += self._clock.now_s() - began_s

    def _array(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        nbytes = num_elements * dtype.itemsize
        return self._memories[region.device].view(region.offset, nbytes).view(dtype.storage)

    def _ring_send(self, send: RingSend) -> None:
        assert self._transport is not None
        self._transport.send(send.device, Tag.RING, self._rings.frame_of(send))
        endpoint = self._placement.num_clients + send.device
        if self._is_near[endpoint]:
            self._mailbox.ring_always(endpoint)

    def _finish(self, _: Finished) -> None:
        self._finished = True

    def statistics(self) -> dict[str, float]:
        """This device's counters since its start."""
        usage = os.times()
        found: dict[str, float] = {**self._counters, "fold_s": self._reduce_s}
        found["cpu_s"] = usage.user + usage.system
        found["memory_used_bytes"] = self._protocol.used_bytes
        found["results"] = self._protocol.versions.num_results
        if self._transport is not None:
            found["mpi_sent_bytes"] = sum(self._transport.sent_bytes)
            found["mpi_received_bytes"] = sum(self._transport.received_bytes)
            found["between_nodes_sent_bytes"], found["between_nodes_received_bytes"] = self.carried_between_nodes()
        return found

    def carried_between_nodes(self) -> tuple[int, int]:
        """Bytes sent to and received from devices of other nodes: records and chunks of rings."""
        if self._transport is None:
            return 0, 0
        counts = (self._transport.sent_bytes, self._transport.received_bytes)
        is_far = [not near for near in self._is_near[self._placement.num_clients :]]
        sent, received = (sum(compress(by_device, is_far)) for by_device in counts)
        return sent, received
