# Pure: no MPI, threads, clock or environment.
"""Tensors of one reduction, their buckets, and the arrays in which TensorFlow gets sums."""

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
"""TensorFlow copies what is not aligned so."""


@dataclass(frozen=True)
class ReducedTensors:
    """Tensors of one reduction, in order; equal reductions use the same keys, one after the other."""

    op: Op
    wires: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]
    exact: tuple[int, ...] | None = None
    """Numbers of the tensors whose sums are wanted as they are, where the others are gradients that a strategy may send
    otherwise, or late; None: all."""

    @cached_property
    def fingerprint(self) -> int:
        """A number below 2^62 that tells reductions apart, equal on all ranks."""
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
        """Return the buckets of tensors, named "0", "1" and so on, in the order of backward: the last first."""
        sizes = [
            (str(number), int(wire), prod(shape))
            for number, (wire, shape) in enumerate(zip(self.wires, self.shapes, strict=True))
        ]
        prefix = f"tensorflow/{self.fingerprint:x}/"
        exact = frozenset(map(str, self.exact or ()))
        return plan_buckets(sizes, prefix=prefix, op=self.op, bucket_bytes=bucket_bytes, num_ranks=1, exact=exact)

    @cached_property
    def place(self) -> ProgramPlace:
        """Place that workers tell one another when they are about to reduce these."""
        kinds = [f"{wire.label}{list(shape)}" for wire, shape in zip(self.wires, self.shapes, strict=True)]
        return ProgramPlace("a sum" if self.op is Op.SUM else "a mean", tuple(kinds))


def members_of(plan: BucketPlan) -> tuple[int, ...]:
    """Return the numbers of a bucket's tensors."""
    return tuple(int(name) for name in plan.names)


def _counts(memories: list[np.ndarray]) -> list[int]:
    """Return references to each array: the list's, a few of this function's, and one of each view."""
    counts = []
    for memory in memories:
        counts.append(sys.getrefcount(memory))
    return counts


(_ALONE,) = _counts([np.empty(1)])
"""References to an array that has no other holder; interpreters differ in how they count."""


class ResultPool:
    """Arrays, by size, that TensorFlow takes over without a copy, and that are used again once it has let them go.

    A fresh large array costs a page fault per 4 KiB; a used one costs nothing. TensorFlow holds a reference to
    an array for as long as a tensor lives in its memory.
    """

    def __init__(self) -> None:
        self._memories: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, nbytes: int) -> np.ndarray:
        """Return (nbytes,) uint8, aligned, that no tensor lives in."""
        memories = self._memories[nbytes]
        counts = _counts(memories)
        if _ALONE in counts:
            return _aligned(memories[counts.index(_ALONE)])
        memories.append(np.empty(nbytes + _ALIGN_BYTES, np.uint8))
        return _aligned(memories[-1])

    def copy_of(self, array: np.ndarray) -> np.ndarray:
        """Return a contiguous array's values and shape in such memory."""
        copy = self.take(array.nbytes).view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def _aligned(memory: np.ndarray) -> np.ndarray:
    begin = -memory.ctypes.data % _ALIGN_BYTES
    return memory[begin : begin + len(memory) - _ALIGN_BYTES]
