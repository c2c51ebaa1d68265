"""Sum of sparse tensors, whose ranks may have different numbers of values."""

from collections.abc import Generator, Sequence
from enum import IntEnum

import numpy as np
import torch

from coarse.collectives.conditions import Condition
from coarse.collectives.progress import Conditions
from coarse.errors import MismatchError
from coarse.protocol.joint import CollectiveKind, Joint
from coarse.torch.c10d.reduction import Operation
from coarse.torch.c10d.staging import finish, read
from coarse.torch.c10d.statement import element_number
from coarse.torch.c10d.steps import GroupSteps


class _Is(IntEnum):
    """Kind of a rank's tensor."""

    ABSENT = 0
    SPARSE = 1
    DENSE = 2


def summand(tensor: torch.Tensor, operation: Operation) -> torch.Tensor:
    """Return a sparse COO tensor as `sum_sparse` adds it: without history, coalesced and complete.

    Raises:
        TypeError: another operation, or a layout other than COO.
    """
    if operation is not Operation.SUM or tensor.layout is not torch.sparse_coo:
        raise TypeError(
            f"{operation.name} of tensors of {tensor.layout} cannot be computed; sparse COO tensors can be summed"
        )
    own = settled(tensor)
    assert own is not None
    return own


def gather_of(own: torch.Tensor | None) -> Joint:
    """Return the gather of a sparse tensor's indices and values; None and dense ones have none."""
    sparse = own is not None and own.is_sparse
    nbytes = own.indices().nbytes + own.values().nbytes if sparse and own is not None else 0
    return Joint(CollectiveKind.SPARSE_ALL_REDUCE, nbytes)


def sum_sparse(group: GroupSteps, tensor: torch.Tensor, own: torch.Tensor) -> Conditions:
    """Make a sparse COO tensor the sum of all ranks' summands; `own` is this rank's.

    Each rank gathers all indices and values.

    Raises:
        MismatchError: ranks whose tensors differ in shape.
    """
    shape = np.array([own.sparse_dim(), own.dense_dim(), *own.shape, own._nnz()], np.int64)
    shapes = yield from _gather_rows(group, shape)
    if (shapes[:, :-1] != shapes[0, :-1]).any():
        raise MismatchError(f"sparse tensors of different shapes cannot be summed: {shapes[:, 2:-1].tolist()}")
    total = yield from _add_parts(group, own, shapes[:, -1].tolist())
    with torch.no_grad():
        tensor.copy_(total)
    finish(tensor)


def sum_those_that_are_sparse(
    group: GroupSteps,
    own: Sequence[torch.Tensor | None],
    like: Sequence[torch.Tensor],
    names: Sequence[str],
    divisor: int,
) -> Generator[Condition, None, list[torch.Tensor | None]]:
    """Sum each tensor that some ranks have as a sparse COO one, divided and coalesced.

    The result has None in place of all others. All ranks give equally many tensors (see `settled`), None where they
    have none; `like` has as many dense tensors of the same shapes and types, and `names` their names in errors.

    Raises:
        MismatchError: one that is sparse on some ranks and dense on others, or has other sparse dimensions (on all).
    """
    facts = np.array([_facts(tensor) for tensor in own], np.int64)
    rows = (yield from _gather_rows(group, facts.reshape(-1))).reshape(group.size, *facts.shape)
    sums: list[torch.Tensor | None] = []
    for number, name in enumerate(names):
        is_sparse = rows[:, number, 0] == _Is.SPARSE
        if not is_sparse.any():
            sums.append(None)
            continue
        num_sparse_dims = _agreed_dims(rows[:, number], name)
        part = own[number]
        if part is None:
            part = _empty(like[number], num_sparse_dims)
        total = yield from _add_parts(group, part, rows[:, number, 2].tolist(), divisor)
        finish(total)
        sums.append(total)
    return sums


def settled(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a tensor that another thread may read.

    It has no history of its gradient, is coalesced, and complete on its device.
    """
    if tensor is None:
        return None
    own = tensor.detach()
    if own.is_sparse:
        own = own.coalesce()
        finish(own)
    return own


def _facts(tensor: torch.Tensor | None) -> tuple[int, int, int]:
    """Return a tensor's facts for other ranks: its kind, and its numbers of sparse dimensions and values."""
    if tensor is None:
        return _Is.ABSENT, 0, 0
    if not tensor.is_sparse:
        return _Is.DENSE, 0, 0
    return _Is.SPARSE, tensor.sparse_dim(), tensor._nnz()


def _agreed_dims(facts: np.ndarray, name: str) -> int:
    """Return the number of sparse dimensions, equal on all ranks with values; `facts` is (size, 3)."""
    present = facts[facts[:, 0] != _Is.ABSENT]
    if (present[:, :2] == present[0, :2]).all():
        return int(present[0, 1])
    said = [
        "none" if kind == _Is.ABSENT else "dense" if kind == _Is.DENSE else f"sparse in {dims} dimensions"
        for kind, dims, _ in facts.tolist()
    ]
    raise MismatchError(
        f"the gradient of {name!r} differs between ranks: by rank it is {', '.join(said)}; build the same model on "
        "every rank, or make sparse gradients dense (sparse_as_dense=True)"
    )


def _empty(like: torch.Tensor, num_sparse_dims: int) -> torch.Tensor:
    """Return a coalesced tensor without values."""
    indices = torch.empty((num_sparse_dims, 0), dtype=torch.int64, device=like.device)
    values = like.new_empty((0, *like.shape[num_sparse_dims:]))
    return torch.sparse_coo_tensor(indices, values, like.shape, is_coalesced=True, check_invariants=False)


def _gather_rows(group: GroupSteps, row: np.ndarray) -> Generator[Condition, None, np.ndarray]:
    """Gather every rank's row of int64, (size, n)."""
    rows = np.empty((group.size, len(row)), np.int64)
    yield from group.all_gather(_flat(rows), _flat(row), element_number("int64"), CollectiveKind.SPARSE_ALL_REDUCE)
    return rows


def _add_parts(
    group: GroupSteps, own: torch.Tensor, counts: Sequence[int], divisor: int = 1
) -> Generator[Condition, None, torch.Tensor]:
    """Return the sum of each rank's sparse COO tensor, added in order of rank, divided and coalesced.

    `own` is coalesced, of a shape that all have; `counts[r]` is how many values rank r has. Half types are added and
    divided in float32, and rounded once.
    """
    most = max(counts)
    if not most:
        return own
    indices = own.indices().new_zeros((group.size, own.sparse_dim(), most))
    values = own.values().new_zeros((group.size, most, *own.shape[own.sparse_dim() :]))
    indices[group.rank, :, : own._nnz()] = own.indices()
    values[group.rank, : own._nnz()] = own.values()
    for gathered in (indices, values):
        if not gathered.numel():
            continue  # as are the indices of a scalar
        everything, mine = read(gathered), read(gathered[group.rank])
        yield from group.all_gather(everything, mine, -1, CollectiveKind.SPARSE_ALL_REDUCE)
        gathered.copy_(torch.from_numpy(everything).view(gathered.dtype).view(gathered.shape))
    with torch.no_grad():
        wide = values.float() if values.dtype.itemsize == 2 and values.is_floating_point() else values
        parts = [
            torch.sparse_coo_tensor(indices[rank, :, :nnz], wide[rank, :nnz], own.shape, check_invariants=False)
            for rank, nnz in enumerate(counts)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        total = total / divisor if divisor > 1 else total
        return total.coalesce().to(values.dtype)


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
