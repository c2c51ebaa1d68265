"""Element types and operations that tensors may have on the wire, as they are stored and as they are added.

Half types add in float32 and are rounded once.
"""

import enum
from typing import Any, Protocol

import numpy as np


class Op(enum.IntEnum):
    """Operation that combines the contributions of all workers."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3


class DType(enum.IntEnum):
    """An element type; the value is what stands in records."""

    FLOAT16 = 0
    BFLOAT16 = 1
    FLOAT32 = 2
    FLOAT64 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type of the bytes; bfloat16 is kept as uint16, which numpy knows."""
        return STORAGE[self]

    @property
    def accumulator(self) -> np.dtype[Any]:
        """The type in which sums are carried: half types add in float32 and round once."""
        return _ACCUMULATOR.get(self, STORAGE[self])

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return STORAGE[self].itemsize

    @property
    def is_integer(self) -> bool:
        """True if an average would have to round."""
        return self in (DType.INT32, DType.INT64, DType.UINT8)

    @property
    def label(self) -> str:
        """The name that frameworks print, such as `float32`."""
        return self.name.lower()


STORAGE: dict[int, np.dtype[Any]] = {
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(np.uint16),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64),
    DType.UINT8: np.dtype(np.uint8),
}
"""Numpy type of the bytes, by type or by the number that stands in records."""
_ACCUMULATOR: dict[DType, np.dtype[Any]] = {
    DType.FLOAT16: np.dtype(np.float32),
    DType.BFLOAT16: np.dtype(np.float32),
}
_FROM_NUMPY = {
    kind.storage: kind for kind in DType if kind is not DType.BFLOAT16
}


class Typed(Protocol):
    """An array of numpy or of CuPy."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        ...


def dtype_of(array: Typed) -> DType:
    """Return the wire type of a numpy array; TypeError if there is none."""
    found = _FROM_NUMPY.get(array.dtype)
    if found is None:
        known = ", ".join(sorted(kind.label for kind in _FROM_NUMPY.values()))
        raise TypeError(f"arrays of {array.dtype} cannot be synchronised; convert to one of {known}")
    return found


_BLOCK_BYTES = 256 * 1024
"""Block of a conversion, whose scratch then stays in the cache."""
AS_THEY_COME = np.errstate(over="ignore", invalid="ignore")
"""Infinities and NaNs are results like others (loss scaling looks for them), no reason to warn."""


def widened(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the values in the accumulator type; the same array if they are of it."""
    return values if dtype.accumulator == dtype.storage else widen(values, dtype)


def widen(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Return a new array in the accumulator type."""
    if dtype is DType.BFLOAT16:
        wide: np.ndarray = np.left_shift(values, np.uint32(16), dtype=np.uint32)
        return wide.view(np.float32)
    return values.astype(dtype.accumulator)


@AS_THEY_COME
def narrowed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the values, (n,), rounded once to the storage type, to nearest, ties to even."""
    if dtype is not DType.BFLOAT16:
        return values.astype(dtype.storage)
    rounded = np.empty(len(values), np.uint16)
    step = _BLOCK_BYTES // 8
    scratch = np.empty(min(step, len(values)), np.uint32)
    for begin in range(0, len(values), step):
        block, target = values[begin : begin + step], rounded[begin : begin + step]
        _round_to_bfloat16(block, scratch[: len(block)], target)
    return rounded


def _round_to_bfloat16(values: np.ndarray, scratch: np.ndarray, out: np.ndarray) -> None:
    """Write (k,) float32 as bfloat16 to `out`, (k,) uint16, by way of (k,) uint32."""
    bits = values.view(np.uint32)
    np.right_shift(bits, 16, out=scratch)
    np.bitwise_and(scratch, 1, out=scratch)
    np.add(scratch, 0x7FFF, out=scratch)
    np.add(scratch, bits, out=scratch)
    out[:] = scratch.view(np.uint16)[1::2]
    if np.isnan(values.max()):
        is_nan = np.isnan(values)
        out[is_nan] = (bits[is_nan] >> 16) | 0x0040
