# Pure: no MPI, threads, clock or environment.
"""Records of on-demand communication (ODC): publications, fetches, gradients, ends of minibatches.

[Note: who tells whom] A worker tells its own device of its publications and of the end of its minibatch; that device
tells the others. Pieces of gradients are announced to every device that adds some of their rows, as the layout says
that all compute equally (coarse/odc/layout.py). Between devices of different nodes, OdcRows, OdcShards and OdcSums have
bytes behind them.
"""

from typing import NamedTuple

from coarse.protocol.codec import register_records


class OdcOpen(NamedTuple):
    """Record of a worker's part of a sharded model: its region's offset, and the declaration as JSON.

    The JSON comes in fragments.
    """

    client: int
    model: int
    offset: int
    is_last: bool
    text: str


class OdcOpened(NamedTuple):
    """Record of a device that knows the places of all members' regions."""

    device: int
    model: int
    bases: tuple[int, ...]
    """Offset of each member's region in its device's memory."""


class OdcPublish(NamedTuple):
    """Record that units [first, last) of a worker's shards lie in place for this minibatch.

    Others may read them.
    """

    client: int
    model: int
    minibatch: int
    first: int
    last: int
    contents: tuple[int, ...]
    """Minibatch in which each unit's bytes last changed."""


class OdcFetch(NamedTuple):
    """Request of a worker to a device of its node for shards of another node."""

    client: int
    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]
    landing: int
    """Number of the worker's landing place; -1: the place where the node keeps them."""


class OdcRequest(NamedTuple):
    """Request of that device to one that has the shards."""

    client: int
    device: int
    """Device that asks."""
    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]
    landing: int


class OdcShards(NamedTuple):
    """Answer with the requested shards; the bytes follow, one owner's behind another's."""

    client: int
    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]
    landing: int


class OdcFetched(NamedTuple):
    """Record of shards that lie in a worker's landing place."""

    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]


class OdcCopied(NamedTuple):
    """Record of shards that lie where the node keeps them."""

    model: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]


class OdcPush(NamedTuple):
    """Record of a piece in a staging slot: a unit's gradient of a microbatch, a row for each owner."""

    client: int
    model: int
    minibatch: int
    unit: int
    number: int
    """Number of the piece among the unit's pieces of this worker in this minibatch."""
    mask: int
    """Bit for each parameter that has a gradient."""
    slot: int


class OdcRows(NamedTuple):
    """Record of a piece's rows for owners of another node; their bytes follow."""

    client: int
    device: int
    """Device that sends them."""
    model: int
    minibatch: int
    unit: int
    number: int
    mask: int
    slot: int
    owners: tuple[int, ...]


class OdcAdded(NamedTuple):
    """Record of a device that has added all its rows of the piece in a slot."""

    client: int
    model: int
    slot: int


class OdcEnd(NamedTuple):
    """Record of a worker that has no more microbatches in this minibatch."""

    client: int
    model: int
    minibatch: int
    tokens: float
    """Number of tokens over which its losses were summed; -1: it is not stated."""
    counts: tuple[int, ...]
    """Number of pieces that it has pushed of each unit."""


class OdcSums(NamedTuple):
    """Record of a node's sum of all its pieces of one unit for an owner of another node.

    The words follow, then the values that did not fit, an index and a kind each.
    """

    model: int
    minibatch: int
    node: int
    owner: int
    unit: int
    mask: int
    num_found: int


class OdcSummed(NamedTuple):
    """Record of a device that has added all pieces for all its owners."""

    device: int
    model: int
    minibatch: int
    masks: tuple[int, ...]
    """Parameters of each unit of which some worker pushed a piece."""
    found: tuple[tuple[int, int, int, int], ...]
    """(Owner, unit, index within the row, kind) of the first values that did not fit."""


class OdcCommitted(NamedTuple):
    """Record that all devices have added all pieces: the minibatch has ended for all."""

    model: int
    minibatch: int
    tokens: float
    """Number of tokens of all workers; -1: they did not state it."""
    masks: tuple[int, ...]
    found: tuple[tuple[int, int, int, int], ...]


class OdcFailed(NamedTuple):
    """Record that a minibatch cannot end; `error` is a class name of errors.py."""

    model: int
    error: str
    text: str
    client: int = -1
    """Worker that has shut down, for a DeadRankError."""


class OdcQuery(NamedTuple):
    """Question of a worker that has waited long, about the records that devices heard of the others."""

    client: int
    device: int
    model: int
    token: int


class OdcStatus(NamedTuple):
    """Answer to an OdcQuery."""

    client: int
    device: int
    model: int
    token: int
    heard: tuple[int, ...]
    """Number of each member's records that came."""
    ended: tuple[int, ...]
    """Number of minibatches that each member has ended."""


ODC_BULK: tuple[type, ...] = (OdcShards, OdcRows, OdcSums)
"""Records with bytes behind them."""
RECORDS: tuple[type, ...] = (
    OdcOpen, OdcOpened, OdcPublish, OdcFetch, OdcRequest, OdcFetched, OdcCopied, OdcPush, OdcAdded, OdcEnd, OdcSummed,
    OdcCommitted, OdcFailed, OdcQuery, OdcStatus, *ODC_BULK,
)  # fmt: skip
register_records("odc", RECORDS)
