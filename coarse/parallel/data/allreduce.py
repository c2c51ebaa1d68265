"""Buckets that workers all-reduce among themselves: the baseline that memory devices are held against."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from coarse.parallel.data.pass_timer import PassTimer
from coarse.parallel.data.reducer import Flight, QueuedFlight, Rounds
from coarse.protocol.dtypes import DType
from coarse.protocol.records import Descriptor


class Stream(Protocol):
    """Stream that sums tensors in place, one after the other.

    All workers submit the same ones in the same order.
    """

    def open(self) -> None:
        """Return once tensors may be submitted; it may be called again after a StallError."""
        ...

    def prepare(self, descriptors: Sequence[Descriptor]) -> None:
        """Announce the tensors that will be submitted, again and again, until others are announced."""
        ...

    @property
    def takes_gpus(self) -> bool:
        """True if arrays may be on GPUs."""
        ...

    def submit(self, descriptor: Descriptor, array: np.ndarray) -> Flight:
        """Reduce an array by the descriptor's operation, after all that was submitted before."""
        ...

    def close(self) -> None:
        """Close the stream: nothing will be submitted any more."""
        ...


class AllreduceReducer:
    """Reducer of buckets in workers' own memory, each as soon as backward has filled it and all before it.

    The order of collectives is agreed in advance: every round takes all buckets by index, then those that are started
    once more. So it never follows from the order in which gradients come.
    """

    dual_sync = None

    def __init__(
        self,
        stream: Stream,
        rank: int,
        count: Callable[[Descriptor], None],
        whose: str = 'mode "allreduce"',
        timer: PassTimer | None = None,
    ) -> None:
        """Open the stream; `whose` names, for people, the reducer of buckets in order."""
        self.timer = timer
        self._whose = whose
        self._stream = stream
        self._rank = rank
        self._count = count
        self._buckets: list[tuple[Descriptor, np.ndarray]] = []
        self._num_prepared = 0
        self._order: deque[int] = deque()
        """Buckets that are still to be reduced in this round."""
        self._queued: dict[int, QueuedFlight] = {}
        """Complete buckets of those that wait for one that comes before them."""
        stream.open()

    def memory_of(self, descriptor: Descriptor, num_exact: int = 0) -> np.ndarray:
        """Return the flat memory of a bucket, zeros at first, in this worker's own memory."""
        array = np.zeros(descriptor.shape, DType(descriptor.dtype).storage)
        self.use(descriptor, array)
        return array

    @property
    def takes_gpus(self) -> bool:
        """True if the stream takes arrays on GPUs."""
        return self._stream.takes_gpus

    def use(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Take a bucket's flat memory, and queue it in this round."""
        self._order.append(len(self._buckets))
        self._buckets.append((descriptor, array))

    def start(self, index: int) -> Flight:
        """Queue a bucket, whose contribution is complete, behind those before it.

        A wait amid backward for a bucket behind one that backward has yet to fill would never end.
        """
        if self._num_prepared < len(self._buckets):
            self._stream.prepare([descriptor for descriptor, _ in self._buckets])
            self._num_prepared = len(self._buckets)
        descriptor, _ = self._buckets[index]
        self._count(descriptor)
        if index not in self._order:
            self._order.append(index)
        queued = self._queued[index] = QueuedFlight(
            f"rank {self._rank}: another gradient came for {descriptor.name!r} "
            f"while it was in flight, and {self._whose} reduces buckets in order; use mode "
            '"coarse" without it, or count all backward passes in backward_passes_per_step'
        )
        while self._order and self._order[0] in self._queued:
            first = self._order.popleft()
            self._queued.pop(first).started = self._stream.submit(*self._buckets[first])
        return queued

    def cancel(self, index: int) -> bool:
        """Return False: others may have reduced the bucket."""
        return False

    @property
    def rounds(self) -> Rounds | None:
        """Part that is told of rounds: this reducer."""
        return self

    def all_started(self) -> None:
        """Do nothing: the order of buckets is fixed."""

    def begin_round(self) -> None:
        """Begin a round, which takes all buckets by index."""
        self._order.extend(range(len(self._buckets)))

    def drop(self) -> None:
        """Forget all buckets."""
        self._buckets.clear()
        self._num_prepared = 0
        self._order.clear()
        self._queued.clear()

    def close(self) -> None:
        """Close the stream: no bucket will be started any more."""
        self._stream.close()
