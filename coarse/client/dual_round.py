# Pure: no MPI, threads, clock or environment.
"""Who sums each bucket of a round, and when it sets out: dual synchronisation as a state machine (COARSE III-F).

Live, emulated and simulated training feed it the same events and carry out what it answers.
"""

import enum
from typing import NamedTuple


class Way(enum.Enum):
    """Who sums a bucket."""

    DEVICES = "devices"
    WORKERS = "workers"


class SetOut(NamedTuple):
    """A bucket's contribution sets out: to memory devices, or into the workers' own ring, in this order."""

    bucket: int
    way: Way


class DualRound:
    """Buckets in the order of backward: the first `split` go to memory devices at once, the workers sum the others.

    What the workers sum is held back until backward has ended, as the paper's T_train has it: until then another
    gradient may still come for it, and all workers then sum the same buckets in the same order. Before the first
    `begin`, everything goes to the devices.
    """

    def __init__(self, *, holds_back: bool = True) -> None:
        """Without holding back, the workers' buckets set out as they come, which must be in one order everywhere."""
        self._holds_back = holds_back
        self._split = 0
        self._num_buckets = 0
        self._held: set[int] = set()

    @property
    def shares(self) -> bool:
        """Whether the workers sum a part of this round."""
        return self._split < self._num_buckets

    @property
    def is_holding(self) -> bool:
        """Whether buckets wait for the end of backward."""
        return bool(self._held)

    def begin(self, num_buckets: int, split: int) -> None:
        """A round begins, on all workers with the same split; nothing is held any more."""
        self._num_buckets, self._split = num_buckets, split
        self._held.clear()

    def share_nothing(self) -> None:
        """From now on everything of this round goes to the devices, but for what is held already."""
        self._split = self._num_buckets

    def on_ready(self, bucket: int) -> list[SetOut]:
        """A bucket's gradients are all there."""
        if bucket < self._split or not self.shares:
            return [SetOut(bucket, Way.DEVICES)]
        if not self._holds_back:
            return [SetOut(bucket, Way.WORKERS)]
        self._held.add(bucket)
        return []

    def cancel(self, bucket: int) -> bool:
        """Another gradient comes for a bucket; False where it has set out."""
        was_held = bucket in self._held
        self._held.discard(bucket)
        return was_held

    def on_backward_end(self, *, are_all_here: bool = True) -> list[SetOut]:
        """Every bucket is ready. Where a worker takes no part in the ring, the devices sum everything."""
        held, self._held = sorted(self._held), set()
        way = Way.WORKERS if are_all_here else Way.DEVICES
        return [SetOut(bucket, way) for bucket in held]
