"""Live driver of the proxy: a service loop on mapped memory and MPI.

[Note: bells] Results are written to a client's ring at once, but the client is woken only when the
device has nothing more to add or `_BELL_DELAY_S` have passed: on a machine with fewer cores than
ranks each early wake-up would push the device off its core.
"""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from coarse.gpu.available import gpus
from coarse.protocol import override
from coarse.protocol.clock import Clock
from coarse.protocol.codec import decode, encode
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.protocol.records import (
    Died,
    Lend,
    Reach,
    Reached,
    Reclaim,
    Reclaimed,
    Record,
    StatisticsReply,
    StatisticsRequest,
    Tag,
)
from coarse.proxy.attached import AttachedFeatures
from coarse.proxy.device import Device, ReduceWork, UrgentFirst, Work
from coarse.proxy.gpu_sums import GpuSums
from coarse.proxy.instructions import Reduce, Region, Reserve, RingFinish, RingReduce, RingSend, Send, added_bytes
from coarse.proxy.loans import Lender, Loans
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.ring_buffers import ArrayOf, RingBuffers
from coarse.storage.gpu_memory import GpuDeviceMemory
from coarse.storage.lent import why_not
from coarse.storage.reduce import Elements
from coarse.storage.region import DeviceMemory
from coarse.transport.device_transport import DeviceTransport
from coarse.transport.mailbox import Mailbox

_BELL_DELAY_S = 0.001
_LAST_WORDS_S = 5.0
"""Seconds that a device that ends goes on sending to others, which may have ended, too."""
_IDLE_SLEEP_S = 0.5
_POLL_BUSY_S = 0.0002
_POLL_GPU_S = 0.00005
_POLL_IDLE_S = 0.01
_BUSY_LINGER_S = 0.05


class LiveBuffers(RingBuffers):
    """Ring buffers that know the clients' loans, and count what they reduce and the seconds that it takes."""

    def __init__(self, array_of: ArrayOf, clock: Clock, loans: Loans) -> None:
        super().__init__(array_of)
        self._clock = clock
        self._loans = loans
        self.num_reduced = self.added_bytes = 0
        self.reduce_s = 0.0

    @override
    def reduce(self, work: ReduceWork) -> None:
        began_s = self._clock.now_s()
        super().reduce(work)
        self.count(work, began_s)

    def count(self, work: ReduceWork, began_s: float) -> None:
        """Count a sum that is done."""
        self.num_reduced += 1
        self.added_bytes += added_bytes(work)
        self.reduce_s += self._clock.now_s() - began_s

    @override
    def source(self, key: int, region: Region, dtype: DType, num_elements: int) -> Elements:
        lent = self._loans.source(key, region, dtype, num_elements)
        return super().source(key, region, dtype, num_elements) if lent is None else lent

    @override
    def target(self, key: int, region: Region, dtype: DType, num_elements: int) -> Elements:
        lent = self._loans.target(key, region, dtype, num_elements)
        return super().target(key, region, dtype, num_elements) if lent is None else lent


class BuffersOnGpu(LiveBuffers):
    """Ring buffers of a device whose regions of keys lie on a GPU: its stream writes results of rings."""

    def __init__(self, array_of: ArrayOf, clock: Clock, loans: Loans, sums: GpuSums) -> None:
        super().__init__(array_of, clock, loans)
        self._sums = sums

    @override
    def finish(self, finish: RingFinish) -> None:
        result, dtype = self.result_of(finish)
        self._sums.write(result, dtype, finish.targets)


class ProxyService:
    """Service loop of one device; it runs in the device rank's main thread, or in a thread of a worker."""

    def __init__(
        self,
        protocol: ProxyProtocol,
        placement: Placement,
        mailbox: Mailbox,
        memories: Mapping[int, DeviceMemory],
        transport: DeviceTransport | None,
        clock: Clock,
        work: Work | None = None,
        process_ids: Mapping[int, int] | None = None,
    ) -> None:
        """Take the parts of the service.

        Sums are taken in the order of `work`: the most urgent first, unless another driver gives another order.
        `process_ids` are those of this node's world ranks, whose memory clients may lend.
        """
        self._protocol = protocol
        self._placement = placement
        self._mailbox = mailbox
        self._memories = memories
        self._transport = transport
        self._clock = clock
        self._work = UrgentFirst() if work is None else work
        self._finished = False
        self._bell_since_s: float | None = None
        self._last_arrival_s = clock.now_s()
        self._lenders = {
            client: Lender((process_ids or {})[rank], placement.describe(client))
            for client, rank in enumerate(placement.ranks[: placement.num_clients])
            if rank in (process_ids or {})
        }
        self._loans = Loans(self._lenders)
        self._gpu_sums = self._open_gpu(memories[protocol.device])
        """Sums on the GPU, of a device whose keys' regions lie there."""
        self._rings = self._open_buffers(self._gpu_sums)
        self._own: dict[type, Callable[[Any], None]] = {
            StatisticsRequest: self._on_statistics_request,
            StatisticsReply: lambda reply: self.send(Send(reply.client, reply)),
            Reach: self._on_reach,
            Lend: self._loans.on_lend,
            Reclaim: self._on_reclaim,
        }
        """Handlers of the records that the protocol does not know."""
        self._num_records = 0
        here = placement.device_nodes[protocol.device]
        self._is_near = [
            node == here for node in (*placement.client_nodes, *placement.device_nodes)
        ]
        self._device = self._make_device(protocol, self._rings)
        self._features = AttachedFeatures(
            protocol, placement, self._device, memories, clock, mailbox, self._wake,
            self._send_message if transport is not None else None,
        )  # fmt: skip

    def serve(self) -> None:
        """Serve until all clients have left."""
        while self._is_needed:
            self._take_records()
            if self._transport is not None:
                self._take_messages(self._transport)
            if self._features.poll():
                self._last_arrival_s = self._clock.now_s()
            has_gone_on = self._gpu_sums is not None and self._gpu_sums.go_on()
            work = None if self._features.is_urgent else self._next_work()
            if work is not None:
                self._add(work)
            if work is not None or has_gone_on:
                self._ring_late_bells()
            elif self._features.has_work:
                self._ring_bells()
                self._features.work()
            elif self._is_needed:
                self._ring_bells()
                for endpoint in self._mailbox.sleep(self._sleep_s()):
                    self._on_process_ended(endpoint)
        if self._transport is not None:
            self._end(self._transport)
        self._mailbox.set_left()
        self._ring_bells()

    @property
    def _is_needed(self) -> bool:
        """True if something is to be done, or may still arrive."""
        is_on_gpu = self._gpu_sums is not None and self._gpu_sums.is_busy
        return not self._finished or is_on_gpu or self._features.keep(are_all_gone=self._finished)

    def _make_device(self, protocol: ProxyProtocol, rings: LiveBuffers) -> Device:
        return Device(protocol, self, rings)

    def _open_gpu(self, memory: DeviceMemory) -> GpuSums | None:
        if not isinstance(memory, GpuDeviceMemory):
            return None
        gpu = gpus().gpu_of(memory.on_gpu)
        return GpuSums(gpus(), gpu, self._array, self._reaches)

    def _open_buffers(self, sums: GpuSums | None) -> LiveBuffers:
        if sums is None:
            return LiveBuffers(self._array, self._clock, self._loans)
        return BuffersOnGpu(self._array, self._clock, self._loans, sums)

    def _reaches(self, device: int) -> bool:
        """Return whether this device's GPU reaches the memory of another device."""
        memory = self._memories[device]
        return isinstance(memory, GpuDeviceMemory) and memory.is_direct

    def _next_work(self) -> ReduceWork | None:
        """Return the next sum; none while a GPU has as many as it should."""
        return self._work.take() if self._gpu_sums is None or self._gpu_sums.has_room else None

    def _add(self, work: ReduceWork) -> None:
        """Take a sum, or have the GPU take it.

        If the GPU takes it, the mailbox still dates what follows from it to this moment, though it comes later.
        """
        if self._gpu_sums is None:
            self._device.reduce(work)
            return
        added = partial(self._on_added, work, self._clock.now_s(), self._mailbox.moment_s())
        if isinstance(work, Reduce):
            self._gpu_sums.reduce(work, added)
        else:
            self._gpu_sums.combine(work, added)

    def _on_added(self, work: ReduceWork, began_s: float, moment_s: float, local: np.ndarray | None = None) -> None:
        """Process the end of a sum on the GPU, that of a ring in `local`."""
        self._rings.count(work, began_s)
        if isinstance(work, RingReduce):
            assert local is not None
            self._rings.begin(work, local)
        with self._mailbox.as_of(moment_s):
            self._device.reduced(work)

    def _end(self, transport: DeviceTransport) -> None:
        """Send what waits, to those that still read, and close."""
        until_s = self._clock.now_s() + _LAST_WORDS_S
        while transport.has_unwritten and self._clock.now_s() < until_s:
            self._mailbox.sleep(_POLL_BUSY_S)
            self._take_messages(transport)
        transport.close()

    @property
    def has_failed(self) -> bool:
        """True if a rank is known to have died."""
        return bool(self._protocol.dead)

    def warn_peers(self, text: str) -> None:
        """Tell every rank of the node that this one cannot go on."""
        endpoint = self._placement.num_clients + self._protocol.device
        self._mailbox.send_to_all(Died(self._placement.ranks[endpoint], text))

    def _sleep_s(self) -> float:
        longest_s, next_s = self._longest_sleep_s(), self._work.wall_s_until_next()
        return longest_s if next_s is None else min(longest_s, next_s)

    def _longest_sleep_s(self) -> float:
        return self._features.longest_sleep_s(self._longest_of_carriers_s())

    def _longest_of_carriers_s(self) -> float:
        """Return the longest sleep in seconds for what arrives by MPI and the GPU.

        Neither of them wakes the service, so a device that may hear by them looks often.
        """
        if self._gpu_sums is not None and self._gpu_sums.is_busy:
            return _POLL_GPU_S
        if self._transport is None:
            return _IDLE_SLEEP_S
        busy = self._transport.is_busy or self._rings.in_use
        recent = self._clock.now_s() - self._last_arrival_s < _BUSY_LINGER_S
        return _POLL_BUSY_S if busy or recent else _POLL_IDLE_S

    # --- arrivals

    def _take_records(self) -> None:
        for record in self._mailbox.records():
            self._num_records += 1
            self._on_record(record)

    def _on_record(self, record: Record) -> None:
        self._last_arrival_s = self._clock.now_s()
        own = self._own.get(type(record))
        if own is None:
            self._device.on_record(record)
        else:
            own(record)

    def _on_statistics_request(self, request: StatisticsRequest) -> None:
        client, device, token = request
        if device != self._protocol.device:
            self.send(Send(self._placement.num_clients + device, request))
            return
        here = client if self._is_near[client] else self._placement.num_clients + self._placement.local_proxies[client]
        self.send(Send(here, StatisticsReply(client, device, token, json.dumps(self.statistics()))))

    def _on_reach(self, reach: Reach) -> None:
        why = why_not(self._lenders[reach.client].process_id, reach.address, reach.value)
        self.send(Send(reach.client, Reached(self._protocol.device, reach.token, why)))

    def _on_reclaim(self, reclaim: Reclaim) -> None:
        """Take all sums that wait now, from where their sources lie, so that all later ones are in the region.

        (Devices on GPUs are lent nothing.)
        """
        while (work := self._work.take()) is not None:
            self._device.reduce(work)
        self._loans.end(reclaim.key, reclaim.client)
        self.send(Send(reclaim.client, Reclaimed(reclaim.key, self._protocol.device, reclaim.token)))

    def _take_messages(self, transport: DeviceTransport) -> None:
        for source, tag, payload in transport.poll():
            if tag == Tag.RECORD:
                self._on_record(decode(payload.tobytes()))
                continue
            self._last_arrival_s = self._clock.now_s()
            if tag == Tag.RING:
                self._device.on_chunk(self._rings.keep(payload))
            else:
                self._features.on_message(source, tag, payload)
        for device in transport.take_lost():
            self._on_dead(self._placement.num_clients + device)

    def _on_process_ended(self, endpoint: int) -> None:
        if not self._mailbox.has_left(endpoint):
            self._on_dead(endpoint)

    def _on_dead(self, endpoint: int) -> None:
        text = f"{self._placement.describe(endpoint)} died"
        self._device.on_dead(self._placement.ranks[endpoint], text)

    # --- what the device asks of its driver

    def send(self, send: Send) -> None:
        """Send a record by a ring in mapped memory, or by MPI to a device of another node."""
        if self._gpu_sums is None:
            self._send_now(send)
        else:
            self._gpu_sums.after(partial(self._send_as_of, send, self._mailbox.moment_s()))

    def _send_as_of(self, send: Send, moment_s: float) -> None:
        with self._mailbox.as_of(moment_s):
            self._send_now(send)

    def _send_now(self, send: Send) -> None:
        endpoint, record = send
        if self._is_near[endpoint]:
            self._mailbox.send(endpoint, record)
            if self._bell_since_s is None:
                self._bell_since_s = self._clock.now_s()
        elif self._transport is not None and endpoint >= self._placement.num_clients:
            device = endpoint - self._placement.num_clients
            self._transport.send(device, Tag.RECORD, np.frombuffer(encode(record), np.uint8))

    def send_chunk(self, send: RingSend) -> None:
        """Send a ring's chunk by MPI."""
        self._send_message(send.device, Tag.RING, self._rings.frame_of(send))

    def _send_message(self, device: int, tag: int, payload: np.ndarray) -> None:
        """Send by MPI, and wake a device of this node, which MPI does not."""
        assert self._transport is not None
        self._transport.send(device, tag, payload)
        endpoint = self._placement.num_clients + device
        if self._is_near[endpoint]:
            self._mailbox.ring_always(endpoint)

    def reduce(self, work: ReduceWork) -> None:
        """Queue a sum until it is its turn."""
        self._work.give(work)

    def reserve(self, reserve: Reserve) -> str:
        """Make bytes of the device's memory real.

        Return why that is impossible, or an empty string.
        """
        return self._memories[self._protocol.device].reserve(reserve.offset, reserve.nbytes)

    def finish(self) -> None:
        """Note that all clients have left."""
        self._finished = True

    # --- within

    def _wake(self) -> None:
        self._mailbox.ring_always(self._mailbox.endpoint)

    def _ring_late_bells(self) -> None:
        since_s = self._bell_since_s
        if since_s is not None and self._clock.now_s() - since_s > _BELL_DELAY_S:
            self._ring_bells()

    def _ring_bells(self) -> None:
        self._mailbox.ring_bells()
        self._bell_since_s = None

    def _array(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        nbytes = num_elements * dtype.itemsize
        return self._memories[region.device].view(region.offset, nbytes).view(dtype.storage)

    def statistics(self) -> dict[str, float]:
        """Return this device's counters since its start."""
        usage = os.times()
        rings = self._rings
        found: dict[str, float] = {"folded_bytes": rings.added_bytes, "folds": rings.num_reduced}
        found |= {"records": self._num_records, "fold_s": rings.reduce_s}
        found["cpu_s"] = usage.user + usage.system
        found["memory_used_bytes"] = self._protocol.used_bytes
        found["results"] = self._protocol.versions.num_results
        if self._gpu_sums is not None:
            found["staged_bytes"] = self._gpu_sums.staged_bytes
        transport = self._transport
        found["mpi_sent_bytes"] = 0 if transport is None else sum(transport.sent_bytes)
        found["mpi_received_bytes"] = 0 if transport is None else sum(transport.received_bytes)
        found["between_nodes_sent_bytes"], found["between_nodes_received_bytes"] = self.carried_between_nodes()
        return self._features.statistics() | found

    def carried_between_nodes(self) -> tuple[int, int]:
        """Return the bytes sent to and received from devices of other nodes.

        They are records, chunks of rings, and packets of models.
        """
        if self._transport is None:
            return 0, 0
        counts = (self._transport.sent_bytes, self._transport.received_bytes)
        is_far = [not near for near in self._is_near[self._placement.num_clients :]]
        sent, received = (sum(compress(by_device, is_far)) for by_device in counts)
        otherwise = [self._features.carried(device) for device in compress(range(len(is_far)), is_far)]
        return sent + sum(count for count, _ in otherwise), received + sum(count for _, count in otherwise)
