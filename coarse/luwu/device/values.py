"""Values that were pushed, at their places in a device's memory."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from coarse.luwu.steps import PlaceOfValues
from coarse.protocol.dtypes import DType, widened
from coarse.storage.region import DeviceMemory

Made = TypeVar("Made")


def values_at(memory: DeviceMemory, place: PlaceOfValues, num_elements: int) -> np.ndarray:
    """Return the values, (n,) of the storage type; a copy where they wrap around the end of a ring."""
    dtype = DType(place.dtype)
    nbytes = num_elements * dtype.itemsize
    ring = place.ring
    here = nbytes if ring is None else ring.offset + ring.num_packets * ring.packet_bytes - place.offset
    if ring is None or nbytes <= here:
        return memory.view(place.offset, nbytes).view(dtype.storage)
    parts = memory.view(place.offset, here), memory.view(ring.offset, nbytes - here)
    return np.concatenate(parts).view(dtype.storage)


def add_values(
    memory: DeviceMemory,
    places: Sequence[PlaceOfValues],
    num_elements: int,
    add: Callable[[list[np.ndarray]], Made],
) -> Made:
    """Return the result of `add` on the values, (n,) float32 each; leave zeros where a place wants them."""
    given = [values_at(memory, place, num_elements) for place in places]
    made = add([widened(values, DType(place.dtype)) for values, place in zip(given, places, strict=True)])
    for values, place in zip(given, places, strict=True):
        if place.is_zeroed:
            values[:] = 0
    return made
