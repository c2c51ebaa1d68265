# Pure: no MPI, threads, clock or environment.
"""Sum over links, step by step: fetch from other devices, add, write back (COARSE III-E, `in_place`).

Where the devices share a bus of no cost, a driver reads and writes their memory in one pass and needs none of this.
"""

from typing import NamedTuple

from coarse.protocol.dtypes import STORAGE
from coarse.proxy.instructions import Reduce, added_bytes


class Transfer(NamedTuple):
    """Bytes that cross the links between two devices; answered by on_moved."""

    source: int
    target: int
    nbytes: int
    is_fetch: bool
    """True if the adding device reads the bytes, and does not write them."""


class Add(NamedTuple):
    """Bytes that the device's adder reads; answered by on_added."""

    nbytes: int


class ReduceRun:
    """Steps of one Reduce; it is done when no step is left."""

    def __init__(self, device: int, reduce: Reduce) -> None:
        nbytes = reduce.num_elements * STORAGE[reduce.dtype].itemsize
        fetches = [at.device for at in reduce.sources if at.device != device]
        writes = [at.device for at in reduce.targets if at.device != device]
        self._fetches = [Transfer(source, device, nbytes, True) for source in fetches]
        self._add = Add(added_bytes(reduce))
        self._writes = [Transfer(device, target, nbytes, False) for target in writes]
        self._num_moving = 0
        self._has_added = False

    @property
    def is_done(self) -> bool:
        """True if the result is where it belongs."""
        return self._has_added and not self._num_moving

    def begin(self) -> list[Transfer] | list[Add]:
        """Return the first steps."""
        self._num_moving = len(self._fetches)
        return self._fetches or [self._add]

    def on_moved(self) -> list[Add]:
        """Process the arrival of one move's bytes."""
        self._num_moving -= 1
        return [] if self._num_moving or self._has_added else [self._add]

    def on_added(self) -> list[Transfer]:
        """Process the end of the addition."""
        self._has_added = True
        self._num_moving = len(self._writes)
        return self._writes
