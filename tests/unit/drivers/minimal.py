"""A driver in a hundred lines, written from docs/design.md (A driver): one queue, one process, no clock.

Whatever is sent, and whatever is to be added, waits in one queue; each turn hands over the oldest.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from coarse.client.protocol import ClientProtocol, ToDevice
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.protocol.records import Record
from coarse.proxy.device import Device, ReduceWork
from coarse.proxy.instructions import Region, Reserve, RingSend, Send
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.ring_buffers import RingBuffers


class MinimalDriver:
    """All clients and devices of a job."""

    def __init__(self, placement: Placement, capacity_bytes: int) -> None:
        self._memories = [np.zeros(capacity_bytes, np.uint8) for _ in placement.device_nodes]
        self._queue: deque[tuple[int, Record | ReduceWork | np.ndarray]] = deque()
        """(endpoint, what it gets)."""
        self.clients = [ClientProtocol(client, placement) for client in range(placement.num_clients)]
        self._hands = [MinimalDevice(self, device) for device in range(placement.num_devices)]
        self._devices = [
            Device(ProxyProtocol(device, placement, capacity_bytes), hand, hand.rings)
            for device, hand in enumerate(self._hands)
        ]

    def deliver(self, client: int, records: Sequence[ToDevice]) -> None:
        """A client's records."""
        for device, record in records:
            self.put(len(self.clients) + device, record)

    def announce(self, client: int, key: int, *, present: bool = True) -> None:
        """The contribution lies in the key's region: say so."""
        protocol = self.clients[client]
        protocol.begin(key)
        self.deliver(client, protocol.announce(key, 0, protocol.keys[key].plan.num_shards, present=present))

    def array(self, region: Region, dtype: DType, num_elements: int) -> np.ndarray:
        """A region's elements."""
        end = region.offset + num_elements * dtype.itemsize
        return self._memories[region.device][region.offset : end].view(dtype.storage)

    def put(self, endpoint: int, what: Record | ReduceWork | np.ndarray) -> None:
        """Into the queue."""
        self._queue.append((endpoint, what))

    def run(self) -> None:
        """Until the queue is empty."""
        while self._queue:
            endpoint, what = self._queue.popleft()
            if endpoint < len(self.clients):
                self.clients[endpoint].on_record(what)
                continue
            number = endpoint - len(self.clients)
            device = self._devices[number]
            if isinstance(what, np.ndarray):
                device.on_chunk(self._hands[number].rings.keep(what))
            elif isinstance(what, ReduceWork):
                device.reduce(what)
            else:
                device.on_record(what)


class MinimalDevice:
    """What one device is driven by."""

    def __init__(self, job: MinimalDriver, device: int) -> None:
        self.rings = RingBuffers(job.array)
        self._job = job
        self._device = device

    def send(self, send: Send) -> None:
        self._job.put(send.endpoint, send.record)

    def send_chunk(self, send: RingSend) -> None:
        self._job.put(len(self._job.clients) + send.device, self.rings.frame_of(send))

    def reduce(self, work: ReduceWork) -> None:
        self._job.put(len(self._job.clients) + self._device, work)

    def reserve(self, reserve: Reserve) -> str:
        return ""

    def finish(self) -> None:
        pass
