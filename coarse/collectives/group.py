"""Workers that gather and reduce together.

Start reading here.
"""

import contextlib
from collections.abc import Callable, Hashable

import numpy as np
from mpi4py import MPI

from coarse.collectives import headers
from coarse.collectives.conditions import Condition
from coarse.collectives.headers import Header
from coarse.collectives.hierarchical import Hierarchical
from coarse.collectives.node_memory import NodeBuffer, NodeRegion, agree_on_region
from coarse.collectives.opening import Opened
from coarse.collectives.progress import Conditions, Job, Pending
from coarse.collectives.ring import Ring
from coarse.collectives.shape import Collective, GroupShape
from coarse.collectives.shared import SharedByGroups
from coarse.collectives.slice_sum import SliceSum
from coarse.errors import CoarseError, ConfigError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.joint import CollectiveKind, Joint


class WorkerGroup:
    """Group of workers (ranks among workers, as coarse.rank() counts) that gather and reduce together.

    All members open it in the same order among their groups, and call the same methods in the same order with arrays
    of the same sizes; `must_match` says what else must be the same on all. A call returns at once an object that
    ends once its arrays may be used again: until then they may not be changed. Arrays are contiguous. The data that a
    call reads must be there, or once its `after` is over. An error that all members raise together (MismatchError,
    CapacityError) leaves the group as it was; after any other it cannot be used any more.
    """

    def __init__(
        self, shared: SharedByGroups, ranks: tuple[int, ...], collective: Collective = Collective.HIERARCHICAL
    ) -> None:
        """Return once all members have come.

        Raises:
            ConfigError: ranks that cannot be a group with this one in it; hierarchical, and uneven nodes.
            CapacityError: the devices of a node have no room for what a group needs, some MiB.
            StallError, DeadRankError: members that do not come.
            MismatchError: members that open another group now.
        """
        placement = shared.placement
        worker = shared.client.protocol.client
        self.ranks = _checked_ranks(tuple(ranks), worker, placement.num_clients)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(worker)
        self.collective = Collective(collective)
        shape = GroupShape(tuple(placement.cluster.worker_nodes[r] for r in self.ranks))
        if self.collective is Collective.HIERARCHICAL:
            shape.require_even()
        self.num_nodes = shape.num_nodes
        self.node_ranks = shape.near(self.rank)
        """Group ranks of the members of this one's node."""
        self._progress = shared.progress
        self._lane = shared.next_lane()
        self._meeting = shared.meeting(self.ranks)
        self._parts = Opened(shared, shape, self.rank, self.ranks, self.collective)
        self._lanes: set[Hashable] = {self._lane}
        self._num_jobs = 0
        self._is_closed = False
        opening = f"the opening of a group of ranks {list(self.ranks)}"
        self._progress.submit(self._lane, self._parts.open, opening, self.ranks).wait()
        self._near = Hierarchical(self._parts.wire, self._parts.node)
        is_ring = self.collective is Collective.RING
        self._way = Ring(self._parts.wire, self._parts.node) if is_ring else self._near

    # --- memory of the node

    def node_buffer(self, name: str, nbytes: int, *, must_match: str = "") -> NodeBuffer:
        """Return memory of the node's devices, one copy on every node.

        All members make the same call, and it returns when the memory is there.

        Raises:
            CapacityError: some node has no device with room; on all members, and nothing is taken anywhere.
        """
        found: list[NodeRegion] = []
        parts = self._parts

        def take() -> Conditions:
            yield from agree_on_region(parts.wire, parts.shared.devices, nbytes, 0, found)

        self._submit_agreed(CollectiveKind.NODE_BUFFER, name, nbytes, take, must_match=must_match).wait()
        return NodeBuffer(name, found[0], parts.shared.devices.view(found[0]), self._release)

    def _release(self, buffer: NodeBuffer) -> None:
        node, devices = self._parts.node, self._parts.shared.devices

        def release() -> Conditions:
            yield node.ticks.all_passed(node.ticks.tick())
            if node.position == 0:
                devices.free(buffer.region)

        self._number()
        self._progress.submit(self._lane, release, f"the release of {buffer.name!r}", self.ranks)

    # --- collectives

    def all_gather(
        self,
        out: np.ndarray,
        own: np.ndarray,
        *,
        keep: NodeBuffer | None = None,
        what: str,
        must_match: str = "",
        after: Condition | None = None,
    ) -> Pending:
        """Gather every member's `own`, (n,) bytes, into every member's `out`, (p*n,).

        `own` may be its place in `out`. With `keep` the node's buffer holds the same bytes afterwards.
        """
        flat, mine = _bytes(out, "out"), _bytes(own, "own")
        _require_size(what, "out", flat.nbytes, self.size * mine.nbytes)
        if keep is not None:
            _require_room(what, keep, flat.nbytes)

        def gather() -> Conditions:
            _put_own(flat, mine, self.rank)
            yield from self._way.gather(flat, mine.nbytes, keep, what)

        return self._submit_agreed(
            CollectiveKind.ALL_GATHER, what, flat.nbytes, gather, int(keep is not None), must_match=must_match,
            after=after, buffer=keep,
        )  # fmt: skip

    def read_node(self, out: np.ndarray, kept: NodeBuffer, *, what: str) -> Pending:
        """Copy the first bytes of the node's buffer into `out`; nothing moves between nodes.

        This is the one call that members need not all make: it is neither numbered nor counted. The next gather into
        the buffer begins when all members have come to it, and have so ended what they read before.
        """
        flat = _bytes(out, "out")
        _require_room(what, kept, flat.nbytes)

        def read() -> None:
            flat[:] = kept.array[: flat.nbytes]

        joint = Joint(CollectiveKind.READ_WHOLE, flat.nbytes)
        due = self._parts.shared.client.link.join(self._meeting, (joint,), what)
        return self._progress.submit(self._lane, read, what, due=due)

    def count_node_read(self, what: str, nbytes: int) -> None:
        """Count bytes that this member reads from the node's buffers."""
        self._parts.shared.node_reads[what] += nbytes

    def gather_on_node(
        self, out: np.ndarray, own: np.ndarray, *, what: str, must_match: str = "", after: Condition | None = None,
        kept: NodeBuffer | None = None,
    ) -> Pending:  # fmt: skip
        """Gather as all_gather does, among the members of this one's node alone, in order of `node_ranks`.

        `kept` is the node's buffer of which `own` is a part, as emulated machines have to know.
        """
        flat, mine, node = _bytes(out, "out"), _bytes(own, "own"), self._parts.node
        _require_size(what, "out", flat.nbytes, node.num_members * mine.nbytes)

        def gather() -> Conditions:
            _put_own(flat, mine, node.position)
            if node.num_members > 1:
                yield from self._near.gather_near(flat, mine.nbytes, what)

        moves = CollectiveKind.READ_PARTS if kept is not None else None
        kind = CollectiveKind.GATHER_ON_NODE
        return self._submit_agreed(
            kind, what, flat.nbytes, gather, must_match=must_match, after=after, moves=moves, buffer=kept
        )

    def reduce_scatter(
        self,
        out: np.ndarray,
        full: np.ndarray,
        dtype: DType,
        op: Op,
        *,
        what: str,
        must_match: str = "",
        after: Condition | None = None,
    ) -> Pending:
        """Reduce all members' slices r of `full`, (p*n,), into `out`, (n,), of group rank r.

        Both hold `dtype` (bfloat16 as uint16, or any as bytes). The order of the sum is fixed; half types add in
        float32 and are rounded once.
        """
        flat, result = _elements(full, dtype, "full"), _elements(out, dtype, "out")
        how = SliceSum(dtype, op, self.size)
        _require_size(what, "full", flat.nbytes, self.size * result.nbytes)

        def reduce() -> Conditions:
            target = np.empty_like(result) if np.may_share_memory(result, flat) else result
            yield from self._way.reduce(target, flat, len(result), how, what)
            if target is not result:
                result[:] = target

        kind = CollectiveKind.REDUCE_SCATTER
        return self._submit_agreed(kind, what, flat.nbytes, reduce, 0, dtype, op, must_match, after)

    def all_reduce(self, array: np.ndarray, dtype: DType, op: Op, *, what: str, must_match: str = "") -> Pending:
        """Reduce all members' arrays in place, to the same bits on all.

        It is a reduce-scatter and an all-gather.
        """
        flat = _elements(array, dtype, "array")
        how = SliceSum(dtype, op, self.size)
        slice_elements = -(-len(flat) // self.size)

        def reduce() -> Conditions:
            begin = min(self.rank * slice_elements, len(flat))
            mine = flat[begin : begin + slice_elements]
            result = np.empty_like(mine)
            yield from self._way.reduce(result, flat, slice_elements, how, what)
            mine[:] = result
            yield from self._way.gather(flat.view(np.uint8), slice_elements * dtype.itemsize, None, what)

        return self._submit_agreed(CollectiveKind.ALL_REDUCE, what, flat.nbytes, reduce, 0, dtype, op, must_match)

    def barrier(self, what: str = "barrier", *, must_match: str = "") -> None:
        """Return once all members have called it, and all jobs before have ended here."""

        def nothing() -> Conditions:
            yield from ()

        self._submit_agreed(CollectiveKind.BARRIER, what, 0, nothing, must_match=must_match).wait()

    def submit(self, job: Callable[[MPI.Intracomm], Conditions | None], *, what: str, lane: str = "") -> Pending:
        """Run any MPI work of the group, in order, in the progress thread.

        It gets a communicator for such jobs alone. A job that waits should be a generator and yield what it waits for
        (see coarse.collectives.conditions), so that others go on. Jobs of another `lane` run beside those of the
        group's collectives.
        """
        comm = self._parts.comms[1]
        key: Hashable = (self._lane, lane) if lane else self._lane
        self._lanes.add(key)
        return self._progress.submit(key, lambda: job(comm), what, members=())

    def counters(self) -> dict[str, tuple[int, int]]:
        """Return, by `what`, the bytes that this member sent to and received from other nodes.

        "headers" are the bytes that announce the others.
        """
        return self._parts.traffic.by_purpose()

    def close(self) -> None:
        """Free what the group has; all members call it, and do not use the group any more."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(CoarseError):  # a member is dead, and so is the group
            self._progress.submit(self._lane, self._parts.close, "the close of a group", self.ranks).wait()
        for lane in self._lanes:
            self._progress.forget(lane)

    # --- submitting

    def _submit_agreed(
        self, kind: CollectiveKind, what: str, nbytes: int, job: Callable[[], Conditions], keeps: int = 0,
        dtype: DType = DType.UINT8, op: Op = Op.SUM, must_match: str = "", after: Condition | None = None,
        moves: CollectiveKind | None = None, buffer: NodeBuffer | None = None,
    ) -> Pending:  # fmt: skip
        """Submit a job that begins once all members have said that they make the same call.

        `moves` is the collective that it is on a machine with hosts and accelerators, if not `kind`; `buffer` is the
        one that holds its result.
        """
        header = Header.of(kind, self._number(), what, nbytes, must_match)._replace(dtype=dtype, op=op, keeps=keeps)
        members = self.node_ranks if kind is CollectiveKind.GATHER_ON_NODE else range(self.size)

        def agreed() -> Conditions:
            yield from headers.agree(self._parts.wire, members, header, what)
            if after is not None:
                yield after
            yield from job()

        joint = Joint(
            moves or kind,
            nbytes // len(members) if kind in _GATHERS else nbytes,
            dtype.itemsize,
            is_ring=self.collective is Collective.RING,
            is_kept=bool(keeps),
            buffer=0 if buffer is None else 1 + buffer.region.offset,
        )
        due = self._parts.shared.client.link.join(self._meeting, (joint,), what)
        work: Job = agreed
        return self._progress.submit(self._lane, work, what, [self.ranks[member] for member in members], due)

    def _number(self) -> int:
        self._num_jobs += 1
        return self._num_jobs


_GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER_ON_NODE)
"""Collectives whose bytes are those of all members together."""


def _checked_ranks(ranks: tuple[int, ...], worker: int, num_workers: int) -> tuple[int, ...]:
    is_set = len(set(ranks)) == len(ranks) and set(ranks) <= set(range(num_workers))
    if not is_set or worker not in ranks:
        raise ConfigError(
            f"rank {worker}: a group's ranks must be different ones of 0..{num_workers - 1} with {worker} among them, "
            f"got {ranks}; let only its members open a group"
        )
    return ranks


def _bytes(array: np.ndarray, name: str) -> np.ndarray:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a contiguous numpy array, got {type(array).__name__}; copy it first")
    return array.reshape(-1).view(np.uint8)


def _elements(array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    flat = _bytes(array, name)
    if flat.nbytes % dtype.itemsize:
        raise ValueError(f"{name} must hold whole elements of {dtype.label}, got {flat.nbytes} bytes")
    return flat.view(dtype.storage)


def _require_size(what: str, name: str, nbytes: int, wanted_bytes: int) -> None:
    if nbytes != wanted_bytes:
        raise ValueError(f"{what!r}: {name} must have {wanted_bytes} bytes, got {nbytes}; give each member one slice")


def _require_room(what: str, kept: NodeBuffer, nbytes: int) -> None:
    if kept.nbytes < nbytes:
        raise ValueError(f"{what!r}: {nbytes} bytes do not fit the node buffer {kept.name!r} of {kept.nbytes} bytes")


def _put_own(out: np.ndarray, own: np.ndarray, position: int) -> None:
    """Copy a member's slice to its place in `out`, unless it is there."""
    place = out[position * own.nbytes : (position + 1) * own.nbytes]
    if own.nbytes and place.__array_interface__["data"][0] != own.__array_interface__["data"][0]:
        place[:] = own
