# Pure: no MPI, threads, clock or environment.
"""The records of on-demand communication (ODC): publications, fetches, pieces of gradients, and the end of a minibatch.

[Note: who tells whom] A worker tells its own device of what it publishes and that it has ended a minibatch; that device
tells the others. Pieces are announced to every device that adds some of their rows, as the layout says that all
compute alike (coarse/odc/layout.py). Between devices of different nodes, OdcRows, OdcShards and OdcSums have bytes
behind them.
"""

from typing import NamedTuple

from coarse.protocol.codec import register_records


class OdcOpen(NamedTuple):
    """A worker's part of a sharded model: where its region begins; fragments of the declaration's JSON."""

    client: int
    model: int
    offset: int
    is_last: bool
    text: str


class OdcOpened(NamedTuple):
    """A device knows where the regions of all members are."""

    device: int
    model: int
    bases: tuple[int, ...]
    """By member the offset of its region in its device's memory."""


class OdcPublish(NamedTuple):
    """Units [first, last) of a worker's shards lie where others may read them, for this minibatch."""

    client: int
    model: int
    minibatch: int
    first: int
    last: int
    contents: tuple[int, ...]
    """By unit the minibatch in which its bytes last changed."""


class OdcFetch(NamedTuple):
    """A worker asks a device of its node for shards of another node."""

    client: int
    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]
    landing: int
    """Which of the worker's landing places; -1: where the node keeps them."""


class OdcRequest(NamedTuple):
    """The same from that device to one that has the shards."""

    client: int
    device: int
    """Which asks."""
    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]
    landing: int


class OdcShards(NamedTuple):
    """What was asked for; its bytes follow, one owner's behind another's."""

    client: int
    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]
    landing: int


class OdcFetched(NamedTuple):
    """Shards lie in a worker's landing place."""

    model: int
    minibatch: int
    unit: int
    owners: tuple[int, ...]


class OdcCopied(NamedTuple):
    """Shards lie where the node keeps them."""

    model: int
    unit: int
    owners: tuple[int, ...]
    contents: tuple[int, ...]


class OdcPush(NamedTuple):
    """A piece lies in a staging slot: one unit's gradient of one microbatch, a row for each owner."""

    client: int
    model: int
    minibatch: int
    unit: int
    number: int
    """Of the unit's pieces of this worker in this minibatch."""
    mask: int
    """A bit for each parameter that has a gradient."""
    slot: int


class OdcRows(NamedTuple):
    """A piece's rows for owners of another node; their bytes follow."""

    client: int
    device: int
    """Which sends them."""
    model: int
    minibatch: int
    unit: int
    number: int
    mask: int
    slot: int
    owners: tuple[int, ...]


class OdcAdded(NamedTuple):
    """A device has added all its rows of what lies in a slot."""

    client: int
    model: int
    slot: int


class OdcEnd(NamedTuple):
    """A worker has no more microbatches in this minibatch."""

    client: int
    model: int
    minibatch: int
    tokens: float
    """By which its losses were summed; -1: it does not say."""
    counts: tuple[int, ...]
    """By unit how many pieces it has pushed."""


class OdcSums(NamedTuple):
    """A node's sum of all its pieces of one unit for an owner of another node; the words follow, then what did not
    fit, an index and a kind each."""

    model: int
    minibatch: int
    node: int
    owner: int
    unit: int
    mask: int
    num_found: int


class OdcSummed(NamedTuple):
    """A device has added all pieces for all its owners."""

    device: int
    model: int
    minibatch: int
    masks: tuple[int, ...]
    """By unit the parameters of which some worker pushed a piece."""
    found: tuple[tuple[int, int, int, int], ...]
    """(Owner, unit, index within the row, kind) of the first values that did not fit."""


class OdcCommitted(NamedTuple):
    """All devices have: the minibatch has ended for all."""

    model: int
    minibatch: int
    tokens: float
    """Of all workers; -1: they did not say."""
    masks: tuple[int, ...]
    found: tuple[tuple[int, int, int, int], ...]


class OdcFailed(NamedTuple):
    """A minibatch cannot end; `error` is a class name of errors.py."""

    model: int
    error: str
    text: str
    client: int = -1
    """Of a DeadRankError: the worker that has shut down."""


class OdcQuery(NamedTuple):
    """A worker that has waited long asks the devices what they have heard of the others."""

    client: int
    device: int
    model: int
    token: int


class OdcStatus(NamedTuple):
    """The answer."""

    client: int
    device: int
    model: int
    token: int
    heard: tuple[int, ...]
    """By member how many of its records came."""
    ended: tuple[int, ...]
    """By member in how many minibatches it has ended."""


ODC_BULK: tuple[type, ...] = (OdcShards, OdcRows, OdcSums)
"""Records with bytes behind them."""
RECORDS: tuple[type, ...] = (
    OdcOpen, OdcOpened, OdcPublish, OdcFetch, OdcRequest, OdcFetched, OdcCopied, OdcPush, OdcAdded, OdcEnd, OdcSummed,
    OdcCommitted, OdcFailed, OdcQuery, OdcStatus, *ODC_BULK,
)  # fmt: skip
register_records("odc", RECORDS)
