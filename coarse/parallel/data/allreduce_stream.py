"""Tensors that the workers sum by MPI, one after the other, in a thread beside the computing one."""

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink
from coarse.collectives.progress import Pending, ProgressThread
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor
from coarse.storage.reduce import narrowed, widen

_OPENING = "the opening of the workers' communicator"
_LANE = 0


class AllreduceStream:
    """A progress thread of its own reduces tensors in place, each in one blocking call.

    All workers submit the same tensors in the same order.
    """

    def __init__(self, comm: MPI.Comm, link: DeviceLink) -> None:
        """`comm` is duplicated by `open`, which all workers call at the same point of their programs."""
        self._comm = comm
        self._link = link
        self._progress = ProgressThread(link, "coarse-allreduce")
        self._opening: Pending | None = None

    def open(self) -> None:
        """Return once the workers have a communicator for this stream; it may be called again after a StallError."""
        if self._opening is None:
            self._opening = self._progress.submit(_LANE, self._duplicate, _OPENING)
        self._opening.wait()

    def submit(self, descriptor: Descriptor, array: np.ndarray) -> Pending:
        """Reduce an array by the descriptor's operation, after all that was submitted before. To be waited for; after a
        StallError it may be waited for again."""

        def reduce() -> None:
            self._link.reduced_bytes += _reduce(self._comm, descriptor, array)

        return self._progress.submit(_LANE, reduce, f"the all-reduce of {descriptor.name!r}")

    def close(self) -> None:
        """Nothing will be submitted any more."""
        self._progress.close()

    def _duplicate(self) -> None:
        self._comm = self._comm.Dup()


def _reduce(comm: MPI.Comm, descriptor: Descriptor, array: np.ndarray) -> int:
    """The bytes that MPI was given; half types travel and add in float32 and are rounded once, at the end."""
    wire = DType(descriptor.dtype)
    wide = array if wire.accumulator == wire.storage else widen(array, wire)
    comm.Allreduce(MPI.IN_PLACE, wide, MPI.SUM)
    if descriptor.op == Op.AVERAGE:
        wide *= wide.dtype.type(1.0 / comm.Get_size())
    if wide is not array:
        array[:] = narrowed(wide, wire)
    return wide.nbytes
