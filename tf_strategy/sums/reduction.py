# Pure: no MPI, threads, clock or environment.
"""Tensors of one reduction, their buckets, and the arrays in which TensorFlow gets the sums."""

import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from coarse.parallel.data.bucket_plan import BucketPlan, plan_buckets
from coarse.protocol.dtypes import DType, Op
from tf_strategy.sums.places import ProgramPlace, fingerprint_of

_ALIGN_BYTES = 64
"""Alignment below which TensorFlow copies an array."""


@dataclass(frozen=True)
class ReducedTensors:
    """Tensors of one reduction, in order. Equal reductions use the same keys, one after the other."""

    op: Op
    wires: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]
    exact: tuple[int, ...] | None = None
    """Numbers of the tensors whose sums are wanted unchanged; None: all. The others are gradients, which a strategy may
    send in another form, or late."""

    @cached_property
    def fingerprint(self) -> int:
        """Number below 2^62 that tells reductions apart, equal on all ranks."""
        said = (int(self.op), [int(wire) for wire in self.wires], self.shapes)
        return fingerprint_of(repr(said if self.exact is None else (*said, self.exact)).encode())

    @cached_property
    def each_nbytes(self) -> tuple[int, ...]:
        """Bytes of each tensor."""
        return tuple(wire.itemsize * prod(shape) for wire, shape in zip(self.wires, self.shapes, strict=True))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.each_nbytes)

    def plans(self, bucket_bytes: int) -> list[BucketPlan]:
        """Return the buckets of tensors, named "0", "1" and so on, in backward order: the last first."""
        sizes = [
            (str(number), int(wire), prod(shape))
            for number, (wire, shape) in enumerate(zip(self.wires, self.shapes, strict=True))
        ]
        prefix = f"tensorflow/{self.fingerprint:x}/"
        exact = frozenset(map(str, self.exact or ()))
        return plan_buckets(sizes, prefix=prefix, op=self.op, bucket_bytes=bucket_bytes, num_ranks=1, exact=exact)

    @cached_property
    def place(self) -> ProgramPlace:
        """Place that workers state when they are about to reduce these tensors."""
        kinds = [f"{wire.label}{list(shape)}" for wire, shape in zip(self.wires, self.shapes, strict=True)]
        return ProgramPlace("a sum" if self.op is Op.SUM else "a mean", tuple(kinds))


def members_of(plan: BucketPlan) -> tuple[int, ...]:
    """Return the numbers of a bucket's tensors."""
    return tuple(int(name) for name in plan.names)


def _counts(memories: list[np.ndarray]) -> list[int]:
    """Return the references to each array: the list's own, a few of this function's, and one for each view.

    Indirect views count, too.
    """
    counts = []
    for memory in memories:
        counts.append(sys.getrefcount(memory))
    return counts


(_ALONE,) = _counts([np.empty(1)])
"""References to an array with no other holder. Interpreters differ in how they count."""


class ResultPool:
    """Arrays, by size, that TensorFlow takes over without a copy and that are reused once it releases them.

    A fresh large array costs a page fault per 4 KiB; a used one costs nothing. TensorFlow holds a reference to
    an array for as long as a tensor lives in its memory.
    """

    def __init__(self) -> None:
        self._memories: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, nbytes: int) -> np.ndarray:
        """Return an aligned (nbytes,) uint8 array in which no tensor lives."""
        memories = self._memories[nbytes]
        counts = _counts(memories)
        if _ALONE in counts:
            return _aligned(memories[counts.index(_ALONE)])
        memories.append(np.empty(nbytes + _ALIGN_BYTES, np.uint8))
        return _aligned(memories[-1])

    def copy_of(self, array: np.ndarray) -> np.ndarray:
        """Copy a contiguous array's values and shape into an array of the pool."""
        copy = self.take(array.nbytes).view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def _aligned(memory: np.ndarray) -> np.ndarray:
    begin = -memory.ctypes.data % _ALIGN_BYTES
    return memory[begin : begin + len(memory) - _ALIGN_BYTES]
