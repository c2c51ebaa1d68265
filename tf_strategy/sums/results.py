"""Arrays that TensorFlow takes over without a copy, and that are used again once it has let them go."""

import sys
from collections import defaultdict

import numpy as np

_ALIGN_BYTES = 64
"""TensorFlow copies what is not aligned so."""


def _counts(memories: list[np.ndarray]) -> list[int]:
    """References to each array: the list's own, a few of this function's, and one of each view, however indirect."""
    counts = []
    for memory in memories:
        counts.append(sys.getrefcount(memory))
    return counts


(_ALONE,) = _counts([np.empty(1)])
"""References to an array that nobody else holds; interpreters differ in how they count."""


class ResultPool:
    """Memory for results, by size. A fresh large array costs a page fault per 4 KiB; a used one costs nothing.

    TensorFlow holds a reference to an array for as long as a tensor lives in its memory.
    """

    def __init__(self) -> None:
        self._memories: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8, aligned, that no tensor lives in."""
        memories = self._memories[nbytes]
        counts = _counts(memories)
        if _ALONE in counts:
            return _aligned(memories[counts.index(_ALONE)])
        memories.append(np.empty(nbytes + _ALIGN_BYTES, np.uint8))
        return _aligned(memories[-1])

    def copy_of(self, array: np.ndarray) -> np.ndarray:
        """A contiguous array's values and shape in such memory."""
        copy = self.take(array.nbytes).view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def _aligned(memory: np.ndarray) -> np.ndarray:
    begin = -memory.ctypes.data % _ALIGN_BYTES
    return memory[begin : begin + len(memory) - _ALIGN_BYTES]
