# Pure: no MPI, threads, clock or environment.
"""Costs of the kernel's records and instructions; see coarse.protocol.costs."""

from typing import NamedTuple, Protocol

from coarse.protocol.costs import Cost, Costs, Way, free
from coarse.protocol.records import (
    Allocate,
    Allocated,
    Deregister,
    Died,
    Echo,
    Failed,
    Free,
    Join,
    Joined,
    JoinFailed,
    Leave,
    Lend,
    Located,
    Probe,
    Push,
    Query,
    Reach,
    Reached,
    Ready,
    Reclaim,
    Reclaimed,
    Register,
    Registered,
    StatisticsReply,
    StatisticsRequest,
    Status,
    Table,
    Tables,
)
from coarse.proxy.instructions import (
    Finished,
    Reduce,
    Reserve,
    RingFinish,
    RingReceive,
    RingReduce,
    RingSend,
    Send,
    added_bytes,
)


class KeySizes(Protocol):
    """Sizes of keys, and the devices that hold their regions."""

    def nbytes(self, key: int, first: int, last: int) -> int:
        """Return the bytes of shards [first, last) as they are pushed."""
        ...

    def device(self, key: int, client: int) -> int:
        """Return the device that holds a client's region of a key."""
        ...


class Told(NamedTuple):
    """Context of one record: the sizes of keys and its client."""

    sizes: KeySizes
    client: int
    """Worker that sends or receives the record."""


def _push(push: Push, told: Told) -> Cost:
    if not push.present:
        return Cost(Way.NOTHING, 0)
    nbytes = told.sizes.nbytes(push.key, push.first, push.last)
    return Cost(Way.PUSHES, nbytes, told.sizes.device(push.key, told.client))


def _ready(ready: Ready, told: Told) -> Cost:
    nbytes = told.sizes.nbytes(ready.key, ready.first, ready.last)
    return Cost(Way.PULLS, nbytes, told.sizes.device(ready.key, told.client))


def _reduce(work: Reduce | RingReduce, _: object) -> Cost:
    return Cost(Way.ADDS, added_bytes(work))


def _send(send: RingSend, itemsize: int) -> Cost:
    return Cost(Way.SENDS, (send.end - send.begin) * itemsize)


RECORD_COSTS: Costs = {
    **dict.fromkeys((Register, Deregister, Registered, Located, Table, Tables, Join, Joined, JoinFailed, Leave), free),
    **dict.fromkeys((Allocate, Allocated, Free, Reach, Reached, Lend, Reclaim, Reclaimed, Probe, Echo), free),
    **dict.fromkeys((Failed, Query, Status, StatisticsRequest, StatisticsReply, Died), free),
    Push: _push,
    Ready: _ready,
}
"""Costs of records; each function gets the record and its Told."""
INSTRUCTION_COSTS: Costs = {
    **dict.fromkeys((Send, Reserve, RingFinish, Finished), free),
    RingReceive: free,  # a chunk is added when it comes, before the device hears of it
    Reduce: _reduce,
    RingReduce: _reduce,
    RingSend: _send,
}
"""Costs of a device's instructions; each function gets the instruction and the element's bytes of a ring's chunk.
If a Reduce's sources or targets lie on other devices, ReduceRun adds what it fetches and writes."""
