"""Stream of tensors that the workers sum themselves, in a thread beside the computing one."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from coarse.client.link import DeviceLink, Flight
from coarse.collectives.conditions import Copied
from coarse.collectives.opening import greet
from coarse.collectives.progress import Conditions, Pending, ProgressThread
from coarse.collectives.worker_ring import WorkerRing
from coarse.gpu.available import gpus
from coarse.gpu.interface import Event, GpuArray, is_on_gpu
from coarse.gpu.staging import host_staging
from coarse.protocol.dtypes import DType, Op, narrowed, widened
from coarse.protocol.joint import OWN_GROUP, CollectiveKind, Joint, Meeting
from coarse.protocol.records import Descriptor

_OPENING = "the opening of the workers' communicator"
_LANE = 0


class AllreduceStream:
    """Stream that reduces tensors in place, in a progress thread of its own.

    It uses blocking calls of MPI, or steps of a ring. All workers submit the same tensors in the same order. Those on
    GPUs are reduced in pinned host memory.
    """

    takes_gpus = True

    def __init__(self, comm: MPI.Comm, link: DeviceLink, *, by_ring: bool = False) -> None:
        """Start the progress thread; `comm` is duplicated by `open`.

        All workers call `open` at the same point of their programs.
        """
        self._comm = comm
        self._by_ring = by_ring
        self._link = link
        self._progress = ProgressThread(link, "coarse-allreduce")
        self._opening: Pending | None = None

    def open(self) -> None:
        """Return once the workers have a communicator for this stream.

        It may be called again after a StallError.
        """
        if self._opening is None:
            self._opening = self._progress.submit(_LANE, self._duplicate, _OPENING)
        self._opening.wait()

    def prepare(self, descriptors: Sequence[Descriptor]) -> None:
        """Do nothing: the stream keeps nothing of announced tensors."""

    def submit(self, descriptor: Descriptor, array: np.ndarray) -> Flight:
        """Reduce an array by the descriptor's operation, after all that was submitted before.

        The flight is to be waited for; after a StallError it may be waited for again.
        """
        what = f"the all-reduce of {descriptor.name!r}"
        if not is_on_gpu(array):
            due = self._link.join(*_call(descriptor, self._comm.Get_size()), what, descriptor)
            return self._progress.submit(_LANE, partial(self._reduce, descriptor, array), what, due=due)
        flight = _GpuFlight(array)

        def on_host() -> Conditions:
            yield flight.arrived
            yield from self._reduce(descriptor, flight.values) or ()
            flight.bring_back()

        flight.pending = self._progress.submit(_LANE, on_host, what)
        return flight

    def close(self) -> None:
        """Close the stream: nothing will be submitted any more."""
        self._progress.close()

    def _duplicate(self) -> Conditions:
        """Duplicate the communicator once all workers are there; see [Note: hello]."""
        yield from greet(self._comm, tuple(range(self._comm.Get_size())), "all-reduce by the workers")
        self._comm = self._comm.Dup()

    def _reduce(self, descriptor: Descriptor, array: np.ndarray) -> Conditions | None:
        if self._by_ring:
            return self._reduce_by_ring(descriptor, array)
        self._reduce_by_mpi(descriptor, array)
        return None

    def _reduce_by_mpi(self, descriptor: Descriptor, array: np.ndarray) -> None:
        wide = _widened(descriptor, array)
        self._comm.Allreduce(MPI.IN_PLACE, wide, MPI.SUM)
        self._finish(descriptor, wide, array)

    def _reduce_by_ring(self, descriptor: Descriptor, array: np.ndarray) -> Conditions:
        wide = _widened(descriptor, array)
        yield from WorkerRing(self._comm).reduce(wide)
        self._finish(descriptor, wide, array)

    def _finish(self, descriptor: Descriptor, wide: np.ndarray, array: np.ndarray) -> None:
        if descriptor.op == Op.AVERAGE:
            wide *= wide.dtype.type(1.0 / self._comm.Get_size())
        if wide is not array:
            array[:] = narrowed(wide, DType(descriptor.dtype))
        self._link.reduced_bytes += wide.nbytes


class _GpuFlight:
    """Flight of an array on a GPU that is reduced on the host.

    The thread that submits it makes it, in the user's stream.
    """

    def __init__(self, array: GpuArray) -> None:
        self._gpu = gpus().gpu_of(array)
        self._target = array.view(np.dtype(np.uint8))
        self._stage = host_staging().stage(self._gpu, array.nbytes)
        self._read = self._stage.read(self._target)
        self._landed: Event | None = None
        self.arrived = Copied(self._read)
        self.values = self._stage.bytes.view(array.dtype)
        """Values on the host, (n,), once they have arrived."""
        self.pending: Pending

    def bring_back(self) -> None:
        """Start to copy the sum to the GPU; in the progress thread."""
        self._landed = self._stage.write(self._target, self._read)
        self._stage.give_back(self._landed)

    def wait(self) -> None:
        """Wait until the sum is there for all further work of the user's stream."""
        self.pending.wait()
        assert self._landed is not None
        gpus().current_stream(self._gpu).wait_for(self._landed)


def _call(descriptor: Descriptor, num_workers: int) -> tuple[Meeting, tuple[Joint]]:
    """Return the meeting of all workers, and their joint call."""
    itemsize = DType(descriptor.dtype).accumulator.itemsize
    joint = Joint(CollectiveKind.ALL_REDUCE, descriptor.num_elements * itemsize, itemsize)
    return Meeting(tuple(range(num_workers)), OWN_GROUP), (joint,)


def _widened(descriptor: Descriptor, array: np.ndarray) -> np.ndarray:
    """Return the array that is summed.

    Half types travel and add in float32 and are rounded once, at the end.
    """
    return widened(array, DType(descriptor.dtype))
