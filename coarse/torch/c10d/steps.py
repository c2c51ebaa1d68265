"""Collectives of c10d on arrays, as jobs of the progress thread that yield their waits.

[Note: statements] Before a collective moves bytes its ranks tell each other their calls. MPI itself would let calls
that do not fit together write past a buffer, return nonsense or wait for ever. Statements travel from each rank to each
other one, so that a wait for them knows the ranks that have not come. All ranks see the same rows, so all raise.
"""

import zlib
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from coarse.collectives.conditions import Condition, Messages, Requests
from coarse.collectives.progress import Conditions
from coarse.collectives.worker_ring import WorkerRing
from coarse.errors import MismatchError
from coarse.protocol.joint import CollectiveKind
from coarse.protocol.records import Tag
from coarse.torch.c10d.reduction import Array, Operation, Reduction
from coarse.torch.c10d.statement import NUM_FIELDS, CallStatement, disagreement, element_number

_OPS = {
    Operation.SUM: MPI.SUM,
    Operation.PRODUCT: MPI.PROD,
    Operation.MIN: MPI.MIN,
    Operation.MAX: MPI.MAX,
    Operation.BIT_AND: MPI.BAND,
    Operation.BIT_OR: MPI.BOR,
    Operation.BIT_XOR: MPI.BXOR,
}


class GroupSteps:
    """Collectives and messages of one group; ranks are the group's.

    Args:
        comm: of the group alone; only the progress thread calls it.
        messages: another one like it, on which users choose the tags.
        workers: `coarse.rank()` of each rank.
        name: for errors.
        num_facts: numbers that each rank tells in every statement beside what it calls.
        by_ring: sum by the workers' ring and not by MPI (`worker_collective`).
    """

    def __init__(
        self, comm: MPI.Intracomm, messages: MPI.Intracomm, workers: tuple[int, ...], name: str, num_facts: int = 0,
        *, by_ring: bool = False,
    ) -> None:  # fmt: skip
        self._comm = comm
        self._ring = WorkerRing(comm, workers) if by_ring else None
        self._messages = messages
        self._workers = workers
        self._name = name
        self._num_facts = num_facts
        self.num_meetings = 0
        """Number of times that all ranks have told one another their calls."""
        self.reduced_bytes = 0
        """Bytes that MPI was given to combine."""
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    # --- collectives; uint8 arrays are bytes of any type. `has_met`: `meet` was called for it

    def all_reduce(self, array: Array, reduction: Reduction, *, has_met: bool = False) -> Conditions:
        """Combine array (n,) in place on all ranks."""
        if not has_met:
            yield from self._agree(CollectiveKind.ALL_REDUCE, array, reduction=reduction)
        wide = reduction.to_wire(array)
        self.reduced_bytes += wide.nbytes
        if self._ring is not None and reduction.wire_operation is Operation.SUM and wide.size >= self.size > 1:
            yield from self._ring.reduce(wide)
        elif self.size > 1:
            yield Requests([self._comm.Iallreduce(MPI.IN_PLACE, wide, _OPS[reduction.wire_operation])])
        reduction.from_wire(wide, array, self.size)

    def reduce(self, array: Array, root: int, reduction: Reduction) -> Conditions:
        """Combine array (n,) on `root`; others keep theirs."""
        yield from self._agree(CollectiveKind.REDUCE, array, reduction=reduction, root=root)
        wide = reduction.to_wire(array)
        op = _OPS[reduction.wire_operation]
        self.reduced_bytes += wide.nbytes
        if self.rank != root:
            yield Requests([self._comm.Ireduce(wide, None, op, root)])
            return
        if self.size > 1:
            yield Requests([self._comm.Ireduce(MPI.IN_PLACE, wide, op, root)])
        reduction.from_wire(wide, array, self.size)

    def reduce_scatter(
        self, out: Array, full: Array, counts: Sequence[int], reduction: Reduction, *, has_met: bool = False
    ) -> Conditions:
        """Combine full (sum of counts,), and give rank r its counts[r] elements as out."""
        if not has_met:
            digest = zlib.crc32(np.array(counts, np.int64).tobytes()) if len(set(counts)) > 1 else 0
            yield from self._agree(CollectiveKind.REDUCE_SCATTER, full, reduction=reduction, split=digest)
        wide = reduction.to_wire(full)
        self.reduced_bytes += wide.nbytes
        if self.size == 1:
            combined = wide.copy()
        else:
            combined = reduction.wire_like(counts[self.rank])
            yield Requests([self._comm.Ireduce_scatter(wide, combined, counts, _OPS[reduction.wire_operation])])
        reduction.from_wire(combined, out, self.size)

    def broadcast(self, data: Array, element: int, root: int, *, has_met: bool = False) -> Conditions:
        """Overwrite data (n,) uint8 with the root's."""
        if not has_met:
            yield from self._agree(CollectiveKind.BROADCAST, data, element=element, root=root)
        if self.size > 1:
            yield Requests([self._comm.Ibcast([data, MPI.BYTE], root)])

    def all_gather(
        self, out: Array, own: Array, element: int, kind: CollectiveKind = CollectiveKind.ALL_GATHER, *,
        has_met: bool = False,
    ) -> Conditions:  # fmt: skip
        """Fill out (p*n,) uint8 with all ranks' own (n,), which may be a part of it."""
        if not has_met:
            yield from self._agree(kind, own, element=element)
        place = out[self.rank * own.size : (self.rank + 1) * own.size]
        if own.size and place.ctypes.data != own.ctypes.data:
            place[:] = own
        if self.size > 1:
            yield Requests([self._comm.Iallgather(MPI.IN_PLACE, [out, MPI.BYTE])])

    def gather(self, out: Array | None, own: Array, element: int, root: int) -> Conditions:
        """Fill the root's out (p*n,) uint8 with all ranks' own (n,)."""
        yield from self._agree(CollectiveKind.GATHER, own, element=element, root=root)
        received = None if out is None else [out, MPI.BYTE]
        yield Requests([self._comm.Igather([own, MPI.BYTE], received, root)])

    def scatter(self, out: Array, full: Array | None, element: int, root: int) -> Conditions:
        """Fill rank r's out (n,) uint8 with part r of the root's full (p*n,)."""
        yield from self._agree(CollectiveKind.SCATTER, out, element=element, root=root)
        sent = None if full is None else [full, MPI.BYTE]
        yield Requests([self._comm.Iscatter(sent, [out, MPI.BYTE], root)])

    def all_to_all(
        self, out: Array, received: Sequence[int], own: Array, sent: Sequence[int], element: int
    ) -> Conditions:
        """Send sent[r] bytes of own (uint8) to rank r, and fill out with received[r] bytes from it."""
        yield from self._agree(CollectiveKind.ALL_TO_ALL, None, element=element)
        lengths = np.zeros((self.size, 2, self.size), np.int64)
        lengths[self.rank] = (sent, received)
        if self.size > 1:
            yield Requests([self._comm.Iallgather(MPI.IN_PLACE, lengths)])
        unequal = np.argwhere(lengths[:, 0] != lengths[:, 1].T)
        if unequal.size:
            source, target = (int(rank) for rank in unequal[0])
            raise MismatchError(
                f"{self._name}: rank {source} sends {lengths[source, 0, target]} bytes to rank {target}, which "
                f"expects {lengths[target, 1, source]}; give all_to_all the sizes that the other ranks do"
            )
        yield from self.exchange(out, received, own, sent)

    def exchange(self, out: Array, received: Sequence[int], own: Array, sent: Sequence[int]) -> Conditions:
        """Do the exchange of `all_to_all` among ranks that know from `meet` the bytes of each."""
        yield Requests([self._comm.Ialltoallv(_parts(own, sent), _parts(out, received))])

    def barrier(self) -> Conditions:
        """Pass once all ranks have come."""
        yield from self._agree(CollectiveKind.BARRIER, None)

    # --- messages

    def send(self, data: Array, target: int, tag: int) -> Conditions:
        """Send data (n,) uint8; done once it may be changed."""
        messages = Messages()
        request = self._messages.Isend([data, MPI.BYTE], target, tag)
        messages.add(request, self._workers[target], data)
        yield messages

    def receive(self, data: Array, source: int | None, tag: int, found: list[int]) -> Conditions:
        """Overwrite data (n,) uint8 with a message from `source` (None: any rank); append its rank to `found`.

        Raises:
            MismatchError: a message of another length.
        """
        wanted = MPI.ANY_SOURCE if source is None else source
        request = self._messages.Irecv([data, MPI.BYTE], wanted, tag)
        arrival = _Arrival(request, data, () if source is None else (self._workers[source],))
        yield arrival
        if arrival.misfit is not None:
            raise MismatchError(
                f"{self._name}: rank {self.rank} receives {data.nbytes} bytes, but {arrival.misfit}; receive into a "
                "tensor of the size and type that is sent"
            )
        found.append(arrival.source)

    # --- [Note: statements]

    def meet(
        self, statement: CallStatement, facts: Sequence[int]
    ) -> Generator[Condition, None, tuple[str | None, np.ndarray]]:
        """Tell all ranks of a call, and facts of it.

        Return the reason why their calls do not fit together, or None, and by rank its facts, (p, num_facts) int64,
        zeros where a rank has told fewer.
        """
        self.num_meetings += 1
        rows = np.zeros((self.size, NUM_FIELDS + self._num_facts), np.int64)
        rows[self.rank, :NUM_FIELDS] = statement.as_row()
        rows[self.rank, NUM_FIELDS : NUM_FIELDS + len(facts)] = facts
        messages = Messages()
        for distance in range(1, self.size):
            source = (self.rank - distance) % self.size
            target = (self.rank + distance) % self.size
            coming = self._comm.Irecv(rows[source], source, int(Tag.STATEMENT))
            messages.add(coming, self._workers[source], rows)
            going = self._comm.Isend(rows[self.rank], target, int(Tag.STATEMENT))
            messages.add(going, self._workers[target], rows)
        yield messages
        return disagreement(rows[:, :NUM_FIELDS], self.rank), rows[:, NUM_FIELDS:]

    def require_one_call(self, why: str | None) -> None:
        """Raise MismatchError where `meet` has found that calls do not fit together."""
        if why is not None:
            raise MismatchError(
                f"{self._name}: rank {self.rank} and others differ: {why}; "
                "let all ranks of the group call the same collective with tensors of one size and type"
            )

    def _agree(
        self,
        kind: CollectiveKind,
        array: Array | None,
        *,
        element: int = -1,
        reduction: Reduction | None = None,
        root: int = -1,
        split: int = 0,
    ) -> Conditions:
        statement = statement_of(kind, array, element=element, reduction=reduction, root=root, split=split)
        why, _ = yield from self.meet(statement, ())
        self.require_one_call(why)


def statement_of(
    kind: CollectiveKind,
    array: Array | None,
    *,
    element: int = -1,
    reduction: Reduction | None = None,
    root: int = -1,
    split: int = 0,
) -> CallStatement:
    """Return a rank's statement about a collective of `array`.

    Its elements have this number, or are those of a reduction.
    """
    return CallStatement(
        kind=kind,
        element=element if reduction is None else element_number(reduction.element),
        op=-1 if reduction is None else int(reduction.operation),
        root=root,
        nbytes=0 if array is None else array.nbytes,
        split=split,
    )


class _Arrival:
    """Message that is awaited."""

    def __init__(self, request: MPI.Request, buffer: Array, missing: tuple[int, ...]) -> None:
        self._request = request
        self._buffer = buffer
        self._missing = missing
        self.source = -1
        self.misfit: str | None = None
        """Difference of the message's length, once it has come."""

    def is_over(self) -> bool:
        """Return whether the message has come."""
        status = MPI.Status()
        try:
            if not self._request.Test(status):
                return False
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            self.misfit = "more were sent"
            return True
        self.source = status.Get_source()
        came = status.Get_count(MPI.BYTE)
        if came != self._buffer.nbytes:
            self.misfit = f"{came} came from rank {self.source}"
        return True

    def missing(self) -> tuple[int, ...]:
        """Return the rank that has not sent, if it is known."""
        return self._missing


def _parts(array: Array, counts: Sequence[int]) -> list[Any]:
    offsets = [sum(counts[:rank]) for rank in range(len(counts))]
    return [array, list(counts), offsets, MPI.BYTE]
