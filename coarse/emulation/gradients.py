"""A worker's gradients in an emulated job: real arrays of the real shapes, which memory devices sum."""

from collections.abc import Sequence

import numpy as np

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.gpu.available import gpus
from coarse.gpu.interface import AnyArray
from coarse.protocol.dtypes import DType
from coarse.protocol.halves import narrowed
from coarse.protocol.records import Descriptor


def stored(value: float, descriptor: Descriptor) -> np.generic:
    """A value as arrays of a gradient's type hold it."""
    held: np.generic = narrowed(np.array([value], np.float32), DType(descriptor.dtype))[0]
    return held


class Gradients:
    """In device memory, as those of a model whose gradients are born there."""

    def __init__(self, client: Client, descriptors: Sequence[Descriptor]) -> None:
        self._client = client
        self._descriptors = descriptors
        self._arrays = [self._array(descriptor) for descriptor in descriptors]

    def fill(self, value: float) -> None:
        """What this worker contributes to all of them."""
        for descriptor, array in zip(self._descriptors, self._arrays, strict=True):
            array[...] = stored(value, descriptor)

    def push(self, position: int) -> Handle:
        """A gradient is ready."""
        return self._client.push_pull(self._descriptors[position], None, self._arrays[position])

    def values(self, position: int) -> np.ndarray:
        """What a gradient is now."""
        return self._arrays[position]

    def close(self) -> None:
        """Give their memory back."""
        for descriptor in self._descriptors:
            self._client.deregister(descriptor.name)

    def _array(self, descriptor: Descriptor) -> np.ndarray:
        return self._client.host_array(descriptor)


class GradientsOnGpu(Gradients):
    """On a worker's GPU, from which streams copy them to devices and back."""

    def __init__(self, client: Client, descriptors: Sequence[Descriptor], gpu: int) -> None:
        self._gpu = gpu
        self._on_gpu: list[AnyArray] = []
        super().__init__(client, descriptors)

    def fill(self, value: float) -> None:
        """See Gradients."""
        stream = gpus().current_stream(self._gpu)
        for descriptor, host, array in zip(self._descriptors, self._arrays, self._on_gpu, strict=True):
            host[...] = stored(value, descriptor)
            stream.arrays.copy(array, host)
        stream.record().wait()

    def push(self, position: int) -> Handle:
        """See Gradients."""
        array: np.ndarray = self._on_gpu[position]  # type: ignore[assignment]  # the client takes a GPU's arrays too
        return self._client.push_pull(self._descriptors[position], array, array)

    def values(self, position: int) -> np.ndarray:
        """See Gradients: a copy of it on the host."""
        return self._client.copies.on_host(self._on_gpu[position])

    def _array(self, descriptor: Descriptor) -> np.ndarray:
        host = np.empty(descriptor.shape, DType(descriptor.dtype).storage)
        self._on_gpu.append(gpus().empty(self._gpu, host.shape, host.dtype))
        return host
