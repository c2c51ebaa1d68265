"""Gradients of a worker in an emulated job: real arrays of the real shapes, which memory devices sum."""

from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.gpu.available import gpus
from coarse.gpu.interface import AnyArray
from coarse.protocol import override
from coarse.protocol.dtypes import DType, narrowed
from coarse.protocol.records import Descriptor
from coarse.storage.region import DeviceMemory


def stored(value: float, descriptor: Descriptor) -> np.generic:
    """Return a value as arrays of a gradient's type hold it."""
    held: np.generic = narrowed(np.array([value], np.float32), DType(descriptor.dtype))[0]
    return held


class Gradients:
    """Gradients in device memory, as those of a model whose gradients are born there."""

    def __init__(self, client: Client, descriptors: Sequence[Descriptor]) -> None:
        self._client = client
        self._descriptors = descriptors
        self._arrays = [self._array(descriptor) for descriptor in descriptors]

    def fill(self, value: float) -> None:
        """Fill all gradients with this worker's contribution."""
        for descriptor, array in zip(self._descriptors, self._arrays, strict=True):
            array[...] = stored(value, descriptor)

    def push(self, position: int) -> Handle:
        """Push a gradient that is ready."""
        return self._client.push_pull(self._descriptors[position], None, self._arrays[position])

    def values(self, position: int) -> np.ndarray:
        """Return the present values of a gradient."""
        return self._arrays[position]

    def close(self) -> None:
        """Give their memory back."""
        for descriptor in self._descriptors:
            self._client.deregister(descriptor.name)

    def _array(self, descriptor: Descriptor) -> np.ndarray:
        return self._client.host_array(descriptor)


class GradientsOnGpu(Gradients):
    """Gradients on a worker's GPU, from which streams copy them to devices and back."""

    def __init__(self, client: Client, descriptors: Sequence[Descriptor], gpu: int) -> None:
        self._gpu = gpu
        self._on_gpu: list[AnyArray] = []
        super().__init__(client, descriptors)

    @override
    def fill(self, value: float) -> None:
        stream = gpus().current_stream(self._gpu)
        for descriptor, host, array in zip(self._descriptors, self._arrays, self._on_gpu, strict=True):
            host[...] = stored(value, descriptor)
            stream.arrays.copy(array, host)
        stream.record().wait()

    @override
    def push(self, position: int) -> Handle:
        array: np.ndarray = self._on_gpu[position]  # type: ignore[assignment]  # the client takes a GPU's arrays too
        return self._client.push_pull(self._descriptors[position], array, array)

    def values(self, position: int) -> np.ndarray:
        """Return a copy of a gradient's present values on the host."""
        return self._client.copies.on_host(self._on_gpu[position])

    def _array(self, descriptor: Descriptor) -> np.ndarray:
        host = np.empty(descriptor.shape, DType(descriptor.dtype).storage)
        self._on_gpu.append(gpus().empty(self._gpu, host.shape, host.dtype))
        return host


class WorkerSums:
    """Sums by the workers: each reads all others' contributions, in memory that all have mapped.

    [Note: two of each] A worker may be in its next iteration while another still reads. It cannot be in the one after
    that: there it would have waited for a sum to which the other has contributed. So contributions take turns at two
    places.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        client: Client,
        memories: Mapping[int, DeviceMemory],
        descriptors: Sequence[Descriptor],
    ) -> None:
        """Map all workers' arrays, as a collective of the workers."""
        self._client = client
        self._arrays: list[list[list[np.ndarray]]] = []
        """Arrays by turn, worker and place: (n,) of the type in which workers sum."""
        self._sums = [np.empty(each.num_elements, _accumulator(each)) for each in descriptors]
        self._worker = comm.Get_rank()
        self._num_filled = 0
        nbytes = sum(array.nbytes for array in self._sums)
        self._offset: int | None = None
        if nbytes:
            self._offset, _ = client.allocate(0, 2 * nbytes)
            offsets = np.empty(comm.Get_size(), np.int64)
            comm.Allgather(np.array([self._offset], np.int64), offsets)
            for turn in range(2):
                begins = [int(offset) + turn * nbytes for offset in offsets]
                self._arrays.append([_cut(memories[0].view(begin, nbytes), descriptors) for begin in begins])

    def fill(self, value: float) -> None:
        """Contribute a value to all of them, in the turn of the next `take`."""
        if self._arrays:
            for array in self._arrays[self._num_filled % 2][self._worker]:
                array.fill(value)

    def take(self, places: Sequence[int]) -> None:
        """Sum these places, to which all workers have contributed; see [Note: two of each]."""
        if not places:
            return
        turn = self._arrays[self._num_filled % 2]
        self._num_filled += 1
        for place in places:
            np.sum([of_worker[place] for of_worker in turn], axis=0, out=self._sums[place])

    def values(self, place: int) -> np.ndarray:
        """Return the sum of a place."""
        return self._sums[place]

    def close(self) -> None:
        """Give the memory back."""
        if self._offset is not None:
            self._client.free(0, self._offset)


def _accumulator(descriptor: Descriptor) -> np.dtype:
    return DType(descriptor.dtype).accumulator


def _cut(region: np.ndarray, descriptors: Sequence[Descriptor]) -> list[np.ndarray]:
    """Return (nbytes,) uint8 as one (n,) array for each descriptor."""
    arrays, begin = [], 0
    for descriptor in descriptors:
        nbytes = descriptor.num_elements * _accumulator(descriptor).itemsize
        arrays.append(region[begin : begin + nbytes].view(_accumulator(descriptor)))
        begin += nbytes
    return arrays
