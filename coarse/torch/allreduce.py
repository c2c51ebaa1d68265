"""Buckets all-reduced among the workers by MPI: the baseline that memory devices are held against."""

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.dtypes import DType, Op
from coarse.errors import InFlightError, StallError
from coarse.messages import Descriptor
from coarse.proxy.sync_core import narrowed, widen

_LOOK_S, _GLANCE_S = 0.05, 0.001
"""How often a wait looks for peers that have died, and for how long."""
_NAMING_S = 1.0
"""How much later than MPI the devices may know who died."""


class AllreduceSynchroniser:
    """One progress thread, the only caller of MPI on its communicator, reduces buckets in place.

    The order of collectives is agreed beforehand: every round takes all buckets by index, then those
    that are started once more. So it never follows from which gradient came first.

    A collective without one of its ranks may spin for ever, or fail and not say whom it lacks; it is
    the link to the devices that knows who has died or raised an error.
    """

    def __init__(
        self, comm: MPI.Comm, link: DeviceLink, count: Callable[[Descriptor], None]
    ) -> None:
        self._comm = comm.Dup()
        self._link = link
        self._count = count
        self._changed = threading.Condition()
        self._buckets: list[tuple[Descriptor, np.ndarray]] = []
        self._order: deque[int] = deque()
        self._started: set[int] = set()
        self._under_way: set[int] = set()
        """Started and not yet reduced."""
        self._failure: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._progress, name="coarse-allreduce", daemon=True)
        self._thread.start()

    def memory_of(self, descriptor: Descriptor) -> np.ndarray:
        """See Synchroniser."""
        array = np.zeros(descriptor.shape, DType(descriptor.dtype).storage)
        with self._changed:
            self._order.append(len(self._buckets))
            self._buckets.append((descriptor, array))
        return array

    def start(self, index: int) -> None:
        """See Synchroniser."""
        self._count(self._buckets[index][0])
        with self._changed:
            if index not in self._order:
                self._order.append(index)
            self._started.add(index)
            self._under_way.add(index)
            self._changed.notify_all()

    def wait(self, index: int) -> None:
        """See Synchroniser."""
        limit_s, clock = self._link.stall_timeout_s, self._link.clock
        deadline_s = clock.now_s() + limit_s

        def is_over() -> bool:
            return index not in self._under_way or self._failure is not None

        with self._changed:
            self._require_reachable(index)
            is_done = self._changed.wait_for(is_over, min(_LOOK_S, limit_s))
        while not is_done:
            if self._link.wait_until(is_over, _GLANCE_S):  # else DeadRankError, where somebody has died
                break
            if clock.now_s() >= deadline_s:
                raise StallError(
                    f"rank {self._comm.Get_rank()}: the all-reduce of {self._buckets[index][0].name!r} did "
                    f"not end within {limit_s:g} s; see what the other workers wait for, or raise "
                    "stall_timeout_s"
                )
            with self._changed:
                is_done = self._changed.wait_for(is_over, _LOOK_S)
        if self._failure is not None:
            self._link.wait_until(lambda: False, _NAMING_S)  # DeadRankError, which names the rank
            raise self._failure

    def begin_round(self) -> None:
        """See Synchroniser."""
        with self._changed:
            self._order.extend(range(len(self._buckets)))

    def close(self) -> None:
        """See Synchroniser."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _require_reachable(self, index: int) -> None:
        """Waiting amid backward for a bucket behind one that backward has yet to fill would never end."""
        if index not in self._order:
            return
        ahead = next((other for other in self._order if other not in self._started), None)
        if ahead is not None and list(self._order).index(ahead) < list(self._order).index(index):
            raise InFlightError(
                f"rank {self._comm.Get_rank()}: another gradient came for {self._buckets[index][0].name!r} "
                'while it was in flight, and mode "allreduce" reduces buckets in order; use mode '
                '"coarse", or count all backward passes in backward_passes_per_step'
            )

    def _progress(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._may_go_on)
                    if self._is_closed:
                        return
                    index = self._order.popleft()
                    self._started.discard(index)
                self._reduce(*self._buckets[index])
                with self._changed:
                    self._under_way.discard(index)
                    self._changed.notify_all()
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _may_go_on(self) -> bool:
        return self._is_closed or (bool(self._order) and self._order[0] in self._started)

    def _reduce(self, descriptor: Descriptor, array: np.ndarray) -> None:
        """Half types travel and add in float32 and are rounded once, at the end."""
        wire = DType(descriptor.dtype)
        wide = array if wire.accumulator == wire.storage else widen(array, wire)
        self._comm.Allreduce(MPI.IN_PLACE, wide, MPI.SUM)
        if descriptor.op == Op.AVERAGE:
            wide *= wide.dtype.type(1.0 / self._comm.Get_size())
        if wide is not array:
            array[:] = narrowed(wide, wire)
