"""Tensors that the workers sum themselves, one after the other, in a thread beside the computing one."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.collectives.progress import Pending, ProgressThread, Waits
from coarse.collectives.worker_ring import WorkerRing
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.storage.reduce import narrowed, widened

_OPENING = "the opening of the workers' communicator"
_LANE = 0


class AllreduceStream:
    """A progress thread of its own reduces tensors in place: in blocking calls of MPI, or step by step in a ring.

    All workers submit the same tensors in the same order.
    """

    def __init__(self, comm: MPI.Comm, link: DeviceLink, *, by_ring: bool = False) -> None:
        """`comm` is duplicated by `open`, which all workers call at the same point of their programs."""
        self._comm = comm
        self._by_ring = by_ring
        self._link = link
        self._progress = ProgressThread(link, "coarse-allreduce")
        self._opening: Pending | None = None

    def open(self) -> None:
        """Return once the workers have a communicator for this stream; it may be called again after a StallError."""
        if self._opening is None:
            self._opening = self._progress.submit(_LANE, self._duplicate, _OPENING)
        self._opening.wait()

    def prepare(self, descriptors: Sequence[Descriptor]) -> None:
        """See Stream: nothing is kept of them."""

    def submit(self, descriptor: Descriptor, array: np.ndarray) -> Pending:
        """Reduce an array by the descriptor's operation, after all that was submitted before. To be waited for; after a
        StallError it may be waited for again."""

        reduce = partial(self._reduce_by_ring if self._by_ring else self._reduce_by_mpi, descriptor, array)
        return self._progress.submit(_LANE, reduce, f"the all-reduce of {descriptor.name!r}")

    def close(self) -> None:
        """Nothing will be submitted any more."""
        self._progress.close()

    def _duplicate(self) -> None:
        self._comm = self._comm.Dup()

    def _reduce_by_mpi(self, descriptor: Descriptor, array: np.ndarray) -> None:
        wide = _widened(descriptor, array)
        self._comm.Allreduce(MPI.IN_PLACE, wide, MPI.SUM)
        self._finish(descriptor, wide, array)

    def _reduce_by_ring(self, descriptor: Descriptor, array: np.ndarray) -> Waits:
        wide = _widened(descriptor, array)
        yield from WorkerRing(self._comm).reduce(wide)
        self._finish(descriptor, wide, array)

    def _finish(self, descriptor: Descriptor, wide: np.ndarray, array: np.ndarray) -> None:
        if descriptor.op == Op.AVERAGE:
            wide *= wide.dtype.type(1.0 / self._comm.Get_size())
        if wide is not array:
            array[:] = narrowed(wide, DType(descriptor.dtype))
        self._link.reduced_bytes += wide.nbytes


def _widened(descriptor: Descriptor, array: np.ndarray) -> np.ndarray:
    """What is summed: half types travel and add in float32 and are rounded once, at the end."""
    return widened(array, DType(descriptor.dtype))
