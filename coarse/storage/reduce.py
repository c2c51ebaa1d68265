# Pure: no MPI, threads, clock or environment.
"""Sync cores: the near-memory adders (COARSE IV-A).

`reduce` combines contributions in one pass over the bytes, block by block so that a block's sum is
written back while it is still in the cache. `RingBuffers` are the three buffers of a ring: LocalBuf
holds a shard's running result in the accumulator type, SendBuf and RecvBuf one chunk each.
"""

from collections.abc import Sequence

import numpy as np

from coarse.protocol.dtypes import DType, Op

_BLOCK_BYTES = 256 * 1024
_AS_THEY_COME = np.errstate(over="ignore", invalid="ignore")
"""Infinities and NaNs are results like others (loss scaling looks for them), no reason to warn."""
_COMBINE = {Op.SUM: np.add, Op.AVERAGE: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum}


@_AS_THEY_COME
def reduce(
    sources: Sequence[np.ndarray],  # (n,) storage type each, may be empty
    targets: Sequence[np.ndarray],  # (n,) storage type each, overwritten; may be the sources
    dtype: DType,
    op: Op,
    divisor: int,
) -> None:
    """Write op(sources) / divisor into every target; zeros where there is no source."""
    if not targets:
        return
    if not sources:
        for target in targets:
            target[:] = 0
        return
    if len(sources) == 1 and divisor == 1:
        for target in targets:
            if not np.shares_memory(target[:1], sources[0][:1]):
                target[:] = sources[0]
        return
    step = _BLOCK_BYTES // dtype.itemsize
    if dtype.accumulator == dtype.storage:
        _reduce_in_place(sources, targets, op, divisor, step)
    else:
        _reduce_widened(sources, targets, dtype, op, divisor, step)


def _reduce_in_place(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], op: Op, divisor: int, step: int
) -> None:
    """The first target may be the first source: each block is read before it is written."""
    combine = _COMBINE[op]
    total, others = targets[0], targets[1:]
    first, addends = sources[0], sources[1:]
    for begin in range(0, len(first), step):
        end = begin + step
        block, running = total[begin:end], first[begin:end]
        for addend in addends:
            combine(running, addend[begin:end], out=block)
            running = block
        if divisor != 1 or running is not block:
            scale(running, divisor, out=block)
        for other in others:
            other[begin:end] = block


def _reduce_widened(
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    dtype: DType,
    op: Op,
    divisor: int,
    step: int,
) -> None:
    combine = _COMBINE[op]
    for begin in range(0, len(sources[0]), step):
        end = begin + step
        total = widen(sources[0][begin:end], dtype)
        for source in sources[1:]:
            combine(total, widen(source[begin:end], dtype), out=total)
        scale(total, divisor, out=total)
        narrow = narrowed(total, dtype)
        for target in targets:
            target[begin:end] = narrow


@_AS_THEY_COME
def accumulate(total: np.ndarray, addend: np.ndarray, op: Op) -> None:
    """Write op(total, addend) into `total`; both (n,) in the accumulator type."""
    _COMBINE[op](total, addend, out=total)


def scale(values: np.ndarray, divisor: int, out: np.ndarray) -> None:
    """out = values / divisor; exact for powers of two by multiplying."""
    if divisor == 1:
        if out is not values:
            out[:] = values
    elif divisor & (divisor - 1) == 0:
        np.multiply(values, values.dtype.type(1.0 / divisor), out=out)
    else:
        np.divide(values, values.dtype.type(divisor), out=out)


def widen(values: np.ndarray, dtype: DType) -> np.ndarray:
    """A new array in the accumulator type."""
    if dtype is DType.BFLOAT16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(dtype.accumulator)


@_AS_THEY_COME
def narrowed(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The values rounded once to the storage type, to nearest, ties to even."""
    if dtype is not DType.BFLOAT16:
        return values.astype(dtype.storage)
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    quiet_nan = (bits >> 16) | 0x0040
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def identity(num_elements: int, dtype: DType, op: Op) -> np.ndarray:
    """What contributes nothing, not even a sign: -0.0 for sums, or the extremes for min and max."""
    accumulator = dtype.accumulator
    if op in (Op.SUM, Op.AVERAGE):
        return np.full(num_elements, -0.0, accumulator)
    if accumulator.kind == "f":
        extreme = np.inf if op is Op.MIN else -np.inf
        return np.full(num_elements, extreme, accumulator)
    limits = np.iinfo(accumulator)
    return np.full(num_elements, limits.max if op is Op.MIN else limits.min, accumulator)


@_AS_THEY_COME
def reduce_local(
    sources: Sequence[np.ndarray], num_elements: int, dtype: DType, op: Op
) -> np.ndarray:
    """A new LocalBuf: the local contributions combined in the accumulator type."""
    if not sources:
        return identity(num_elements, dtype, op)
    total = widen(sources[0], dtype)
    for source in sources[1:]:
        _COMBINE[op](total, widen(source, dtype), out=total)
    return total
