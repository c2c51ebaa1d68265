# Pure: no MPI, threads, clock or environment.
"""Messages to the fabric and back: a record, the bytes that it stands for, and emulated times.

The number of bytes of each shard, and its device, follow from the records that pass by and from the plan.
"""

import enum
import struct
from collections import defaultdict
from typing import NamedTuple

from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Facts, Placement
from coarse.protocol.records import Descriptor, Located, Record, Register, Registered, Table, Tables

_SUBMISSION = struct.Struct("<dQHHHBxi")
_DELIVERY = struct.Struct("<dBxH4x")
NUMBER_BYTES = 8
"""Length of the number, at a frame's begin, by which an endpoint knows its own submissions."""


class FabricPort(enum.IntEnum):
    """Needs of a submission: links, a processor, or other workers.

    Each sender has a port of links for each way.
    """

    PUSH = 1
    PULL = 2
    DEVICES = 3
    WORKERS = 4
    MESSAGES = 16
    """Record or feature's message between devices. It waits for those of its pair alone, since live each peer has a
    way of its own. A ring's chunks wait for one another in DEVICES."""
    FETCH = 6
    """Fetch between devices, asked for by the one that reads. It has a port of its own for its fetches."""
    WRITE = 7
    """Write between devices, through the port of the one that writes. It hears itself when the bytes are there."""
    RECORD = 5
    """Record for the endpoint without bytes, behind earlier submissions for it."""
    ADDER = 8
    """Addition by the adder of the device `source`; its endpoint hears when the bytes are added."""
    JOINT = 9
    """Call of the worker `source` with others (coarse.protocol.joint). It follows the number in the frame. The
    worker hears when it is over."""
    MEET = 10
    """Pause of the worker `source` until all workers have come."""
    TIMER = 12
    """Timer without bytes: its endpoint hears when emulated time has come there."""
    LOAD = 14
    """Load of the worker `source` from coherent memory of the device `target`. The worker hears when it has ended."""
    STORE = 15
    """Store of the worker `source` to coherent memory of the device `target`. The worker hears when it has ended."""
    NOW = 13
    """Question without bytes or waiting: its endpoint hears at once how late it is."""
    RUN = 11
    """Pause like MEET, after which emulated time begins anew at 0. Earlier measurements are no part of the run."""

    @property
    def label(self) -> str:
        """Name as users read it, which is one for all ways between devices."""
        return "devices" if self is FabricPort.MESSAGES else self.name.lower()

    def queue(self, source: int, target: int) -> tuple[int, ...]:
        """Return the queue of the sender, or reader, in which a transfer waits for its turn."""
        match self:
            case FabricPort.PULL | FabricPort.FETCH:
                return self, target
            case FabricPort.WRITE:
                return FabricPort.DEVICES, source
            case FabricPort.MESSAGES:
                return self, source, target
        return self, source


class Submission(NamedTuple):
    """Transfer that may begin at an emulated time; `frame` is for the endpoint that it reaches."""

    begin_s: float
    nbytes: int
    source: int
    """Index of a client or device, according to the way."""
    target: int
    endpoint: int
    way: FabricPort
    priority: int
    frame: bytes

    def pack(self) -> bytes:
        """Return its bytes."""
        head = (self.begin_s, self.nbytes, self.source, self.target, self.endpoint, self.way, self.priority)
        return _SUBMISSION.pack(*head) + self.frame


class FabricDelivery(NamedTuple):
    """Frame whose bytes have arrived at an emulated time."""

    due_s: float
    way: FabricPort
    peer: int
    """Endpoint that submitted it."""
    frame: bytes

    def pack(self) -> bytes:
        """Return its bytes."""
        return _DELIVERY.pack(self.due_s, self.way, self.peer) + self.frame


def unpack_submission(data: bytes) -> Submission:
    """Return the submission of some bytes."""
    begin_s, nbytes, source, target, endpoint, way, priority = _SUBMISSION.unpack_from(data)
    return Submission(begin_s, nbytes, source, target, endpoint, FabricPort(way), priority, data[_SUBMISSION.size :])


def unpack_delivery(data: bytes) -> FabricDelivery:
    """Return the delivery of some bytes."""
    due_s, way, peer = _DELIVERY.unpack_from(data)
    return FabricDelivery(due_s, FabricPort(way), peer, data[_DELIVERY.size :])


class KeyPlaces:
    """Facts from which sizes and ways follow: descriptors, devices of clients' regions, and plans.

    The plan of each key follows from the tables of the last epoch.
    """

    def __init__(self, endpoint: int, placement: Placement) -> None:
        """Start without facts, as one endpoint: clients are endpoints 0..W-1, devices W..W+D-1."""
        self._endpoint = endpoint
        self._placement = placement
        self._descriptors: dict[int, Descriptor] = {}
        self._devices: dict[tuple[int, int], int] = {}
        self._epoch = 0
        self._facts: tuple[Facts, ...] = ()
        """Facts of all clients, of the last epoch in which each has announced its own. Until then none has begun
        with it."""
        self._coming: dict[int, dict[int, Facts]] = defaultdict(dict)
        """Facts by later epoch and client."""

    def note(self, record: Record, peer: int) -> None:
        """Note a record that passes to or from a peer; most say nothing about keys."""
        match record:
            case Register():
                self._descriptors[record.key] = record.descriptor
            case Registered():
                client = peer if self._endpoint >= self._placement.num_clients else self._endpoint
                self._devices[record.key, client] = record.device
            case Located():
                self._descriptors[record.key] = record.descriptor
                self._devices[record.key, record.client] = record.device
            case Table():
                self._note_facts(record.epoch, record.client, record.facts)
            case Tables():
                for client, facts in enumerate(record.facts):
                    self._note_facts(record.epoch, client, facts)

    def descriptor(self, key: int) -> Descriptor:
        """Return the descriptor of a key."""
        return self._descriptors[key]

    def device(self, key: int, client: int) -> int:
        """Return the device that a client's region of the key lies on."""
        return self._devices[key, client]

    def nbytes(self, key: int, first: int, last: int) -> int:
        """Return the bytes of shards [first, last) in the current epoch."""
        descriptor = self._descriptors[key]
        itemsize = DType(descriptor.dtype).itemsize
        plan = self._placement.plan_of(descriptor.tensor(key), self._facts)
        return plan.nbytes(first, last, itemsize)

    def _note_facts(self, epoch: int, client: int, facts: Facts) -> None:
        if epoch <= self._epoch:
            return
        coming = self._coming[epoch]
        coming[client] = facts
        if len(coming) == self._placement.num_clients:
            self._epoch, self._facts = epoch, tuple(coming[each] for each in range(len(coming)))
            del self._coming[epoch]
