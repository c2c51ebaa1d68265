"""Records that clients and proxies exchange, and the one list of MPI tags.

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
    """Description of a key, on which all ranks must agree."""

    name: str
    dtype: int
    op: int
    shape: tuple[int, ...]
    priority: int
    parts: str = ""
    """Number of tensors of a group that lie end to end, and a digest of their types and shapes."""
    hint: int = 0
    """Number that the strategy chose for the key among all buckets of its model."""
    plan: int = 0
    """Digest of the client's plan, by a strategy that is not coarse's own; otherwise 0, also before it registers."""

    def is_alike(self, other: "Descriptor") -> bool:
        """Return whether one contribution can be added to the other."""
        mine = self.dtype, self.op, self.shape, self.parts, self.hint
        return mine == (other.dtype, other.op, other.shape, other.parts, other.hint)

    def tensor(self, key: int) -> Tensor:
        """Return the tensor that strategies see, by the key that its name has."""
        return Tensor(key, self.num_elements, STORAGE[self.dtype].itemsize, self.hint)

    @property
    def num_elements(self) -> int:
        """Number of elements of the tensor; 1 for a scalar."""
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
    """Return the 64-bit key of a name, equal on every rank without communication.

    A name that was deregistered has another key, so that its next use cannot collide with remains of the last.
    """
    salt = times_forgotten.to_bytes(8, "little") if times_forgotten else b""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest(), "little")


class Push(NamedTuple):
    """Announcement that shards [first, last) of a client's contribution are ready.

    If it is not present, it counts as nothing.
    """

    client: int
    key: int
    epoch: int
    round: int
    first: int
    last: int
    present: bool


class Ready(NamedTuple):
    """Announcement that shards [first, last) of the result lie in the client's region.

    It is not present if no client contributed.
    """

    key: int
    first: int
    last: int
    present: bool


class Register(NamedTuple):
    """Registration of a client's first use of a key in an epoch.

    `device` and `offset` keep a region that the client already has.
    """

    client: int
    key: int
    epoch: int
    descriptor: Descriptor
    device: int
    offset: int


class Deregister(NamedTuple):
    """End of a client's use of a key, whose regions are free once all clients have sent it.

    A device of -1 means that the client has no region.
    """

    client: int
    key: int
    device: int
    offset: int
    teller: int
    """Device that the client told, and that tells the others: the one that told them of the key."""


class Registered(NamedTuple):
    """Region of a client for a key."""

    key: int
    epoch: int
    device: int
    offset: int


class Located(NamedTuple):
    """Message between devices: place of a client's region of a key, and the client's description of it."""

    client: int
    key: int
    epoch: int
    descriptor: Descriptor
    device: int
    offset: int


class Failed(NamedTuple):
    """Failure to synchronise a key (0: the whole connection); `error` is a class name of errors.py."""

    key: int
    epoch: int
    error: str
    text: str
    rank: int = -1
    """World rank at fault, for a DeadRankError."""


class Query(NamedTuple):
    """Question of a client that waited too long for missing contributions; its device asks the others."""

    client: int
    key: int


class Status(NamedTuple):
    """Clients whose contribution to a key a device still expects, for the client that asked."""

    client: int
    key: int
    device: int
    missing: tuple[int, ...]


class Join(NamedTuple):
    """End of a client's batches: it counts as zero until all have joined in this round."""

    client: int
    round: int
    num_results: int
    """Results that the client has had in this round: a client with more results joined later."""


class Joined(NamedTuple):
    """End of a round in which all clients have joined; `last` was the last of them."""

    last: int
    round: int


class JoinFailed(NamedTuple):
    """Shutdown of a client that has not joined: neither this round nor a later one will ever be complete."""

    rank: int
    """World rank of the client that left."""
    text: str


class Table(NamedTuple):
    """Facts of a client for an epoch; in the mode coarse its routing table."""

    client: int
    epoch: int
    facts: Facts


class Tables(NamedTuple):
    """Facts of all clients for an epoch; every rank switches to it with its next iteration."""

    epoch: int
    facts: tuple[Facts, ...]


class Probe(NamedTuple):
    """Ping of the profiler."""

    client: int
    token: int


class Echo(NamedTuple):
    """Answer to a Probe."""

    device: int
    token: int


class Allocate(NamedTuple):
    """Request of a client for device memory that is not synchronised (parameters, optimizer state)."""

    client: int
    token: int
    nbytes: int
    is_arena: bool = False
    """True for room of keys' regions, whose registrations will name their places in it, from its beginning on."""
    is_of_key: bool = False
    """True if the memory is to lie where regions of keys do, to measure copies to these; on some devices that is
    elsewhere."""


class Allocated(NamedTuple):
    """Region that was asked for; offset -1 means that there is no room, and `text` says why."""

    device: int
    token: int
    offset: int
    text: str


class Free(NamedTuple):
    """Return of a region that a client had by Allocate."""

    offset: int


class Reach(NamedTuple):
    """Request of a client to its device to read a value at an address and to write it back.

    The device is of the client's node, and the address is one of the client's memory.
    """

    client: int
    token: int
    address: int
    value: int


class Reached(NamedTuple):
    """Answer to a Reach; its text is empty, or says why the device could not."""

    device: int
    token: int
    text: str


class Lend(NamedTuple):
    """Loan of a client's memory to a key, for its contribution and its result.

    Both lie at these addresses of the client's process, and not in its region, until it states otherwise. An address of
    0 means: in the region.
    """

    client: int
    key: int
    device: int
    offset: int
    nbytes: int
    source: int
    target: int


class Reclaim(NamedTuple):
    """End of a client's loan for a key; the answer comes once nothing there is read or written any more."""

    client: int
    key: int
    token: int


class Reclaimed(NamedTuple):
    """Answer to a Reclaim.

    Results that were announced before it lie in the loan, others in the region.
    """

    key: int
    device: int
    token: int


class StatisticsRequest(NamedTuple):
    """Request of a client for a device's counters; it passes one of its own node to reach another node's."""

    client: int
    device: int
    token: int


class StatisticsReply(NamedTuple):
    """Counters of a device as JSON."""

    client: int
    device: int
    token: int
    text: str


class Leave(NamedTuple):
    """Shutdown of a client.

    Devices tell theirs, which may wait for it in collectives of the workers alone.
    """

    client: int


class Died(NamedTuple):
    """Death or error of a rank; `text` says what is known."""

    rank: int
    text: str


class RingChunk(NamedTuple):
    """Header in front of a chunk's bytes in a ring."""

    key: int
    epoch: int
    round: int
    version: int
    shard: int
    step: int
    present: bool


FeatureRecord = tuple[Any, ...]
"""NamedTuple of a feature (coarse.protocol.features)."""
KernelRecord = (
    Push | Ready | Register | Deregister | Registered | Located | Failed | Query | Status | Join | Joined | JoinFailed
    | Table | Tables | Probe | Echo | Allocate | Allocated | Free | Reach | Reached | Lend | Reclaim | Reclaimed
    | StatisticsRequest | StatisticsReply | Leave | Died
)  # fmt: skip
Record = KernelRecord | FeatureRecord
