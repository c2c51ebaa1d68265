# Pure: no MPI, threads, clock or environment.
"""Records of models in the network (LuWu), between workers and optimizer nodes.

[Note: paged records] A record has the worker's number, that of the optimizer node, and the model's number in this job.
A worker and an optimizer node on different hosts speak by way of the device that the worker is attached to. Worker 0
declares a model to all optimizer nodes, the others join; each node answers all. From then on workers ask for
operations, each for all of them and in one order, and bytes move as packets through the hops of a tree
(coarse/luwu/many_to_one), whose messages are PagedData and PagedBeat on a host.
"""

from typing import NamedTuple

from coarse.protocol.codec import register_records


class PagedOpen(NamedTuple):
    """Record of a worker that joins a model; worker 0's fragments are its declaration."""

    client: int
    device: int
    model: int
    is_last: bool
    text: str


class PagedOpened(NamedTuple):
    """Record of a node that has opened a model for a worker, in fragments of JSON."""

    client: int
    device: int
    model: int
    is_last: bool
    text: str


class PagedFailed(NamedTuple):
    """Record of a model that cannot be opened, or cannot go on; `error` is a class name of errors.py."""

    client: int
    device: int
    model: int
    error: str
    text: str


class PagedAsk(NamedTuple):
    """Record of a worker's next operation at a node."""

    client: int
    device: int
    model: int
    operation: tuple[int | float | str, ...]
    """Operation on the wire; see `wire_of` in coarse/luwu/store/operations.py."""
    present: int
    """Bit for each tensor of a push that the worker has."""
    offset: int
    """Offset of a push's values in device memory; -1: they come chunk by chunk through the staging slots."""


class PagedData(NamedTuple):
    """Packets [begin, end) of a stream that are there; see `Data` in coarse/luwu/many_to_one/packets.py."""

    client: int
    device: int
    model: int
    is_up: bool
    begin: int
    end: int
    stamp: int
    asks: bool


class PagedBeat(NamedTuple):
    """Heartbeat of a stream's receiver; see `Beat` in coarse/luwu/many_to_one/packets.py."""

    client: int
    device: int
    model: int
    is_up: bool
    """True if the stream is that of pushes."""
    ack: int
    credit: int
    beyond: int
    echo: int


class PagedNorm(NamedTuple):
    """Sum of squares of a node's sums of gradients, which was asked for."""

    client: int
    device: int
    model: int
    square: float


class PagedState(NamedTuple):
    """Fragment of a worker's own state after a step, in base 64, to be committed with the step."""

    client: int
    device: int
    model: int
    number: int
    """Number of the commit, counting those that were asked for since the model was opened."""
    is_last: bool
    text: str


class PagedPrepared(NamedTuple):
    """Record of a node that has a step on its disks.

    It comes in fragments of JSON: by unit its slot and version, and its tensors' steps.
    """

    node: int
    device: int
    """Node that writes the commit record."""
    model: int
    step: int
    is_last: bool
    text: str


class PagedCommitted(NamedTuple):
    """Record of a step that is committed."""

    client: int
    device: int
    model: int
    step: int


class PagedLook(NamedTuple):
    """Record of a worker that looks at an array of a chunk, as it is after `num_before` of its operations."""

    client: int
    device: int
    model: int
    token: int
    unit: int
    chunk: int
    array: int
    num_before: int


class PagedLooked(NamedTuple):
    """Record of an array that lies in the worker's slot for it."""

    client: int
    device: int
    model: int
    token: int
    steps: tuple[int, ...]
    """Number of steps that each tensor of the unit has had."""


class PagedQuery(NamedTuple):
    """Question of a worker that waited too long, about what is lacking."""

    client: int
    device: int
    model: int
    token: int


class PagedStatus(NamedTuple):
    """Answer to a PagedQuery."""

    client: int
    device: int
    model: int
    token: int
    text: str


class PagedTree(NamedTuple):
    """Record between an optimizer node and its tree's other devices, when a model begins or ends."""

    source: int
    device: int
    model: int
    root: int
    """Device of the optimizer node."""
    what: str
    is_last: bool
    text: str
    """Fragment of JSON."""


class PagedClose(NamedTuple):
    """Record of a worker that leaves a model."""

    client: int
    device: int
    model: int
    reason: str
    """Reason to give the model up, which then goes no further; empty if the worker has all that it wanted."""


class PagedClosed(NamedTuple):
    """Record of a node that has closed a model's folders, which others may open."""

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
"""Records of workers, which their own device forwards where the node is elsewhere."""
TO_CLIENT: tuple[type, ...] = (
    PagedOpened, PagedFailed, PagedNorm, PagedCommitted, PagedLooked, PagedStatus, PagedClosed,
)  # fmt: skip
"""Records of nodes, which the worker's own device forwards."""
