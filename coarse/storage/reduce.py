# Pure: no MPI, threads, clock or environment.
"""Sync cores: the near-memory adders (COARSE IV-A).

`reduce` combines contributions in one pass over the bytes, block by block so that a block's sum is written back while
it is still in the cache. `RingBuffers` are the three buffers of a ring: LocalBuf holds a shard's running result in the
accumulator type, SendBuf and RecvBuf one chunk each.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from coarse.protocol.dtypes import AS_THEY_COME, DType, Op, narrowed, widen, widened

_BLOCK_BYTES = 256 * 1024
_BLOCK_ELSEWHERE_BYTES = 512 * 1024
"""Bytes of a block of elements elsewhere, whose every read and write is a system call."""
_COMBINE = {Op.SUM: np.add, Op.AVERAGE: np.add, Op.MIN: np.minimum, Op.MAX: np.maximum}


class Elsewhere(Protocol):
    """Elements outside of this process's memory, read and written by blocks; LentArray is such."""

    def __len__(self) -> int: ...

    def is_at(self, other: object) -> bool:
        """Return whether another array is the same memory."""
        ...

    def read(self, begin: int, end: int, into: np.ndarray) -> np.ndarray:
        """Return elements [begin, end), in the first of `into`."""
        ...

    def write(self, begin: int, values: np.ndarray) -> None:
        """Put values at the elements from `begin` on."""
        ...


Elements = np.ndarray | Elsewhere
"""Elements, (n,) of the storage type."""


@AS_THEY_COME
def reduce(
    sources: Sequence[Elements],  # (n,) storage type each, may be empty
    targets: Sequence[Elements],  # (n,) storage type each, overwritten; may be the sources
    dtype: DType,
    op: Op,
    divisor: int,
) -> None:
    """Write op(sources) / divisor into every target; zeros where there is no source."""
    if not targets:
        return
    is_elsewhere = _any_elsewhere((*sources, *targets))
    step = (_BLOCK_ELSEWHERE_BYTES if is_elsewhere else _BLOCK_BYTES) // dtype.itemsize
    if not sources:
        _fill(targets, dtype, step)
    elif len(sources) == 1 and divisor == 1:
        _copy(sources[0], [target for target in targets if not _is_same(target, sources[0])], dtype, step)
    elif dtype.accumulator == dtype.storage and not is_elsewhere:
        _reduce_in_place(sources, targets, op, divisor, step)  # type: ignore[arg-type]
    else:
        _reduce_by_blocks(sources, targets, dtype, op, divisor, step)


def _any_elsewhere(elements: Sequence[Elements]) -> bool:
    return any(type(one) is not np.ndarray for one in elements)


def _is_same(one: Elements, other: Elements) -> bool:
    """Return whether two are the same memory."""
    if not isinstance(one, np.ndarray):
        return one.is_at(other)
    return isinstance(other, np.ndarray) and np.shares_memory(one[:1], other[:1])


def read(source: Elements, begin: int, end: int, scratch: np.ndarray) -> np.ndarray:
    """Return elements [begin, end) of a source: in place, or in the first of `scratch`."""
    return source[begin:end] if isinstance(source, np.ndarray) else source.read(begin, end, scratch)


def write(target: Elements, begin: int, values: np.ndarray) -> None:
    """Write values, (k,) of the storage type, to elements [begin, begin + k) of a target."""
    if isinstance(target, np.ndarray):
        target[begin : begin + len(values)] = values
    else:
        target.write(begin, values)


def _fill(targets: Sequence[Elements], dtype: DType, step: int) -> None:
    zeros = np.zeros(min(step, len(targets[0])), dtype.storage)
    for target in targets:
        for begin in range(0, len(target), step):
            write(target, begin, zeros[: len(target) - begin])


def _copy(source: Elements, targets: Sequence[Elements], dtype: DType, step: int) -> None:
    scratch = np.empty(min(step, len(source)), dtype.storage)
    for begin in range(0, len(source) if targets else 0, step):
        block = read(source, begin, min(begin + step, len(source)), scratch)
        for target in targets:
            write(target, begin, block)


def _reduce_in_place(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], op: Op, divisor: int, step: int
) -> None:
    """Reduce where the first target may be the first source: each block is read before it is written."""
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


def _reduce_by_blocks(
    sources: Sequence[Elements],
    targets: Sequence[Elements],
    dtype: DType,
    op: Op,
    divisor: int,
    step: int,
) -> None:
    """Reduce sums that need separate room.

    They are in another type than that of the bytes, or of bytes that lie elsewhere.
    """
    combine = _COMBINE[op]
    num_elements = len(sources[0])
    scratch = np.empty(min(step, num_elements), dtype.storage)
    sums = np.empty(len(scratch), dtype.accumulator)
    for begin in range(0, num_elements, step):
        end = min(begin + step, num_elements)
        total = sums[: end - begin]
        running = widened(read(sources[0], begin, end, sums if sums.dtype == scratch.dtype else scratch), dtype)
        for source in sources[1:]:
            running = combine(running, widened(read(source, begin, end, scratch), dtype), out=total)
        scale(running, divisor, out=total)
        block = total if dtype.accumulator == dtype.storage else narrowed(total, dtype)
        for target in targets:
            write(target, begin, block)


@AS_THEY_COME
def accumulate(total: np.ndarray, addend: np.ndarray, op: Op) -> None:
    """Write op(total, addend) into `total`; both (n,) in the accumulator type."""
    _COMBINE[op](total, addend, out=total)


def scale(values: np.ndarray, divisor: int, out: np.ndarray) -> None:
    """Write values / divisor to `out`; powers of two are exact by multiplying."""
    if divisor == 1:
        if out is not values:
            out[:] = values
    elif divisor & (divisor - 1) == 0:
        np.multiply(values, values.dtype.type(1.0 / divisor), out=out)
    else:
        np.divide(values, values.dtype.type(divisor), out=out)


def identity(num_elements: int, dtype: DType, op: Op) -> np.ndarray:
    """Return values that contribute nothing, not even a sign: -0.0 for sums, or the extremes for min, max."""
    accumulator = dtype.accumulator
    if op in (Op.SUM, Op.AVERAGE):
        return np.full(num_elements, -0.0, accumulator)
    if accumulator.kind == "f":
        extreme = np.inf if op is Op.MIN else -np.inf
        return np.full(num_elements, extreme, accumulator)
    limits = np.iinfo(accumulator)
    return np.full(num_elements, limits.max if op is Op.MIN else limits.min, accumulator)


@AS_THEY_COME
def reduce_local(
    sources: Sequence[Elements], num_elements: int, dtype: DType, op: Op
) -> np.ndarray:
    """Return a new LocalBuf: the local contributions combined in the accumulator type."""
    if not sources:
        return identity(num_elements, dtype, op)
    scratch = np.empty(num_elements if _any_elsewhere(sources) else 0, dtype.storage)
    total = widen(read(sources[0], 0, num_elements, scratch), dtype)
    for source in sources[1:]:
        _COMBINE[op](total, widen(read(source, 0, num_elements, scratch), dtype), out=total)
    return total
