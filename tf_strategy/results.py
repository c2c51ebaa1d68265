"""Arrays that TensorFlow takes over without a copy, and that are used again once it has let them go."""

import sys
from collections import defaultdict

import numpy as np

_ALIGN_BYTES = 64
"""TensorFlow copies what is not aligned so."""
_OURS = 3
"""References to an array that nobody else holds: the list's, the loop's and the call's."""


class ResultPool:
    """Memory for results, by size. A fresh large array costs a page fault per 4 KiB; a used one costs nothing.

    TensorFlow holds a reference to an array for as long as a tensor lives in its memory.
    """

    def __init__(self) -> None:
        self._memories: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8, aligned, that no tensor lives in."""
        memories = self._memories[nbytes]
        for memory in memories:  # a view refers to what owns its memory, however many views lie between
            if sys.getrefcount(memory) == _OURS:
                return _aligned(memory)
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
