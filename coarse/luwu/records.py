# Pure: no MPI, threads, clock or environment.
"""The records of models in the network (LuWu): between workers and optimizer nodes.

[Note: paged records] A record has the worker's number, that of the optimizer node, and the model's number in this job.
A worker and an optimizer node on different hosts speak by way of the device that the worker is attached to. Worker 0
declares a model to all optimizer nodes, the others join; each node answers all. From then on workers ask for
operations, each for all of them and in one order, and bytes move as packets through the hops of a tree
(coarse/luwu/many_to_one), whose messages are PagedData and PagedBeat on a host.
"""

from typing import NamedTuple

from coarse.protocol.codec import register_records


class PagedOpen(NamedTuple):
    """A worker joins a model; worker 0's fragments are its declaration."""

    client: int
    device: int
    model: int
    is_last: bool
    text: str


class PagedOpened(NamedTuple):
    """A node has opened a model for a worker; fragments of JSON."""

    client: int
    device: int
    model: int
    is_last: bool
    text: str


class PagedFailed(NamedTuple):
    """A model cannot be opened, or cannot go on; `error` is a class name of errors.py."""

    client: int
    device: int
    model: int
    error: str
    text: str


class PagedAsk(NamedTuple):
    """A worker's next operation at a node."""

    client: int
    device: int
    model: int
    operation: tuple[int | float | str, ...]
    """See `wire_of` in coarse/luwu/store/operations.py."""
    present: int
    """Of a push: a bit for each tensor that the worker has."""
    offset: int
    """Of a push: where its values lie in device memory; -1: they come chunk by chunk through the staging slots."""


class PagedData(NamedTuple):
    """Packets [begin, end) of a stream are there; see `Data` in coarse/luwu/many_to_one/packets.py."""

    client: int
    device: int
    model: int
    is_up: bool
    begin: int
    end: int
    stamp: int
    asks: bool


class PagedBeat(NamedTuple):
    """A heartbeat of a stream's receiver; see `Beat` there."""

    client: int
    device: int
    model: int
    is_up: bool
    """Whether it is of the stream of pushes."""
    ack: int
    credit: int
    beyond: int
    echo: int


class PagedNorm(NamedTuple):
    """The sum of squares of a node's sums of gradients, which was asked for."""

    client: int
    device: int
    model: int
    square: float


class PagedState(NamedTuple):
    """A fragment of a worker's own state after a step, in base 64, to be committed with it."""

    client: int
    device: int
    model: int
    number: int
    """Of the commits that were asked for since the model was opened."""
    is_last: bool
    text: str


class PagedPrepared(NamedTuple):
    """A node has a step on its disks; fragments of JSON: by unit which slot and version, and the settings."""

    node: int
    device: int
    """The node that writes the record."""
    model: int
    step: int
    is_last: bool
    text: str


class PagedCommitted(NamedTuple):
    """A step is committed."""

    client: int
    device: int
    model: int
    step: int


class PagedLook(NamedTuple):
    """A worker wants to see an array of a chunk, as it is after so many of its operations."""

    client: int
    device: int
    model: int
    token: int
    unit: int
    chunk: int
    array: int
    num_before: int


class PagedLooked(NamedTuple):
    """The array lies in the worker's slot for it."""

    client: int
    device: int
    model: int
    token: int
    steps: tuple[int, ...]
    """By tensor of the unit, how many steps it has had."""


class PagedQuery(NamedTuple):
    """A worker that waited too long asks what is lacking."""

    client: int
    device: int
    model: int
    token: int


class PagedStatus(NamedTuple):
    """The answer."""

    client: int
    device: int
    model: int
    token: int
    text: str


class PagedTree(NamedTuple):
    """What an optimizer node and the other devices of its tree tell one another when a model begins or ends."""

    source: int
    device: int
    model: int
    root: int
    """The optimizer node's device."""
    what: str
    is_last: bool
    text: str
    """A fragment of JSON."""


class PagedClose(NamedTuple):
    """A worker is done with a model."""

    client: int
    device: int
    model: int
    reason: str
    """Why it gives the model up, which then goes no further; empty: it has all that it wanted."""


class PagedClosed(NamedTuple):
    """A node has closed a model's folders, which others may open."""

    client: int
    device: int
    model: int


PagedRecord = (
    PagedOpen | PagedOpened | PagedFailed | PagedAsk | PagedData | PagedBeat | PagedNorm | PagedState | PagedPrepared
    | PagedCommitted | PagedLook | PagedLooked | PagedQuery | PagedStatus | PagedTree | PagedClose | PagedClosed
)  # fmt: skip
RECORDS: tuple[type, ...] = (
    PagedOpen, PagedOpened, PagedFailed, PagedAsk, PagedData, PagedBeat, PagedNorm, PagedState, PagedPrepared,
    PagedCommitted, PagedLook, PagedLooked, PagedQuery, PagedStatus, PagedTree, PagedClose, PagedClosed,
)  # fmt: skip
register_records("luwu", RECORDS)
TO_DEVICE: tuple[type, ...] = (PagedOpen, PagedAsk, PagedState, PagedLook, PagedQuery, PagedClose)
"""Those of workers, which their own device passes on where the node is elsewhere."""
TO_CLIENT: tuple[type, ...] = (
    PagedOpened, PagedFailed, PagedNorm, PagedCommitted, PagedLooked, PagedStatus, PagedClosed,
)  # fmt: skip
"""Those of nodes, which the worker's own device passes on."""
