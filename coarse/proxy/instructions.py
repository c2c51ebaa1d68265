# Pure: no MPI, threads, clock or environment.
"""What a proxy's protocol asks its driver to do. Data, not calls: a test can compare it."""

from typing import Any, NamedTuple

from coarse.protocol.dtypes import STORAGE
from coarse.protocol.records import Record, RingChunk


class Region(NamedTuple):
    """Bytes of device memory: the device and the offset within it."""

    device: int
    offset: int


class Send(NamedTuple):
    """Send a record to a client (endpoint 0..W-1) or a device (W..W+D-1)."""

    endpoint: int
    record: Record


class Reserve(NamedTuple):
    """Make the bytes of this device real before anybody writes them; answer by on_reserved."""

    request: int
    offset: int
    nbytes: int


class Reduce(NamedTuple):
    """Combine the sources element by element, divide, and write the result into all targets.

    Answer by on_reduced.
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
    """One synchronisation of one shard by its ring."""

    key: int
    epoch: int
    version: int
    """How many times this epoch's ring of the shard has run before; all members count alike."""
    shard: int


class RingReduce(NamedTuple):
    """Combine the sources into the LocalBuf of a shard's ring; answer by on_ring_reduced."""

    ring: RingId
    dtype: int
    op: int
    num_elements: int
    sources: tuple[Region, ...]
    priority: int


def added_bytes(work: Reduce | RingReduce) -> int:
    """Bytes of all sources, which a device's adder reads."""
    return work.num_elements * STORAGE[work.dtype].itemsize * len(work.sources)


class RingSend(NamedTuple):
    """Send the header and elements [begin, end) of the LocalBuf to the ring's next member."""

    ring: RingId
    device: int
    begin: int
    end: int
    header: RingChunk


class RingReceive(NamedTuple):
    """Combine (or store) the chunk that came for a step with elements [begin, end) of the LocalBuf."""

    ring: RingId
    step: int
    begin: int
    end: int
    accumulate: bool


class RingFinish(NamedTuple):
    """Divide the LocalBuf, round once, and write it into all targets; the buffers are free again.

    Zeros are written where nobody contributed (not `present`).
    """

    ring: RingId
    divisor: int
    present: bool
    targets: tuple[Region, ...]


class Finished(NamedTuple):
    """All clients have left: the service may end."""


FeatureInstruction = tuple[Any, ...]
"""A NamedTuple of a feature, which its own executor carries out."""
Instruction = (
    Send | Reserve | Reduce | RingReduce | RingSend | RingReceive | RingFinish | Finished | FeatureInstruction
)  # fmt: skip
