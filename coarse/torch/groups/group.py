"""Group of a process set: collectives whose ranks first tell one another their calls."""

import json
import zlib
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch

from coarse.collectives.conditions import Condition
from coarse.collectives.progress import Conditions, Pending
from coarse.errors import MismatchError
from coarse.protocol.joint import CollectiveKind, Joint
from coarse.session import current
from coarse.torch.c10d.arguments import number_of, reduction_of
from coarse.torch.c10d.lane import GroupLane
from coarse.torch.c10d.reduction import Operation, combined
from coarse.torch.c10d.sparse import gather_of, settled, sum_sparse, sum_those_that_are_sparse, summand
from coarse.torch.c10d.staging import Copies, Target, brought, element_label, read, require_dense
from coarse.torch.c10d.statement import CallStatement
from coarse.torch.c10d.steps import statement_of
from coarse.torch.names import OrderedNames
from coarse.torch.on_gpu import use_in_this_stream

T = TypeVar("T")
_TEXT_BYTES = 512
"""Bytes for a rank's text about its call where ranks differ."""
_NUM_FACTS = 5
"""Number of facts that a member tells of a call beside its counts; all are zeros for a barrier, or a sum of sparse
tensors."""
_HAS_FACTS = 1
"""First of these facts."""


class Arriving(Generic[T]):
    """Result of a call, which its steps leave in a list."""

    def __init__(self, pending: Pending, found: list[T], waited_for: Callable[[], None]) -> None:
        self._pending = pending
        self._found = found
        self._waited_for = waited_for

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return self._pending.has_come()

    def wait(self, timeout: float | None = None) -> T:
        """Return the result.

        Raises:
            StallError: it took longer than `timeout` seconds.
        """
        try:
            self._pending.wait(float("inf") if timeout is None else timeout)
        finally:
            if self._pending.is_over:
                self._waited_for()
        result = self._found[0]
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                use_in_this_stream(made)
        return result


class Group:
    """Members of a process set, whose calls are matched by their order, equal on all of them.

    Raises:
        InFlightError: a name is used again before its last call, or one after it, was waited for.
        MismatchError: members make different calls, or with tensors that do not fit together (on all members).
        StallError: members that do not come within stall_timeout_s.
        DeadRankError: a rank has died.
    """

    def __init__(self, workers: tuple[int, ...], name: str) -> None:
        self._name = name
        worker = current().client_index
        assert worker is not None
        self._rank, self._size = workers.index(worker), len(workers)
        self._timeout = timedelta(seconds=current().config.stall_timeout_s)
        self._lane = GroupLane(workers, name, _NUM_FACTS + self._size)
        self._names = OrderedNames(worker)

    def close(self) -> None:
        """Close the group; nothing will be called any more."""
        self._lane.close()

    def reduce_in_place(
        self, tensor: torch.Tensor, operation: Operation, key: str, timeout: timedelta | None = None
    ) -> Arriving[torch.Tensor]:
        """Combine the members' tensors into each one's; `timeout` stands in place of stall_timeout_s."""
        require_dense([tensor], key)
        real, reduction = reduction_of(tensor, operation)
        copies = Copies()
        target = copies.target(real, is_read=True)
        array = target.array.view(reduction.storage)
        combine = self._lane.steps.all_reduce(array, reduction, has_met=True)
        statement = statement_of(CollectiveKind.ALL_REDUCE, array, reduction=reduction)
        joint = combined(CollectiveKind.ALL_REDUCE, array, reduction)
        return self._alike(tensor, key, statement, combine, joint, copies, target, timeout)

    def copy_from(self, root: int, tensor: torch.Tensor, key: str) -> Arriving[torch.Tensor]:
        """Copy the tensor of the member `root` into the others'."""
        require_dense([tensor], key)
        copies = Copies()
        target = copies.target(tensor, is_read=root == self._rank)
        copy = self._lane.steps.broadcast(target.array, number_of(tensor), root, has_met=True)
        statement = statement_of(CollectiveKind.BROADCAST, target.array, element=number_of(tensor), root=root)
        joint = Joint(CollectiveKind.BROADCAST, target.array.nbytes, root=root)
        return self._alike(tensor, key, statement, copy, joint, copies, target)

    def gather_rows(self, tensor: torch.Tensor, key: str) -> Arriving[torch.Tensor]:
        """Gather all members' tensors end to end along the first dimension, in which alone they may differ."""
        require_dense([tensor], key)
        own = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
        copies = Copies()
        mine = copies.read(own)

        def steps(found: list[torch.Tensor]) -> Conditions:
            counts = yield from self._meet(CallStatement(kind=CollectiveKind.ALL_GATHER), key, own, [own.shape[0]])
            rows: list[int] = counts[:, 0].tolist()
            gathered = torch.empty((sum(rows), *own.shape[1:]), dtype=own.dtype, device="cpu")
            yield from copies.arrive()
            yield from self._gather_padded(mine, _row_bytes(own), rows, read(gathered))
            yield from copies.deliver([])
            found.append(brought(gathered, tensor))

        return self._submit(key, steps, Joint(CollectiveKind.ALL_GATHER, own.nbytes))

    def exchange_rows(
        self, tensor: torch.Tensor, splits: Sequence[int], key: str
    ) -> Arriving[tuple[torch.Tensor, torch.Tensor]]:
        """Exchange rows: `splits[r]` of them go to member r.

        The result is the rows that came, in order of rank, and the number from each, (size,) int64.
        """
        require_dense([tensor], key)
        own, copies = tensor.detach(), Copies()
        mine = copies.read(own)

        def steps(found: list[tuple[torch.Tensor, torch.Tensor]]) -> Conditions:
            counts = yield from self._meet(CallStatement(kind=CollectiveKind.ALL_TO_ALL), key, own, splits)
            rows: list[int] = counts[:, self._rank].tolist()
            out = torch.empty((sum(rows), *own.shape[1:]), dtype=own.dtype, device="cpu")
            row_bytes = _row_bytes(own)
            received, sent = [n * row_bytes for n in rows], [n * row_bytes for n in splits]
            yield from copies.arrive()
            yield from self._lane.steps.exchange(read(out), received, mine, sent)
            yield from copies.deliver([])
            found.append((brought(out, tensor), torch.tensor(rows, dtype=torch.int64, device="cpu")))

        parts = tuple(count * _row_bytes(own) for count in splits)
        return self._submit(key, steps, Joint(CollectiveKind.ALL_TO_ALL, own.nbytes, parts=parts))

    def reduce_rows(self, tensor: torch.Tensor, operation: Operation, key: str) -> Arriving[torch.Tensor]:
        """Combine the members' tensors, of which each member keeps its rows.

        Rows are divided equally, and each of the first members gets one more of the rest.
        """
        require_dense([tensor], key)
        own, copies = tensor.detach(), Copies()
        mine, rows = copies.read(own), rows_of(own.shape[0], self._size)

        def steps(found: list[torch.Tensor]) -> Conditions:
            out = torch.empty((rows[self._rank], *own.shape[1:]), dtype=own.dtype, device="cpu")
            real, reduction = reduction_of(out, operation)
            statement = statement_of(CollectiveKind.REDUCE_SCATTER, mine, reduction=reduction)
            yield from self._meet(statement, key, own, [own.shape[0]], are_equal=True)
            scale = own[:1].numel() * (2 if own.is_complex() else 1)
            target = read(real).view(reduction.storage)
            yield from copies.arrive()
            full = mine.view(reduction.storage)
            counts = [scale * count for count in rows]
            yield from self._lane.steps.reduce_scatter(target, full, counts, reduction, has_met=True)
            yield from copies.deliver([])
            found.append(brought(out, tensor))

        _, reduction = reduction_of(own, operation)
        return self._submit(key, steps, combined(CollectiveKind.REDUCE_SCATTER, mine, reduction))

    def sum_sparse(self, tensor: torch.Tensor, key: str) -> Arriving[torch.Tensor]:
        """Sum the members' sparse COO tensors into each one's."""
        own = summand(tensor, Operation.SUM)

        def steps(found: list[torch.Tensor]) -> Conditions:
            yield from sum_sparse(self._lane.steps, tensor, own)
            found.append(tensor)

        return self._submit(key, steps, gather_of(own))

    def sum_those_that_are_sparse(
        self,
        tensors: Sequence[torch.Tensor | None],
        like: Sequence[torch.Tensor],
        names: Sequence[str],
        key: str,
        *,
        divisor: int = 1,
    ) -> Arriving[list[torch.Tensor | None]]:
        """Sum each tensor that some members have as a sparse COO one, divided and coalesced.

        The result has None in place of all others. A member without a tensor gives None, and in `like` a dense one of
        its shape and type. The call has no time limit: a member that has waited too long waits again.
        """
        own = [settled(tensor) for tensor in tensors]

        def steps(found: list[list[torch.Tensor | None]]) -> Conditions:
            found.append((yield from sum_those_that_are_sparse(self._lane.steps, own, like, names, divisor)))

        return self._submit(key, steps, [gather_of(tensor) for tensor in own], timedelta.max)

    def barrier(self) -> None:
        """Return once all members have come."""
        self._barrier("barrier", self._timeout).wait()

    def meet(self, key: str) -> Arriving[None]:
        """Begin a barrier.

        It has no time limit: a member that has waited too long waits again.
        """
        return self._barrier(key, timedelta.max)

    # --- within

    def _barrier(self, key: str, timeout: timedelta) -> Arriving[None]:
        def steps(found: list[None]) -> Conditions:
            yield from self._lane.steps.barrier()
            found.append(None)

        return self._submit(key, steps, Joint(CollectiveKind.BARRIER), timeout)

    def _alike(
        self,
        tensor: torch.Tensor,
        key: str,
        statement: CallStatement,
        data: Conditions,
        joint: Joint,
        copies: Copies,
        target: Target,
        timeout: timedelta | None = None,
    ) -> Arriving[torch.Tensor]:
        """Begin a call whose members give tensors of one shape, into which `target` brings the result."""
        own, rows = tensor.detach(), tensor.shape[0] if tensor.dim() else 1
        target.note_overwritten()

        def steps(found: list[torch.Tensor]) -> Conditions:
            yield from self._meet(statement, key, own, [rows], are_equal=True)
            yield from copies.arrive()
            yield from data
            yield from copies.deliver([target])
            found.append(tensor)

        return self._submit(key, steps, joint, timeout)

    def _submit(
        self, key: str, steps: Callable[[list[T]], Conditions], joints: Joint | list[Joint],
        timeout: timedelta | None = None,
    ) -> Arriving[T]:  # fmt: skip
        found: list[T] = []
        number = self._names.begin(key)
        moved = [joints] if isinstance(joints, Joint) else joints
        pending = self._lane.submit(key, steps(found), moved, timeout or self._timeout)
        return Arriving(pending, found, partial(self._names.waited_for, number))

    def _meet(
        self, statement: CallStatement, key: str, own: torch.Tensor, counts: Sequence[int], *, are_equal: bool = False
    ) -> Generator[Condition, None, np.ndarray]:
        """Tell all members of a call, once; return all counts, (size, size) int64, with zeros where absent.

        `are_equal`: members must have the same counts.
        """
        row_shape = zlib.crc32(json.dumps(list(own.shape[1:])).encode())
        facts = (_HAS_FACTS, zlib.crc32(key.encode()), number_of(own), own.dim(), row_shape, *counts)
        why, told = yield from self._lane.steps.meet(statement, facts)
        if not told[:, 0].all():  # who calls a barrier tells no more
            self._lane.steps.require_one_call(why)
        must_match = told if are_equal else told[:, :_NUM_FACTS]
        if (must_match != must_match[0]).any():
            yield from self._differ(key, own)
        self._lane.steps.require_one_call(why)
        return told[:, _NUM_FACTS:]

    def _differ(self, key: str, own: torch.Tensor) -> Conditions:
        """Raise MismatchError with the call of each member."""
        said = f"{key!r} with {element_label(own)}{list(own.shape)}".encode()[:_TEXT_BYTES]
        text = np.zeros(_TEXT_BYTES, np.uint8)
        text[: len(said)] = np.frombuffer(said, np.uint8)
        texts = np.empty((self._size, _TEXT_BYTES), np.uint8)
        yield from self._lane.steps.all_gather(_bytes(texts), text, -1)
        calls = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
        other = next(member for member, call in enumerate(calls) if call != calls[self._rank])
        raise MismatchError(
            f"rank {current().client_index}: {self._name}: member {self._rank} calls {calls[self._rank]}, but member "
            f"{other} calls {calls[other]}; make the same calls in the same order on all ranks, with tensors of one "
            "type whose dimensions agree"
        )

    def _gather_padded(self, mine: np.ndarray, row_bytes: int, rows: Sequence[int], out: np.ndarray) -> Conditions:
        """Fill out (uint8) with all members' rows, of which `mine` (uint8) are this one's.

        They are padded on the way to the number of the member with most.
        """
        padded = np.zeros((self._size, max(rows) * row_bytes), np.uint8)
        padded[self._rank, : mine.size] = mine
        yield from self._lane.steps.all_gather(padded.reshape(-1), padded[self._rank], -1, has_met=True)
        begin = 0
        for member, count in enumerate(rows):
            nbytes = count * row_bytes
            out[begin : begin + nbytes] = padded[member, :nbytes]
            begin += nbytes


def rows_of(num_rows: int, num_ranks: int) -> list[int]:
    """Return the number of rows that each rank gets of a reducescatter.

    They are divided equally, and each of the first ranks gets one more of the rest.
    """
    few, more = divmod(num_rows, num_ranks)
    return [few + (rank < more) for rank in range(num_ranks)]


def _row_bytes(tensor: torch.Tensor) -> int:
    return int(np.prod(tensor.shape[1:], dtype=np.int64)) * tensor.element_size()


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
