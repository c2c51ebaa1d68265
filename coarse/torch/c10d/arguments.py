"""Arguments of c10d's calls, in the forms in which they come, and the checks of them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch.distributed import ReduceOp

from coarse.torch.c10d.reduction import Operation, Reduction
from coarse.torch.c10d.staging import element_label, require_dense
from coarse.torch.c10d.statement import element_number

Tensors = Sequence[torch.Tensor]
Given = torch.Tensor | Tensors
"""List of tensors, or one alone."""
GivenLists = Tensors | Sequence[Tensors]
"""List of lists of tensors, or one list alone."""
T = TypeVar("T")


def listed(tensors: Given) -> list[torch.Tensor]:
    """Return a list of tensors, where one alone may have come."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def nested(tensors: GivenLists) -> list[list[torch.Tensor]]:
    """Return a list of lists of tensors, where one list alone may have come."""
    lists: list[list[torch.Tensor]] = [[]] if len(tensors) else []
    for item in tensors:
        if isinstance(item, torch.Tensor):
            lists[0].append(item)
        else:
            lists.append(list(item))
    return lists if len(lists) < 2 else lists[1:]


def only(items: Sequence[T], what: str) -> T:
    """Return the one item of a list.

    Raises:
        ValueError: there are others, and a rank has one device.
    """
    if len(items) != 1:
        raise ValueError(f"{what}: one tensor for each rank was wanted, {len(items)} came")
    return items[0]


def root_of(options: object) -> int:
    """Return the group rank of the root, given as options or as a number."""
    return options if isinstance(options, int) else int(getattr(options, "rootRank", 0))


def number_of(tensor: torch.Tensor) -> int:
    """Return the element type as statements count it."""
    return element_number(element_label(tensor))


def require_alike(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raise TypeError for tensors that are not dense, or not all of one type."""
    require_dense(tensors, what)
    labels = {element_label(tensor) for tensor in tensors}
    if len(labels) > 1:
        raise TypeError(f"{what}: tensors of one type were wanted, {' and '.join(sorted(labels))} came")


def require_count(parts: Sequence[object], wanted: int, what: str) -> None:
    """Raise ValueError for a list that has not one tensor for each rank."""
    if len(parts) != wanted:
        raise ValueError(f"{what} list must have {wanted} tensors, one for each rank; {len(parts)} came")


def require_numel(tensor: torch.Tensor, wanted: int, what: str) -> None:
    """Raise ValueError for a tensor of another number of elements."""
    if tensor.numel() != wanted:
        raise ValueError(f"{what} tensor must have {wanted} elements, {tensor.numel()} came")


def split_bytes(tensor: torch.Tensor, split: Sequence[int] | None, num_ranks: int, what: str) -> list[int]:
    """Return the bytes for each rank, with the numbers of rows that `split` has, or equal ones."""
    require_dense([tensor], what)
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not split:
        if rows % num_ranks:
            raise ValueError(f"{what}: {rows} rows cannot be split equally among {num_ranks} ranks; give split sizes")
        split = [rows // num_ranks] * num_ranks
    if len(split) != num_ranks or sum(split) != rows or min(split) < 0:
        raise ValueError(f"{what}: split sizes {list(split)} must be {num_ranks} and add up to {rows} rows")
    row_bytes = tensor.numel() * tensor.element_size() // rows if rows else 0
    return [row_bytes * count for count in split]


_OPERATIONS = (
    (ReduceOp.SUM, Operation.SUM),
    (ReduceOp.AVG, Operation.AVERAGE),
    (ReduceOp.PRODUCT, Operation.PRODUCT),
    (ReduceOp.MIN, Operation.MIN),
    (ReduceOp.MAX, Operation.MAX),
    (ReduceOp.BAND, Operation.BIT_AND),
    (ReduceOp.BOR, Operation.BIT_OR),
    (ReduceOp.BXOR, Operation.BIT_XOR),
)


def operation_of(op: object) -> Operation:
    """Return the operation, given as such, as a ReduceOp or in options.

    Raises:
        TypeError: PREMUL_SUM, as from Gloo.
    """
    if isinstance(op, Operation):
        return op
    op = getattr(op, "reduceOp", op)
    for known, operation in _OPERATIONS:
        if op == known:
            return operation
    raise TypeError(f"Cannot use {op} with the coarse backend; scale the tensor and use ReduceOp.SUM")


def reduction_of(tensor: torch.Tensor, op: object) -> tuple[torch.Tensor, Reduction]:
    """Return a tensor as its elements combine, complex ones as pairs of reals, and their reduction."""
    operation = operation_of(op)
    if tensor.is_complex():
        if operation not in (Operation.SUM, Operation.AVERAGE):
            raise TypeError(f"{operation.name} of complex tensors is not defined; reduce torch.view_as_real(tensor)")
        tensor = torch.view_as_real(tensor)
    return tensor, Reduction(element_label(tensor), operation)


def timeout_of(options: object, default: timedelta) -> timedelta:
    """Return the time that a call's options allow, else the group's."""
    stated = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
    return stated if stated is not None and stated > timedelta(0) else default
