"""What a proxy knows of one key: who registered it where, its plan, its queues and its rings."""

from dataclasses import dataclass, field

from coarse.dtypes import DType, Op
from coarse.messages import Descriptor, Failed, Located, Push
from coarse.plan import Placement, RoutingTable, SyncPlan, plan_key
from coarse.proxy.instructions import Region
from coarse.proxy.queues import ReadyRun, ShardQueues
from coarse.proxy.ring_run import RingRun


@dataclass
class KeyState:
    """One key in one epoch; forgotten and built again when all clients register it in the next."""

    key: int
    epoch: int
    located: dict[int, Located] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)
    """Clients that registered here, and so hear of errors from here."""
    early: list[Push] = field(default_factory=list)
    """Pushes that came before the plan was known."""
    early_chunks: list[tuple[int, int, int, bool]] = field(default_factory=list)
    plan: SyncPlan | None = None
    """Made once all clients have registered; what follows is then known too."""
    descriptor: Descriptor = field(init=False)
    blocks: tuple[tuple[int, int, bool], ...] = ()
    """(first shard, past the last, whether this proxy is alone in their ring)."""
    divisor: int = 1
    queues: ShardQueues | None = None
    failed: Failed | None = None
    _itemsize: int = 1
    outstanding: int = 0
    finished: list[tuple[int, int, ReadyRun]] = field(default_factory=list)
    rings: dict[tuple[int, int], RingRun] = field(default_factory=dict)
    """(version, shard) -> the ring under way."""
    ring_runs: dict[tuple[int, int], ReadyRun] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    """Shard -> results so far."""

    def disagreement(self) -> str | None:
        """How two clients differ about the key, or None."""
        reference = self.located[min(self.located)]
        for client in sorted(self.located):
            other = self.located[client]
            mine, theirs = reference.descriptor, other.descriptor
            if mine.name != theirs.name:
                return f"{mine.name!r} and {theirs.name!r} have the same 64-bit key; rename one of them"
            if (mine.dtype, mine.op, mine.shape) != (theirs.dtype, theirs.op, theirs.shape):
                return (
                    f"{mine.name!r}: rank {reference.client} has {mine} but rank {client} has {theirs}; "
                    "all ranks must push a name with one shape, dtype and op"
                )
        return None

    def settle(
        self, tables: tuple[RoutingTable, ...], placement: Placement, device: int
    ) -> tuple[list[Push], list[tuple[int, int, int, bool]]]:
        """Make the plan once all clients have registered; what came early is handed back."""
        descriptor = self.descriptor = self.located[0].descriptor
        self._itemsize = DType(descriptor.dtype).itemsize
        self.plan = plan_key(self.key, descriptor.num_elements, self._itemsize, tables, placement)
        self.blocks = tuple(
            (first, last, len(members) == 1)
            for first, last, members in self.plan.members_by_block
            if device in members
        )
        if descriptor.op == Op.AVERAGE:
            self.divisor = placement.num_clients
        self.queues = ShardQueues(self.plan.contributors_by_device[device])
        pushes, self.early = self.early, []
        chunks, self.early_chunks = self.early_chunks, []
        return pushes, chunks

    def regions(self, clients: tuple[int, ...], element: int) -> tuple[Region, ...]:
        """Where each client's contribution (and result) lies, from an element on."""
        skip = element * self._itemsize
        located = self.located
        return tuple([Region(located[c].device, located[c].offset + skip) for c in clients])
