# Pure: no MPI, threads, clock or environment.
"""What goes to the fabric and comes back: a record, the bytes that it stands for, and emulated times."""

import enum
import struct
from typing import NamedTuple

_SUBMISSION = struct.Struct("<dQHHHBxi")
_DELIVERY = struct.Struct("<dB7x")
RUN_SECONDS = struct.Struct("<d")
"""The frame of FabricPort.CLOCK."""


class FabricPort(enum.IntEnum):
    """Which links a transfer takes; each sender has a port for each."""

    PUSH = 1
    PULL = 2
    DEVICES = 3
    WORKERS = 4
    CLOCK = 5
    """No transfer: worker 0 says how old the run is (see run_clock.py), and whether it goes (`nbytes` 1)."""


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
        """Its bytes."""
        head = (self.begin_s, self.nbytes, self.source, self.target, self.endpoint, self.way, self.priority)
        return _SUBMISSION.pack(*head) + self.frame


class FabricDelivery(NamedTuple):
    """A frame whose bytes have arrived at an emulated time."""

    due_s: float
    way: FabricPort
    frame: bytes

    def pack(self) -> bytes:
        """Its bytes."""
        return _DELIVERY.pack(self.due_s, self.way) + self.frame


def unpack_submission(data: bytes) -> Submission:
    """The submission of some bytes."""
    begin_s, nbytes, source, target, endpoint, way, priority = _SUBMISSION.unpack_from(data)
    return Submission(begin_s, nbytes, source, target, endpoint, FabricPort(way), priority, data[_SUBMISSION.size :])


def unpack_delivery(data: bytes) -> FabricDelivery:
    """The delivery of some bytes."""
    due_s, way = _DELIVERY.unpack_from(data)
    return FabricDelivery(due_s, FabricPort(way), data[_DELIVERY.size :])
