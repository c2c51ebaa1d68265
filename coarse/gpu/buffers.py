"""Pinned host memory and memory of one GPU that is used again: CUDA takes long to give either."""

from collections import defaultdict
from typing import Any

import numpy as np

from coarse.gpu.interface import GpuArray, Gpus

_LEAST_BYTES = 1 << 16


class Lent:
    """Buffers of one use; `give_back` frees them for others."""

    def __init__(self, buffers: "GpuBuffers") -> None:
        self._buffers = buffers
        self._on_host: list[np.ndarray] = []
        self._on_gpu: list[GpuArray] = []

    def on_host(self, num_elements: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialised array of pinned host memory, (num_elements,)."""
        nbytes = num_elements * dtype.itemsize
        self._on_host.append(self._buffers.take_on_host(nbytes))
        return self._on_host[-1][:nbytes].view(dtype)

    def on_gpu(self, num_elements: int, dtype: np.dtype[Any]) -> GpuArray:
        """Return an uninitialised array of the GPU's memory, (num_elements,)."""
        nbytes = num_elements * dtype.itemsize
        self._on_gpu.append(self._buffers.take_on_gpu(nbytes))
        return self._on_gpu[-1][:nbytes].view(dtype)

    def give_back(self) -> None:
        """Give the buffers back, which are not read or written any more."""
        self._buffers.give_back(self._on_host, self._on_gpu)
        self._on_host, self._on_gpu = [], []


class GpuBuffers:
    """Free buffers by their length, a power of two."""

    def __init__(self, gpus: Gpus, gpu: int) -> None:
        self._gpus = gpus
        self._gpu = gpu
        self._free_on_host: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        self._free_on_gpu: defaultdict[int, list[GpuArray]] = defaultdict(list)

    def lend(self) -> Lent:
        """Return an object by which one use takes buffers."""
        return Lent(self)

    def take_on_host(self, nbytes: int) -> np.ndarray:
        """Return at least `nbytes` bytes of pinned host memory, uint8."""
        length = _length(nbytes)
        free = self._free_on_host[length]
        return free.pop() if free else self._gpus.pinned(length)

    def take_on_gpu(self, nbytes: int) -> GpuArray:
        """Return at least `nbytes` bytes of the GPU's memory, uint8."""
        length = _length(nbytes)
        free = self._free_on_gpu[length]
        return free.pop() if free else self._gpus.empty(self._gpu, (length,), np.dtype(np.uint8))

    def give_back(self, on_host: list[np.ndarray], on_gpu: list[GpuArray]) -> None:
        """Free buffers that were taken."""
        for array in on_host:
            self._free_on_host[array.nbytes].append(array)
        for buffer in on_gpu:
            self._free_on_gpu[buffer.nbytes].append(buffer)


def _length(nbytes: int) -> int:
    return max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
