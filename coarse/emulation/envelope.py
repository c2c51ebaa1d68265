# Pure: no MPI, threads, clock or environment.
"""Envelopes to the fabric and back: a record, the bytes that it stands for, and emulated times.

How many bytes each shard has, and on which device, follows from the records that pass by and from the plan.
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
"""Length of the number, at a frame's begin, by which an endpoint knows what it has submitted for itself."""


class FabricPort(enum.IntEnum):
    """Needs of a submission: links, of which each sender has a port for each way; a processor; or other workers."""

    PUSH = 1
    PULL = 2
    DEVICES = 3
    WORKERS = 4
    MESSAGES = 16
    """Between devices, a record or a feature's message: it waits for those of its pair alone, since live each peer has
    a way of its own. A ring's chunks wait for one another in DEVICES."""
    FETCH = 6
    """Between devices, asked for by the one that reads: it has a port of its own for what it fetches."""
    WRITE = 7
    """Between devices, through the port of the one that writes; it hears itself when the bytes are there."""
    RECORD = 5
    """No bytes: a record for the endpoint, behind what was submitted for it before."""
    ADDER = 8
    """The adder of the device `source`; its endpoint hears when the bytes are added."""
    JOINT = 9
    """The worker `source` makes a call with others, which follows the number in the frame (coarse.protocol.joint), and
    hears when it is over."""
    MEET = 10
    """The worker `source` goes on when all workers have come."""
    TIMER = 12
    """Nothing: its endpoint hears when emulated time has come there."""
    LOAD = 14
    """The worker `source` loads from coherent memory of the device `target`, and hears when it has."""
    STORE = 15
    """Port of stores, as that of loads."""
    NOW = 13
    """Nothing, and no wait for anybody: its endpoint hears at once how late it is."""
    RUN = 11
    """Submission at which emulated time begins anew at 0: measurements before the run are no part of it."""

    @property
    def label(self) -> str:
        """Return the name as users read it, which is one for all that devices send."""
        return "devices" if self is FabricPort.MESSAGES else self.name.lower()

    def queue(self, source: int, target: int) -> tuple[int, ...]:
        """Return the queue of a sender, or reader, in which a transfer waits for its turn."""
        match self:
            case FabricPort.PULL | FabricPort.FETCH:
                return self, target
            case FabricPort.WRITE:
                return FabricPort.DEVICES, source
            case FabricPort.MESSAGES:
                return self, source, target
        return self, source


class Submission(NamedTuple):
    """A transfer that may begin at an emulated time; `frame` is for the endpoint that it reaches."""

    begin_s: float
    nbytes: int
    source: int
    """Client or device index, as the way has it."""
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
    """A frame whose bytes have arrived at an emulated time."""

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
    """Facts on keys from which sizes and ways follow.

    They are descriptors, the device that holds each client's region, and the plan of each key by the tables of the last
    epoch.
    """

    def __init__(self, endpoint: int, placement: Placement) -> None:
        """Start as one endpoint sees keys: clients are endpoints 0..W-1, devices W..W+D-1."""
        self._endpoint = endpoint
        self._placement = placement
        self._descriptors: dict[int, Descriptor] = {}
        self._devices: dict[tuple[int, int], int] = {}
        self._epoch = 0
        self._facts: tuple[Facts, ...] = ()
        """Facts of all clients, of the last epoch in which each has said its own: until then none has begun with it."""
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
