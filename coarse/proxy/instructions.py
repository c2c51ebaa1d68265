# Pure: no MPI, threads, clock or environment.
"""Instructions of a proxy's protocol to its driver.

They are data, not calls, so a test can compare them.
"""

from typing import Any, NamedTuple

from coarse.protocol.dtypes import STORAGE
from coarse.protocol.records import Record, RingChunk


class Region(NamedTuple):
    """Bytes of device memory: the device and the offset within it."""

    device: int
    offset: int


class Send(NamedTuple):
    """Instruction to send a record to a client (endpoint 0..W-1) or a device (W..W+D-1)."""

    endpoint: int
    record: Record


class Reserve(NamedTuple):
    """Instruction to make bytes of this device real before they are written; answered by on_reserved."""

    request: int
    offset: int
    nbytes: int


class Reduce(NamedTuple):
    """Instruction to combine the sources elementwise, divide, and write the result to all targets.

    It is answered by on_reduced.
    """

    key: int
    epoch: int
    first: int
    last: int
    dtype: int
    op: int
    divisor: int
    num_elements: int
    sources: tuple[Region, ...]
    targets: tuple[Region, ...]
    priority: int


class RingId(NamedTuple):
    """Identity of one synchronisation of one shard by its ring."""

    key: int
    epoch: int
    version: int
    """Number of earlier runs of this epoch's ring of the shard; all members count the same."""
    shard: int


class RingReduce(NamedTuple):
    """Instruction to combine the sources into the LocalBuf of a ring; answered by on_ring_reduced."""

    ring: RingId
    dtype: int
    op: int
    num_elements: int
    sources: tuple[Region, ...]
    priority: int


def added_bytes(work: Reduce | RingReduce) -> int:
    """Return the bytes of all sources, which a device's adder reads."""
    return work.num_elements * STORAGE[work.dtype].itemsize * len(work.sources)


class RingSend(NamedTuple):
    """Instruction to send the header and elements [begin, end) of the LocalBuf to the ring's next member."""

    ring: RingId
    device: int
    begin: int
    end: int
    header: RingChunk


class RingReceive(NamedTuple):
    """Instruction to combine the chunk of a step with elements [begin, end) of the LocalBuf.

    Without `accumulate` it is stored there instead.
    """

    ring: RingId
    step: int
    begin: int
    end: int
    accumulate: bool


class RingFinish(NamedTuple):
    """Instruction to divide the LocalBuf, round once, and write it to all targets.

    The buffers are free again. Zeros are written if no client contributed (not `present`).
    """

    ring: RingId
    divisor: int
    present: bool
    targets: tuple[Region, ...]


class Finished(NamedTuple):
    """Instruction to end the service: all clients have left."""


FeatureInstruction = tuple[Any, ...]
"""NamedTuple of a feature, which its own executor carries out."""
Instruction = (
    Send | Reserve | Reduce | RingReduce | RingSend | RingReceive | RingFinish | Finished | FeatureInstruction
)  # fmt: skip
Instructions = list[Instruction]
