"""A mailbox whose pushes and results take the way through the fabric; all other records go as they did.

[Note: probes] A probe goes over the links of any way and comes back to the endpoint that sent it. Probes are sent
only while nothing else is under way, so whatever the fabric delivers then is one.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from coarse.emulation.envelope import RUN_SECONDS, FabricPort, KeyPlaces, Submission, unpack_delivery
from coarse.emulation.failure import fabric_error
from coarse.emulation.pace import Pace
from coarse.protocol.codec import decode, encode
from coarse.protocol.plan import Placement
from coarse.protocol.records import Push, Ready, Record
from coarse.transport.mailbox import Mailbox

OnToken = Callable[[FabricPort, bytes, float], None]


class EmulatedMailbox(Mailbox):
    """One endpoint's end of its rings; the fabric is one endpoint more.

    `now_s` is the emulated time of what is being done: that of the record which was handed out last.
    What is sent begins then.
    """

    def __init__(
        self,
        endpoint: int,
        num_endpoints: int,
        peers: tuple[int, ...],
        control: memoryview,
        run: str,
        *,
        placement: Placement,
        pace: Pace,
    ) -> None:
        """`num_endpoints` and `peers` count the fabric, which is the last endpoint."""
        super().__init__(endpoint, num_endpoints, peers, control, run, is_punctual=True)
        self._peers = peers
        self._fabric = num_endpoints - 1
        self._num_clients = placement.num_clients
        self._is_device = endpoint >= placement.num_clients
        self._pace = pace
        self.places = KeyPlaces(endpoint, placement)
        """What keys are and where they lie, as far as records of them have passed."""
        self.now_s = 0.0
        self._earlier = threading.local()
        """The moment of `as_of`, in the thread that is within."""
        self.on_token: dict[FabricPort, OnToken] = {}
        """Who takes deliveries that are no records: of each way."""
        self.on_probe: OnToken | None = None
        """While it is set, takes all deliveries: see [Note: probes]."""

    def watch_fabric(self, process_id: int, rank: int) -> None:
        """Let every wait end with FabricError, in the name of a rank, once the fabric process has ended."""
        self._fabric_process = process_id, rank
        self.watch(os.pidfd_open(process_id), self._fabric)

    def send(self, peer: int, record: Record) -> None:
        """As Mailbox.send; shards that are announced travel one by one, from and to where the key lies."""
        if isinstance(record, Push) and record.present:
            client, device = record.client, self.places.device(record.key, record.client)
            for shard in range(record.first, record.last):
                one = record._replace(first=shard, last=shard + 1)
                self._submit_shard(FabricPort.PUSH, client, device, peer, record.key, shard, encode(one))
        elif isinstance(record, Ready):
            device = self.places.device(record.key, peer)
            for shard in range(record.first, record.last):
                one_ready = record._replace(first=shard, last=shard + 1)
                self._submit_shard(FabricPort.PULL, device, peer, peer, record.key, shard, encode(one_ready))
        else:
            self.places.note(record, peer)
            super().send(peer, record)

    def moment_s(self) -> float:
        """See Mailbox: the emulated time at which what is sent begins."""
        earlier_s: float | None = getattr(self._earlier, "s", None)
        return self.now_s if earlier_s is None else earlier_s

    @contextlib.contextmanager
    def as_of(self, moment_s: float) -> Iterator[None]:
        """See Mailbox: what is sent within begins at an emulated time, whatever another thread does meanwhile."""
        before_s = getattr(self._earlier, "s", None)
        self._earlier.s = moment_s
        try:
            yield
        finally:
            self._earlier.s = before_s

    def send_to_all(self, record: Record) -> None:
        """As Mailbox.send_to_all; the fabric is nobody to tell."""
        for peer in self._peers[:-1]:
            self.send(peer, record)
        self.ring_bells()

    def submit(self, submission: Submission) -> None:
        """Bytes are on their way; the fabric tells the endpoint that they matter to when they have come.

        `ring_bells` wakes the fabric."""
        self.post(self._fabric, submission.pack())

    def set_run_clock(self, at_s: float, run_s: float, *, goes: bool) -> None:
        """Tell the fabric how old the run is at an emulated time, and whether it goes on."""
        self.submit(Submission(at_s, int(goes), 0, 0, self.endpoint, FabricPort.CLOCK, 0, RUN_SECONDS.pack(run_s)))
        self.ring_bells()

    def records(self) -> Iterator[Record]:
        """As Mailbox.records; `now_s` is then the time at which the record's bytes arrived."""
        for peer, frame in self.frames():
            if peer != self._fabric:
                self.now_s = max(self.now_s, self._pace.now_s()) if self._is_device else self.now_s
                record = decode(frame)
                self.places.note(record, peer)
                yield record
                continue
            delivery = unpack_delivery(frame)
            self.now_s = delivery.due_s if self._is_device else max(self.now_s, delivery.due_s)
            if self.on_probe is not None:
                self.on_probe(delivery.way, delivery.frame, delivery.due_s)
            elif delivery.way in (FabricPort.PUSH, FabricPort.PULL):
                yield decode(delivery.frame)
            else:
                self.on_token[delivery.way](delivery.way, delivery.frame, delivery.due_s)

    def sleep(self, timeout_s: float) -> list[int]:
        """As Mailbox.sleep; FabricError once the fabric process has ended."""
        return self._without_fabric(super().sleep(timeout_s))

    def take_ended(self) -> list[int]:
        """As Mailbox.take_ended; FabricError once the fabric process has ended."""
        return self._without_fabric(super().take_ended())

    def _without_fabric(self, dead: list[int]) -> list[int]:
        if self._fabric in dead:
            raise fabric_error(*self._fabric_process)
        return dead

    def _submit_shard(
        self, way: FabricPort, source: int, target: int, endpoint: int, key: int, shard: int, frame: bytes
    ) -> None:
        nbytes, priority = self.places.nbytes(key, shard), self.places.descriptor(key).priority
        self.submit(Submission(self.moment_s(), nbytes, source, target, endpoint, way, priority, frame))
