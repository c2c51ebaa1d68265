"""How long memory devices, and the workers' all-reduce, take for so many bytes; measured on zeros, not on gradients."""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coarse.client.client import Client
from coarse.errors import CapacityError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.protocol.units import KIB, MIB

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.parallel.data.allreduce_stream import AllreduceStream

Wait = Callable[[], object]
"""Waits for all workers; after a StallError it may be called again."""
Seconds = list[float]

_SMALL_BYTES, _MIDDLE_BYTES = 16 * KIB, MIB
_TRIES = 3
"""Of each way and size; the fastest counts, and a first one doesn't."""


def sizes_up_to(largest_bytes: int) -> list[int]:
    """The bytes at which the ways are measured."""
    return sorted({min(nbytes, largest_bytes) for nbytes in (_SMALL_BYTES, _MIDDLE_BYTES, largest_bytes)})


def seconds_of_ways(
    client: Client, stream: "AllreduceStream", sizes: list[int], dtype: DType, prefix: str
) -> Generator[Wait, None, tuple[Seconds, Seconds]]:
    """By size the seconds of memory devices and of the workers, as this worker sees them.

    All workers go through this together; each size's scratch tensor is given back before the next one's is made.

    Raises:
        CapacityError: a device has no room for a scratch tensor (on all workers).
    """
    yield stream.open
    devices, workers = [], []
    for nbytes in sizes:
        shape = (max(1, nbytes // dtype.itemsize),)
        descriptor = Descriptor(f"{prefix}scratch/{nbytes}", int(dtype), int(Op.SUM), shape, 0)
        try:
            array = client.host_array(descriptor)
            devices.append((yield from _fastest_s(client, partial(_by_devices, client, descriptor, array))))
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
    clock, seconds = client.link.clock, []
    for _ in range(1 + _TRIES):
        began_s = clock.now_s()
        yield start()
        seconds.append(clock.now_s() - began_s)
    return min(seconds[1:])


def _by_devices(client: Client, descriptor: Descriptor, array: np.ndarray) -> Wait:
    return client.push_pull(descriptor, None, array).wait


def _by_workers(stream: "AllreduceStream", descriptor: Descriptor, array: np.ndarray) -> Wait:
    return stream.submit(descriptor, array).wait
