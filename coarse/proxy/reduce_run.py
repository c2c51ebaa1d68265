# Pure: no MPI, threads, clock or environment.
"""A sum over links, step by step: fetch what lies on other devices, add, write back (COARSE III-E, `in_place`).

Where the devices share a bus of no cost, a driver reads and writes their memory in one pass and needs none of this.
"""

from typing import NamedTuple

from coarse.protocol.dtypes import STORAGE
from coarse.proxy.instructions import Reduce, added_bytes


class Move(NamedTuple):
    """Bytes cross the links between two devices; answer by on_moved."""

    source: int
    target: int
    nbytes: int
    is_fetch: bool
    """Whether the adding device reads them, and does not write."""


class Add(NamedTuple):
    """The device's adder reads so many bytes; answer by on_added."""

    nbytes: int


class ReduceRun:
    """The steps of one Reduce; it is done when no step is left."""

    def __init__(self, device: int, reduce: Reduce) -> None:
        nbytes = reduce.num_elements * STORAGE[reduce.dtype].itemsize
        fetches = [at.device for at in reduce.sources if at.device != device]
        writes = [at.device for at in reduce.targets if at.device != device]
        self._fetches = [Move(source, device, nbytes, True) for source in fetches]
        self._add = Add(added_bytes(reduce))
        self._writes = [Move(device, target, nbytes, False) for target in writes]
        self._num_moving = 0
        self._has_added = False

    @property
    def is_done(self) -> bool:
        """Whether the result is where it belongs."""
        return self._has_added and not self._num_moving

    def begin(self) -> list[Move] | list[Add]:
        """The first steps."""
        self._num_moving = len(self._fetches)
        return self._fetches or [self._add]

    def on_moved(self) -> list[Add]:
        """One of the bytes' ways is over."""
        self._num_moving -= 1
        return [] if self._num_moving or self._has_added else [self._add]

    def on_added(self) -> list[Move]:
        """The adder is through."""
        self._has_added = True
        self._num_moving = len(self._writes)
        return self._writes
