# Pure: no MPI, threads, clock or environment.
"""Elements as they are stored, and as they are added: half types add in float32 and are rounded once."""

import numpy as np

from coarse.protocol.dtypes import DType

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
