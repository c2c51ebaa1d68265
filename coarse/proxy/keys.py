# Pure: no MPI, threads, clock or environment.
"""State of one key at a proxy: its registrations, its plan, its queues and its rings."""

from collections.abc import Collection
from dataclasses import dataclass, field

from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Facts, Placement, ShardPlan
from coarse.protocol.records import Descriptor, Failed, Located, Push, RingChunk
from coarse.proxy.exchange_runs import RingRun, StarRun
from coarse.proxy.instructions import Region, RingId
from coarse.proxy.queues import ReadyRun, ShardQueues


@dataclass
class KeyState:
    """State of one key in one epoch."""

    key: int
    epoch: int
    located: dict[int, Located] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)
    """Clients that registered here, and so hear of errors from here."""
    early: list[Push] = field(default_factory=list)
    """Pushes that came before the plan or their client's region was known."""
    early_chunks: list[RingChunk] = field(default_factory=list)
    plan: ShardPlan | None = None
    """Plan, made once all clients that have not joined have registered. The fields below are then known too."""
    descriptor: Descriptor = field(init=False)
    blocks: tuple[tuple[int, int, bool], ...] = ()
    """Blocks of shards of this proxy: (first shard, past the last, whether this proxy is alone in their ring)."""
    divisor: int = 1
    queues: ShardQueues | None = None
    failed: Failed | None = None
    _itemsize: int = 1
    outstanding: int = 0
    finished: list[tuple[int, int, ReadyRun]] = field(default_factory=list)
    rings: dict[RingId, RingRun | StarRun] = field(default_factory=dict)
    """Rings under way."""
    ring_runs: dict[RingId, ReadyRun] = field(default_factory=dict)
    """Contribution of this proxy to each ring that it has started."""
    rings_started: dict[int, int] = field(default_factory=dict)
    """Number of rings of each shard that this proxy has started."""
    replaced_by: set[int] = field(default_factory=set)
    """Clients that have deregistered the key and use its name for another one."""
    is_deregistered: bool = False
    """True if all clients have deregistered the key: it is dropped once its last ring has ended."""
    num_stored: int = 0
    """Number of shards of the version under way whose result this proxy has stored."""

    @property
    def num_owned(self) -> int:
        """Number of shards in whose synchronisation this proxy takes part."""
        return sum(last - first for first, last, _ in self.blocks)

    def disagreement(self) -> str | None:
        """Return how two clients differ about the key, or None."""
        reference = self.located[min(self.located)]
        for client in sorted(self.located):
            other = self.located[client]
            mine, theirs = reference.descriptor, other.descriptor
            if mine.name != theirs.name:
                return f"{mine.name!r} and {theirs.name!r} have the same 64-bit key; rename one of them"
            if not mine.is_alike(theirs):
                return (
                    f"{mine.name!r}: rank {reference.client} has {mine} but rank {client} has {theirs}; "
                    "all ranks must push a name with one shape, dtype and op"
                )
            if mine.plan != theirs.plan:
                return _planned_otherwise(mine.name, f"rank {client}", f"rank {reference.client}")
        return None

    def misplanned(self, facts: tuple[Facts, ...], placement: Placement, device: int) -> str | None:
        """Return how this device's plan differs from that of all clients, or None."""
        descriptor = self.located[min(self.located)].descriptor
        if descriptor.plan in (0, placement.digest_of(descriptor.tensor(self.key), facts)):
            return None
        return _planned_otherwise(descriptor.name, f"memory device {device}", "the workers")

    def settle(
        self, facts: tuple[Facts, ...], placement: Placement, device: int
    ) -> list[RingChunk]:
        """Make the plan, and return the chunks that came early."""
        descriptor = self.descriptor = self.located[min(self.located)].descriptor
        self._itemsize = DType(descriptor.dtype).itemsize
        self.plan = placement.plan_of(descriptor.tensor(self.key), facts)
        self.blocks = tuple(
            (first, last, len(members) == 1)
            for first, last, members in self.plan.members_by_block
            if device in members
        )
        if descriptor.op == Op.AVERAGE:
            self.divisor = placement.num_clients
        self.queues = ShardQueues(self.plan.contributors_by_device[device])
        chunks, self.early_chunks = self.early_chunks, []
        return chunks

    @property
    def has_pushes(self) -> bool:
        """True if a client has pushed something that is not synchronised yet."""
        return bool(self.early) or (self.queues is not None and not self.queues.is_empty) or bool(self.rings)

    @property
    def name(self) -> str:
        """Name of the tensor, known once a client has registered it."""
        return self.located[min(self.located)].descriptor.name

    def waits_for(
        self, client: int, device: int, facts: tuple[Facts, ...] | None, placement: Placement
    ) -> bool:
        """Return whether others wait for something that a client would have told this very device."""
        if not self.located or facts is None:
            return False
        if client not in self.located:
            descriptor = self.located[min(self.located)].descriptor
            return placement.plan_of(descriptor.tensor(self.key), facts).homes[client] == device
        if self.queues is None or self.plan is None:
            return False
        if client not in self.plan.contributors_by_device[device]:
            return False
        begun = [ring.shard for ring, run in self.rings.items() if not run.started]
        return self.queues.lacks(client, begun)

    def missing(self, num_clients: int, excused: Collection[int]) -> tuple[int, ...]:
        """Return the clients whose registration or contribution is awaited."""
        if self.queues is None:
            return tuple(c for c in range(num_clients) if c not in self.located and c not in excused)
        if self.outstanding and self.queues.is_empty:
            return ()
        return self.queues.missing(excused)

    def left_by(self, client: int, rank: int) -> Failed:
        """Return the error of a key that waits for a client, of this world rank, which has shut down."""
        text = (
            f"rank {client} (MPI rank {rank}) has shut down without pushing {self.name!r}, "
            "which others push; push it on all ranks, or join() where batches are uneven"
        )
        return Failed(self.key, self.epoch, "DeadRankError", text, rank)

    def deserted_by(self, client: int, rank: int) -> Failed:
        """Return the error of a key that waits for a client which uses its name for another key.

        `rank` is the client's world rank.
        """
        text = (
            f"rank {client} (MPI rank {rank}) uses {self.name!r} anew, for another shape, dtype or op, while others "
            "push it as it was; let all ranks change or forget a name between the same two uses"
        )
        return Failed(self.key, self.epoch, "MismatchError", text)

    def new_ring_run(self, ring: RingId, device: int) -> RingRun | StarRun:
        """Return the state machine of a device for the exchange of one shard."""
        assert self.plan is not None
        begin, end = self.plan.bounds(ring.shard, ring.shard + 1)
        members, direction = self.plan.members(ring.shard), self.plan.direction(ring.shard)
        if self.plan.exchange(ring.shard) == "star":
            return StarRun(ring, end - begin, members, device)
        return RingRun(ring, end - begin, members, device, direction)

    def take_early(self) -> list[Push]:
        """Remove and return the early pushes of clients whose regions are known."""
        pushes = [push for push in self.early if push.client in self.located]
        self.early = [push for push in self.early if push.client not in self.located]
        return pushes

    def regions(self, clients: tuple[int, ...], element: int) -> tuple[Region, ...]:
        """Return the region of each client's contribution (and result), from an element on."""
        skip = element * self._itemsize
        located = self.located
        return tuple([Region(located[c].device, located[c].offset + skip) for c in clients])


def _planned_otherwise(name: str, who: str, others: str) -> str:
    return (
        f"{name!r}: on {who} the strategy's plan() gives another plan than on {others}; let it depend on its arguments "
        "alone, and not on the rank, a hash, the clock or chance: coarse check --strategy"
    )
