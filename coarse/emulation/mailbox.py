"""A mailbox whose pushes and results take the way through the fabric; all other records go as they did.

[Note: probes] A probe goes over the links of any way and comes back to the endpoint that sent it. Probes are sent
only while nothing else is under way, so whatever the fabric delivers then is one.
"""

import os
from collections.abc import Callable, Iterator

from coarse.emulation.doorbell import PunctualMailbox
from coarse.emulation.envelope import RUN_SECONDS, FabricPort, Submission, unpack_delivery
from coarse.emulation.fabric_end import fabric_error
from coarse.emulation.pace import Pace
from coarse.emulation.shard_sizes import ShardSizes
from coarse.protocol.codec import decode, encode
from coarse.protocol.records import Descriptor, Push, Ready

_HOT_KINDS = (1, 2)
"""First bytes of the frames of Push and Ready, the two that announce bytes."""
OnToken = Callable[[FabricPort, bytes, float], None]


class EmulatedMailbox(PunctualMailbox):
    """One endpoint's end of its rings; the fabric is one endpoint more.

    `now_s` is the emulated time of what is being done: that of the frame which was handed out last.
    What is posted begins then.
    """

    def __init__(
        self,
        endpoint: int,
        num_endpoints: int,
        peers: tuple[int, ...],
        control: memoryview,
        run: str,
        *,
        num_clients: int,
        pace: Pace,
    ) -> None:
        """`num_endpoints` and `peers` count the fabric, which is the last endpoint."""
        super().__init__(endpoint, num_endpoints, peers, control, run)
        self._peers = peers
        self._fabric = num_endpoints - 1
        self._num_clients = num_clients
        self._is_device = endpoint >= num_clients
        self._pace = pace
        self._sizes = ShardSizes()
        self.now_s = 0.0
        self.on_token: OnToken | None = None
        """Takes deliveries that are no records: chunks of rings."""
        self.on_probe: OnToken | None = None
        """While it is set, takes all deliveries: see [Note: probes]."""

    def watch_fabric(self, process_id: int, rank: int) -> None:
        """Let every wait end with FabricError, in the name of a rank, once the fabric process has ended."""
        self._fabric_process = process_id, rank
        self.watch(os.pidfd_open(process_id), self._fabric)

    def post(self, peer: int, frame: bytes) -> None:
        """As Mailbox.post; shards that are announced travel one by one."""
        record = decode(frame)
        if isinstance(record, Push) and record.present:
            device = peer - self._num_clients
            for shard in range(record.first, record.last):
                one = record._replace(first=shard, last=shard + 1)
                self._submit(FabricPort.PUSH, record.client, device, peer, record.key, shard, encode(one))
        elif isinstance(record, Ready):
            device = self.endpoint - self._num_clients
            for shard in range(record.first, record.last):
                one_ready = record._replace(first=shard, last=shard + 1)
                self._submit(FabricPort.PULL, device, peer, peer, record.key, shard, encode(one_ready))
        else:
            self._sizes.note(record)
            super().post(peer, frame)

    def post_to_all(self, frame: bytes) -> None:
        """As Mailbox.post_to_all; the fabric is nobody to tell."""
        for peer in self._peers[:-1]:
            self.post(peer, frame)
        self.ring_bells()

    def send_token(self, way: FabricPort, target: int, endpoint: int, nbytes: int, priority: int, frame: bytes) -> None:
        """Bytes of a ring are on their way to another device or worker; `frame` says which."""
        source = self.endpoint - (self._num_clients if way is FabricPort.DEVICES else 0)
        self._to_fabric(Submission(self.now_s, nbytes, source, target, endpoint, way, priority, frame))

    def send_probe(self, way: FabricPort, source: int, target: int, nbytes: int, begin_s: float, frame: bytes) -> None:
        """Bytes that nobody needs, at an emulated time to come: see [Note: probes]."""
        self._to_fabric(Submission(begin_s, nbytes, source, target, self.endpoint, way, 0, frame))

    def set_run_clock(self, at_s: float, run_s: float, *, goes: bool) -> None:
        """Tell the fabric how old the run is at an emulated time, and whether it goes on."""
        self._to_fabric(Submission(at_s, int(goes), 0, 0, self.endpoint, FabricPort.CLOCK, 0, RUN_SECONDS.pack(run_s)))
        self.ring_bells()

    def descriptor(self, key: int) -> Descriptor:
        """What a key is, as far as records of it have passed."""
        return self._sizes.descriptor(key)

    def read(self) -> Iterator[bytes]:
        """As Mailbox.read; `now_s` is then the time at which the frame's bytes arrived."""
        for peer, ring in zip(self._peers, self._inbound, strict=True):
            while (frame := ring.read()) is not None:
                if peer != self._fabric:
                    self.now_s = max(self.now_s, self._pace.now_s()) if self._is_device else self.now_s
                    if frame[0] not in _HOT_KINDS:
                        self._sizes.note(decode(frame))
                    yield frame
                    continue
                delivery = unpack_delivery(frame)
                self.now_s = delivery.due_s if self._is_device else max(self.now_s, delivery.due_s)
                if self.on_probe is not None:
                    self.on_probe(delivery.way, delivery.frame, delivery.due_s)
                elif delivery.way in (FabricPort.PUSH, FabricPort.PULL):
                    yield delivery.frame
                else:
                    assert self.on_token is not None
                    self.on_token(delivery.way, delivery.frame, delivery.due_s)

    def _ended(self, events: list[tuple[int, int]]) -> list[int]:
        dead = super()._ended(events)
        if self._fabric in dead:
            raise fabric_error(*self._fabric_process)
        return dead

    def _submit(
        self, way: FabricPort, source: int, target: int, endpoint: int, key: int, shard: int, frame: bytes
    ) -> None:
        nbytes, priority = self._sizes.nbytes(key, shard), self._sizes.descriptor(key).priority
        self._to_fabric(Submission(self.now_s, nbytes, source, target, endpoint, way, priority, frame))

    def _to_fabric(self, submission: Submission) -> None:
        super().post(self._fabric, submission.pack())
