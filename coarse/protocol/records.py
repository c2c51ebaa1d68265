"""The records that clients and proxies exchange, and the one list of MPI tags.

A record is a NamedTuple; codec.py has its bytes.
"""

import enum
import functools
import hashlib
from typing import Any, NamedTuple

from coarse.protocol.dtypes import STORAGE, DType, Op
from coarse.protocol.plan import Facts, Tensor


class Tag(enum.IntEnum):
    """MPI tags of the kernel; those of features are above (coarse.protocol.features)."""

    RECORD = 1
    RING = 2
    HELLO = 3
    HEADER = 4
    REGION = 5
    SLICE = 6
    STATEMENT = 7
    WORKERS = 8


URGENT = 1 << 30
"""Priority of a key that workers wait for at once: above that of every gradient."""


class Descriptor(NamedTuple):
    """Facts about a key on which all ranks must agree."""

    name: str
    dtype: int
    op: int
    shape: tuple[int, ...]
    priority: int
    parts: str = ""
    """Number of tensors in a group end to end, and a digest of their types and shapes; "" for one tensor."""
    hint: int = 0
    """Choice of the strategy for it among all buckets of its model."""
    plan: int = 0
    """Digest of the client's plan, of a strategy that is not coarse's own; 0 else, and before it registers."""

    def is_alike(self, other: "Descriptor") -> bool:
        """Return whether one contribution can be added to the other."""
        mine = self.dtype, self.op, self.shape, self.parts, self.hint
        return mine == (other.dtype, other.op, other.shape, other.parts, other.hint)

    def tensor(self, key: int) -> Tensor:
        """Return the view that strategies have of it, by the key that its name has."""
        return Tensor(key, self.num_elements, STORAGE[self.dtype].itemsize, self.hint)

    @property
    def num_elements(self) -> int:
        """Elements of the tensor; 1 for a scalar."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.num_elements * STORAGE[self.dtype].itemsize

    def __str__(self) -> str:
        parts = f" of {self.parts}" if self.parts else ""
        hint = f" hint={self.hint}" if self.hint else ""
        return f"{DType(self.dtype).label}{list(self.shape)} op={Op(self.op).name.lower()}{parts}{hint}"


@functools.lru_cache(maxsize=1 << 16)
def key_of(name: str, times_forgotten: int = 0) -> int:
    """Return the 64-bit key of a name; the same on every rank without a message.

    A name that was deregistered has another key, so that its next use cannot meet what is left of the last.
    """
    salt = times_forgotten.to_bytes(8, "little") if times_forgotten else b""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest(), "little")


class Push(NamedTuple):
    """Shards [first, last) of a client's contribution lie ready; absent means: count it as nothing."""

    client: int
    key: int
    epoch: int
    round: int
    first: int
    last: int
    present: bool


class Ready(NamedTuple):
    """Record that shards [first, last) of the result lie in the client's region; not present: no worker contributed."""

    key: int
    first: int
    last: int
    present: bool


class Register(NamedTuple):
    """A client's first use of a key in an epoch; `device` and `offset` keep a region it already has."""

    client: int
    key: int
    epoch: int
    descriptor: Descriptor
    device: int
    offset: int


class Deregister(NamedTuple):
    """A client will not use a key again: its region is free once all clients have said so (device -1: it has none)."""

    client: int
    key: int
    device: int
    offset: int
    teller: int
    """The device that the client told, which tells the others: the one that told them of the key."""


class Registered(NamedTuple):
    """The region of a client for a key."""

    key: int
    epoch: int
    device: int
    offset: int


class Located(NamedTuple):
    """Between devices: where a client's region of a key is, and what it says the key is."""

    client: int
    key: int
    epoch: int
    descriptor: Descriptor
    device: int
    offset: int


class Failed(NamedTuple):
    """A key (0: the whole connection) cannot be synchronised; `error` is a class name of errors.py."""

    key: int
    epoch: int
    error: str
    text: str
    rank: int = -1
    """The world rank at fault, of a DeadRankError."""


class Query(NamedTuple):
    """A client that waited too long asks whose contribution is missing; its device asks the others."""

    client: int
    key: int


class Status(NamedTuple):
    """Clients whose contribution to a key a device still expects, for the client that asked."""

    client: int
    key: int
    device: int
    missing: tuple[int, ...]


class Join(NamedTuple):
    """A client has no more batches: it counts as zero until all have joined in this round."""

    client: int
    round: int
    num_results: int
    """Number of results that it has had in this round: a rank that had more joined later."""


class Joined(NamedTuple):
    """All clients have joined in this round; `last` was the last of them."""

    last: int
    round: int


class JoinFailed(NamedTuple):
    """A client has shut down without joining: the round will never be complete, nor a later one."""

    rank: int
    """The world rank of the client that left."""
    text: str


class Table(NamedTuple):
    """A client's facts for an epoch; in the mode coarse its routing table."""

    client: int
    epoch: int
    facts: Facts


class Tables(NamedTuple):
    """All clients' facts of an epoch; every rank switches to it with its next iteration."""

    epoch: int
    facts: tuple[Facts, ...]


class Probe(NamedTuple):
    """The profiler's ping."""

    client: int
    token: int


class Echo(NamedTuple):
    """The answer to a Probe."""

    device: int
    token: int


class Allocate(NamedTuple):
    """A client asks for device memory that is not synchronised (parameters, optimizer state)."""

    client: int
    token: int
    nbytes: int
    is_arena: bool = False
    """Room for regions of keys, whose registrations will name their places in it, from its beginning on."""
    is_of_key: bool = False
    """True if it is to lie where regions of keys do, elsewhere on some devices: to measure copies to these."""


class Allocated(NamedTuple):
    """The region that was asked for; offset -1: there is no room, and `text` says why."""

    device: int
    token: int
    offset: int
    text: str


class Free(NamedTuple):
    """A client returns a region that it had by Allocate."""

    offset: int


class Reach(NamedTuple):
    """A client asks a device of its node to read a value at an address of the client's memory, and to write it back."""

    client: int
    token: int
    address: int
    value: int


class Reached(NamedTuple):
    """The answer to a Reach; empty, or why the device could not."""

    device: int
    token: int
    text: str


class Lend(NamedTuple):
    """Record that a client's contribution to a key lies in its own memory, and that the result belongs there.

    The contribution lies at these addresses of its process, and not in its region, until the client says otherwise. An
    address of 0: in the region.
    """

    client: int
    key: int
    device: int
    offset: int
    nbytes: int
    source: int
    target: int


class Reclaim(NamedTuple):
    """A client takes back what it has lent of a key; answered once nothing there is read or written any more."""

    client: int
    key: int
    token: int


class Reclaimed(NamedTuple):
    """The answer to a Reclaim: results that were told of before lie where the client had lent, others in the region."""

    key: int
    device: int
    token: int


class StatisticsRequest(NamedTuple):
    """A client asks a device for its counters; one of another node by way of one of its own."""

    client: int
    device: int
    token: int


class StatisticsReply(NamedTuple):
    """A device's counters as JSON."""

    client: int
    device: int
    token: int
    text: str


class Leave(NamedTuple):
    """A client has shut down; devices tell theirs, which may wait for it in collectives of the workers alone."""

    client: int


class Died(NamedTuple):
    """A rank is gone or has raised; `text` says what is known."""

    rank: int
    text: str


class RingChunk(NamedTuple):
    """The header in front of a chunk's bytes in a ring."""

    key: int
    epoch: int
    round: int
    version: int
    shard: int
    step: int
    present: bool


FeatureRecord = tuple[Any, ...]
"""A NamedTuple of a feature (coarse.protocol.features)."""
KernelRecord = (
    Push | Ready | Register | Deregister | Registered | Located | Failed | Query | Status | Join | Joined | JoinFailed
    | Table | Tables | Probe | Echo | Allocate | Allocated | Free | Reach | Reached | Lend | Reclaim | Reclaimed
    | StatisticsRequest | StatisticsReply | Leave | Died
)  # fmt: skip
Record = KernelRecord | FeatureRecord
