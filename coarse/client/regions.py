"""Regions of a worker's keys in device memory, and the copies to and from there."""

from collections.abc import Mapping

import numpy as np

from coarse.client.protocol import ClientKey, KeyPhase
from coarse.gpu.available import gpus
from coarse.gpu.interface import address_of, is_on_gpu
from coarse.protocol.dtypes import STORAGE
from coarse.protocol.records import Descriptor
from coarse.storage.region import DeviceMemory


class KeyRegions:
    """Regions of this worker as arrays, with counts of bytes that are copied to and from each device."""

    def __init__(self, memories: Mapping[int, DeviceMemory]) -> None:
        self._memories = memories
        self.arrays: dict[int, np.ndarray] = {}
        """Key -> the array that `array` made of its region, of which any other array that lies there is a view."""
        self.host_copies: dict[int, np.ndarray] = {}
        """Key -> what stands on the host for its region on a GPU."""
        self._flat: dict[int, tuple[ClientKey, np.ndarray]] = {}
        self._link_bytes: dict[tuple[str, int], float] = {}

    def view(self, state: ClientKey) -> np.ndarray:
        """Return a key's region, flat, in the type in which it is stored."""
        known = self._flat.get(state.key)
        if known is not None and known[0] is state:
            return known[1]
        memory = self._memories[state.device]
        flat = memory.view(state.offset, state.nbytes).view(STORAGE[state.descriptor.dtype])
        self._flat[state.key] = state, flat
        return flat

    def array(self, state: ClientKey, *, is_new: bool = False) -> np.ndarray:
        """Return a key's region in its shape; zeros if it was never written. `is_new`: not even by its results."""
        region = self.arrays.get(state.key)
        if region is None:
            region = self.arrays[state.key] = self.view(state).reshape(state.descriptor.shape)
            if is_new or (not state.version and state.phase is KeyPhase.IDLE):
                _zero(region)  # the memory may have been used before
        return region

    def host_copy(self, descriptor: Descriptor, key: int) -> np.ndarray:
        """Return the array on the host for a key's region on a GPU, zeros at first."""
        found = self.host_copies.get(key)
        if found is None:
            found = self.host_copies[key] = np.zeros(descriptor.shape, STORAGE[descriptor.dtype])
        return found

    def holds(self, state: ClientKey, array: np.ndarray) -> bool:
        """Return whether an array is the whole region, element for element: one that only begins there is not."""
        known = self.arrays.get(state.key)
        if known is None or array is known:
            return known is not None
        memory = self._memories[state.device]
        begins_there = memory.is_at(address_of(array), state.offset)
        return begins_there and array.flags.c_contiguous and 0 < array.size == state.plan.num_elements

    def reach(self, array: np.ndarray) -> bool:
        """Return whether an array begins or ends in a device's memory."""
        first = address_of(array)
        last = first + max(array.nbytes, 1) - 1
        return any(memory.has(address) for memory in self._memories.values() for address in (first, last))

    def deregister(self, key: int) -> None:
        """Note that a key's region is this worker's no more."""
        self.arrays.pop(key, None)
        self._flat.pop(key, None)
        self.host_copies.pop(key, None)

    def count(self, way: str, state: ClientKey, nbytes: int) -> None:
        """Note bytes that were copied `to` or `from` the region's device."""
        link = way, state.device
        self._link_bytes[link] = self._link_bytes.get(link, 0) + nbytes

    def links(self) -> dict[str, float]:
        """Return the bytes that this worker copied to and from each device."""
        return {f"{way} device {device}": nbytes for (way, device), nbytes in self._link_bytes.items()}


def _zero(region: np.ndarray) -> None:
    """Make all of a region 0."""
    if is_on_gpu(region):
        stream = gpus().current_stream(gpus().gpu_of(region))
        stream.arrays.zero(region)
        stream.record().wait()  # whoever uses it may do so in another stream
    else:
        region[...] = 0
