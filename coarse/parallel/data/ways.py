"""Times of memory devices, and of the workers' all-reduce, for so many bytes.

They are measured on zeros, not on gradients.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from coarse.client.client import Client
from coarse.errors import CapacityError
from coarse.gpu.available import gpus
from coarse.gpu.interface import is_on_gpu
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.protocol.units import KIB, MIB

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.parallel.data.allreduce_stream import AllreduceStream

Wait = Callable[[], object]
"""Function that waits for all workers; after a StallError it may be called again."""
Seconds = list[float]

_SMALL_BYTES, _MIDDLE_BYTES = 16 * KIB, MIB
_TRIES = 3
"""Number of measurements of each way and size; the fastest counts, and a first one doesn't."""


def sizes_up_to(largest_bytes: int) -> list[int]:
    """Return the bytes at which the ways are measured."""
    return sorted({min(nbytes, largest_bytes) for nbytes in (_SMALL_BYTES, _MIDDLE_BYTES, largest_bytes)})


def seconds_of_ways(
    client: Client, stream: "AllreduceStream", sizes: list[int], dtype: DType, prefix: str, gpu: int | None = None
) -> Generator[Wait, None, tuple[Seconds, Seconds]]:
    """Measure, by size, the seconds of memory devices and of the workers, as this worker sees them.

    All workers go through this together; each size's scratch tensor is given back before the next one's is made. It is
    in device memory, or on the `gpu` of the gradients: then copies to the host and back count.

    Raises:
        CapacityError: a device has no room for a scratch tensor (on all workers).
    """
    yield stream.open
    devices, workers = [], []
    for nbytes in sizes:
        shape = (max(1, nbytes // dtype.itemsize),)
        descriptor = Descriptor(f"{prefix}scratch/{nbytes}", int(dtype), int(Op.SUM), shape, 0)
        try:
            array = client.host_array(descriptor) if gpu is None else _scratch_on(gpu, shape, dtype)
            copied = None if gpu is None else array  # or it lies in device memory
            devices.append((yield from _fastest_s(client, partial(_by_devices, client, descriptor, array, copied))))
        except CapacityError:
            _forget(client, descriptor)
            raise
        workers.append((yield from _fastest_s(client, partial(_by_workers, stream, descriptor, array))))
        _forget(client, descriptor)
    return devices, workers


def _forget(client: Client, descriptor: Descriptor) -> None:
    client.deregister(descriptor.name)
    client.counters.pop(descriptor.name, None)  # it is no gradient


def _fastest_s(client: Client, start: Callable[[], Wait]) -> Generator[Wait, None, float]:
    clock, seconds = client.link.job_clock, []
    for _ in range(1 + _TRIES):
        began_s = clock.now_s()
        yield start()
        seconds.append(clock.now_s() - began_s)
    return min(seconds[1:])


def _by_devices(client: Client, descriptor: Descriptor, array: np.ndarray, copied: np.ndarray | None) -> Wait:
    return _until_landed(client.push_pull(descriptor, copied, array).wait, array)


def _by_workers(stream: "AllreduceStream", descriptor: Descriptor, array: np.ndarray) -> Wait:
    return _until_landed(stream.submit(descriptor, array).wait, array)


def _scratch_on(gpu: int, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return zeros on a GPU; on the host if that has no room, so that all workers act equally."""
    try:
        array = gpus().empty(gpu, shape, dtype.storage)
    except CapacityError:
        return np.zeros(shape, dtype.storage)
    gpus().current_stream(gpu).arrays.zero(array)
    return cast(np.ndarray, array)


def _until_landed(wait: Wait, array: np.ndarray) -> Wait:
    """Return a wait that ends when a result is on its GPU, not when a stream is to wait for it."""

    def landed() -> None:
        wait()
        if is_on_gpu(array):
            gpus().current_stream(gpus().gpu_of(array)).record().wait()

    return landed
