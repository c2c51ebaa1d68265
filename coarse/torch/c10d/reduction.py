# Pure: no MPI, threads, clock or environment.
"""Combination of many ranks' elements: MPI's operation for each type, and the conversion after it."""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from coarse.protocol.dtypes import DType, narrowed, widen
from coarse.protocol.joint import CollectiveKind, Joint

Array = np.ndarray[Any, np.dtype[Any]]


class Operation(enum.IntEnum):
    """Reduction of c10d."""

    SUM = 0
    AVERAGE = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BIT_AND = 5
    BIT_OR = 6
    BIT_XOR = 7

    @property
    def is_bitwise(self) -> bool:
        """True if it is for integers alone."""
        return self in (Operation.BIT_AND, Operation.BIT_OR, Operation.BIT_XOR)


_HALF_TYPES = {"float16": DType.FLOAT16, "bfloat16": DType.BFLOAT16}
_STORAGE: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "bool": np.dtype(np.uint8),
    **{
        label: np.dtype(label)
        for label in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}
_OF_TRUTH = {
    Operation.SUM: Operation.MAX,
    Operation.PRODUCT: Operation.MIN,
}
"""Operation on truth values, each a byte of 0 or 1, for other operations."""


@dataclass(frozen=True)
class Reduction:
    """Operation on elements of one type.

    Half types travel and combine in float32 and are rounded once; truth values stay truth values. An average of
    integers is their sum, divided and rounded toward zero, as NCCL does it.

    Raises:
        TypeError: elements that cannot be combined so.
    """

    element: str
    """Type as `Statement` names it; complex tensors are reduced as their real view."""
    operation: Operation

    def __post_init__(self) -> None:
        if self.element not in _STORAGE:
            known = ", ".join(sorted(_STORAGE))
            raise TypeError(f"tensors of {self.element} cannot be reduced; convert to one of {known}")
        is_float = self.element in ("float32", "float64", *_HALF_TYPES)
        if self.operation.is_bitwise and is_float:
            raise TypeError(
                f"{self.operation.name} needs integers or truth values, tensors of {self.element} came; convert them"
            )
        if self.operation is Operation.AVERAGE and self.element == "bool":
            raise TypeError("truth values have no average; use ReduceOp.SUM (or) or PRODUCT (and), or convert")

    @property
    def storage(self) -> np.dtype[Any]:
        """Numpy type of the elements' bytes."""
        return _STORAGE[self.element]

    @property
    def wire_operation(self) -> Operation:
        """Operation on the way; an average is a sum that is divided at its end."""
        if self.element == "bool":
            return _OF_TRUTH.get(self.operation, self.operation)
        return Operation.SUM if self.operation is Operation.AVERAGE else self.operation

    @property
    def is_in_place(self) -> bool:
        """True if elements combine in the type that they have."""
        return self.element not in _HALF_TYPES

    @property
    def wire_itemsize(self) -> int:
        """Bytes of an element on the way."""
        return self.storage.itemsize if self.is_in_place else np.dtype(np.float32).itemsize

    def to_wire(self, array: Array) -> Array:
        """Return (n,) of the type that combines: the array itself, or the wider values of half types."""
        return array if self.is_in_place else widen(array, _HALF_TYPES[self.element])

    def wire_like(self, numel: int) -> Array:
        """Return an uninitialised (numel,) of the type that combines."""
        return np.empty(numel, self.storage if self.is_in_place else np.float32)

    def from_wire(self, combined: Array, out: Array, num_ranks: int) -> None:
        """Write the end result of `num_ranks` ranks' elements to `out` (n,), which may be `combined`."""
        if self.operation is Operation.AVERAGE:
            _divide(combined, num_ranks)
        if not self.is_in_place:
            out[:] = narrowed(combined, _HALF_TYPES[self.element])
        elif out is not combined:
            out[:] = combined


def combined(kind: CollectiveKind, array: Array, reduction: Reduction, root: int = -1) -> Joint:
    """Return the joint of a reduction, with its bytes as they travel."""
    num_elements = array.nbytes // reduction.storage.itemsize
    itemsize = reduction.wire_itemsize
    return Joint(kind, num_elements * itemsize, itemsize, root)


def _divide(values: Array, divisor: int) -> None:
    """Divide (n,) values in place; integers are rounded toward zero."""
    if values.dtype.kind == "f":
        values /= values.dtype.type(divisor)
        return
    is_rounded_up = (values < 0) & (values % divisor != 0)
    values //= divisor
    values += is_rounded_up.astype(values.dtype)
