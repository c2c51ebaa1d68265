"""Collectives on rows, by Horovod's names: allgather, alltoall, reducescatter; and broadcast.

Asynchronous calls read and write their tensors until `wait` has returned: don't change them before. Allgathers and
broadcasts of all workers for which the caller waits at once go by the memory devices, and are matched by name where
they have one. All others are the workers' own, matched by the order in which ranks make them.
"""

from collections.abc import Sequence

import torch

from coarse.arrays import forget
from coarse.errors import ConfigError
from coarse.horovod.allreduce import (
    ReduceOp,
    allreduce,
    each,
    listed_tensors,
    on_the_way,
    operation_of,
    scaled,
)
from coarse.protocol.dtypes import Op
from coarse.session import current
from coarse.torch import broadcasting
from coarse.torch.c10d.reduction import Operation
from coarse.torch.compression import NoCompression, checked_compression
from coarse.torch.differentiable import differentiable
from coarse.torch.groups.moving import allgather_async, broadcast_async_
from coarse.torch.groups.process_sets import ProcessSet, global_process_set, group_of, key_among, members_of
from coarse.torch.handles import Then, Together, Waitable
from coarse.torch.names import named

Pair = tuple[torch.Tensor, torch.Tensor]

# --- allgather


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return all ranks' tensors end to end along the first dimension, in which alone they may differ.

    Gradients flow through. A rank's gradient is the average over ranks of each one's for these rows, as in Horovod.

    Raises:
        MismatchError: types or other dimensions differ (on all ranks).
        JoinedError: a rank has joined.
    """
    return gathered([tensor], name, process_set, Op.AVERAGE)[0]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Waitable[list[torch.Tensor]]:
    """Start an allgather of each of several tensors."""
    return Together([allgather_async(tensor, of, process_set) for tensor, of in each(tensors, name)])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Return an allgather of each of several tensors, through which gradients flow; see allgather."""
    return gathered(tensors, name, process_set, Op.AVERAGE)


def gathered(
    given: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, op_of_gradients: Op
) -> list[torch.Tensor]:
    """Return an allgather of each tensor, whose gradients combine by an operation.

    Sum gives the derivative.
    """
    tensors = listed_tensors(given)
    counts = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if process_set is global_process_set and len(values) == 1:
            return [broadcasting.allgather(values[0], name or "allgather/unnamed")]
        return grouped_allgather_async(values, name, process_set).wait()

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        mine = []
        for gradient, tensor, count in zip(gradients, tensors, counts, strict=True):
            own = torch.tensor([count], device="cpu")
            every = group_of(process_set).gather_rows(own, "allgather/rows of a gradient").wait()
            begin = int(every[: process_set.rank()].sum())
            total = allreduce(gradient.contiguous(), op=op_of_gradients, process_set=process_set)
            mine.append(total[begin : begin + count].reshape(tensor.shape))
        return mine

    return differentiable(run, back, tensors)


# --- broadcast


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Waitable[torch.Tensor]:
    """Start a broadcast whose result is a new tensor; see broadcast_async_."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the root's values, bit for bit, as a new tensor on every rank; see broadcast_.

    The root's gradient is the average of all ranks' ones, as in Horovod; the others' are zero.
    """

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [broadcast_(values[0].clone(), root_rank, name, process_set)]

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        total = allreduce(gradients[0].contiguous(), op=Op.AVERAGE, process_set=process_set)
        return [total if current().client_index == root_rank else torch.zeros_like(total)]

    return differentiable(run, back, [tensor])[0]


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Write the root's values, bit for bit, into every rank's tensor, and return it.

    Raises:
        ValueError: there is no such rank.
        MismatchError: the ranks name different roots (on all ranks).
        JoinedError: the root has joined.
    """
    if process_set is not global_process_set:
        return broadcast_async_(tensor, root_rank, name, process_set).wait()
    if name:
        return broadcasting.broadcast_(tensor, root_rank, name)
    key, _ = named("broadcast", None)
    broadcasting.broadcast_(tensor, root_rank, key)
    forget(key)
    forget(f"{key}/root")
    return tensor


# --- alltoall


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Waitable[torch.Tensor | Pair]:
    """Start an exchange of rows; see alltoall."""
    counts = _splits_of(tensor, splits, len(members_of(process_set)))
    arriving = group_of(process_set).exchange_rows(tensor, counts, key_among(process_set, "alltoall", name))
    return Then(arriving, lambda pair: _with_counts(*pair, splits))


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | Pair:
    """Send `splits[r]` rows of a tensor to member r; return the rows from all, in order of rank.

    Without splits each member gets equally many rows. Gradients flow through. With `splits`, the result is a pair: the
    rows, and (p,) their numbers from each.

    Raises:
        ValueError: splits that are no p integers which add up to the rows.
        MismatchError: members whose tensors differ in type or further dimensions (on all members).
    """
    counts = _splits_of(tensor, splits, len(members_of(process_set)))
    received: list[torch.Tensor] = []

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        key = key_among(process_set, "alltoall", name)
        rows, found = group_of(process_set).exchange_rows(values[0], counts, key).wait()
        received.append(found)
        return [rows]

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        there = received[0].tolist()
        group = group_of(process_set)
        return [group.exchange_rows(gradients[0].contiguous(), there, "alltoall/gradient").wait()[0]]

    rows = differentiable(run, back, [tensor])[0]
    return _with_counts(rows, received[0], splits)


def _with_counts(rows: torch.Tensor, counts: torch.Tensor, splits: object) -> torch.Tensor | Pair:
    """Return the result of an alltoall.

    Where there were splits, it has the numbers of rows, in the type of the splits.
    """
    if splits is None:
        return rows
    if isinstance(splits, torch.Tensor):
        return rows, counts.to(splits.device, splits.dtype)
    return rows, counts.to(torch.int32)


def _splits_of(tensor: torch.Tensor, splits: object, num_ranks: int) -> list[int]:
    """Return the number of rows for each member."""
    if not tensor.dim():
        raise ValueError("alltoall splits a tensor by its first dimension, and a scalar has none; reshape(1) it")
    rows = tensor.shape[0]
    if splits is None:
        if rows % num_ranks:
            raise ValueError(f"{rows} rows cannot be split equally among {num_ranks} ranks; give splits")
        return [rows // num_ranks] * num_ranks
    given = splits if isinstance(splits, torch.Tensor) else torch.as_tensor(splits, device="cpu")
    if given.dtype not in (torch.int32, torch.int64, torch.uint8, torch.int16, torch.int8):
        raise ValueError(f"splits must be integers, got {given.dtype}")
    counts: list[int] = given.reshape(-1).tolist()
    if len(counts) != num_ranks or min(counts) < 0 or sum(counts) != rows:
        raise ValueError(f"splits must be {num_ranks} numbers of rows that add up to {rows}, got {counts}")
    return counts


# --- reducescatter


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Waitable[torch.Tensor]:
    """Start a reducescatter; see reducescatter."""
    how = operation_of(op, None)
    if how not in (Operation.SUM, Operation.AVERAGE):
        raise ConfigError(f"a reducescatter sums or averages, got {how.name}; use allreduce and take your rows")
    if not tensor.dim():
        raise ValueError("reducescatter gives each rank rows of the first dimension, and a scalar has none")
    source, wire, finish = on_the_way(tensor, how, prescale_factor, postscale_factor, process_set)
    key = key_among(process_set, "reducescatter", name)
    return Then(group_of(process_set).reduce_rows(source, wire, key), finish)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[NoCompression] = NoCompression,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Average (or sum) all members' tensors, and return this member's rows.

    Gradients are gathered, and by Sum multiplied by the number of members, as in Horovod.

    Each gets equally many rows, the first ones one more each where that does not come out even.

    Raises:
        MismatchError: members whose tensors differ in type or shape (on all members).
        StallError: members that do not call it within stall_timeout_s.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Waitable[list[torch.Tensor]]:
    """Start a reducescatter of each of several tensors."""
    factors = prescale_factor, postscale_factor
    return Together(
        [reducescatter_async(tensor, of, op, process_set, *factors) for tensor, of in each(tensors, name)]
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[NoCompression] = NoCompression,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return a reducescatter of each of several tensors; see reducescatter."""
    chosen = checked_compression(compression)
    scale = 1 if operation_of(op, None) is Operation.AVERAGE else len(members_of(process_set))

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        compressed = [chosen.compress(value) for value in values]
        found = grouped_reducescatter_async(
            [value for value, _ in compressed], name, op, process_set, prescale_factor, postscale_factor
        ).wait()
        return [chosen.decompress(rows, dtype) for rows, (_, dtype) in zip(found, compressed, strict=True)]

    def back(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        factor = prescale_factor * postscale_factor * scale
        whole = grouped_allgather_async([gradient.contiguous() for gradient in gradients], None, process_set).wait()
        return [scaled(every, factor) for every in whole]

    return differentiable(run, back, tensors)
