"""What c10d's option objects mean to this backend."""

from datetime import timedelta

import torch
from torch.distributed import ReduceOp

from coarse.torch.c10d.reduction import Operation, Reduction
from coarse.torch.c10d.staging import element_label

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
    """The operation of a ReduceOp, or of options that have one; TypeError for PREMUL_SUM, as from Gloo."""
    op = getattr(op, "reduceOp", op)
    for known, operation in _OPERATIONS:
        if op == known:
            return operation
    raise TypeError(f"Cannot use {op} with the coarse backend; scale the tensor and use ReduceOp.SUM")


def reduction_of(tensor: torch.Tensor, op: object) -> tuple[torch.Tensor, Reduction]:
    """A tensor as its elements combine, complex ones as pairs of reals, and how they do."""
    operation = operation_of(op)
    if tensor.is_complex():
        if operation not in (Operation.SUM, Operation.AVERAGE):
            raise TypeError(f"{operation.name} of complex tensors is not defined; reduce torch.view_as_real(tensor)")
        tensor = torch.view_as_real(tensor)
    return tensor, Reduction(element_label(tensor), operation)


def timeout_of(options: object, default: timedelta) -> timedelta:
    """The time that a call's options allow, else the group's."""
    stated = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
    return stated if stated is not None and stated > timedelta(0) else default
