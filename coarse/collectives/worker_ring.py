"""Live ring of the workers: RingStream by MPI messages from each worker to the next (COARSE III-F)."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from coarse.collectives.conditions import Messages
from coarse.collectives.progress import Conditions
from coarse.collectives.ring_stream import RingStream
from coarse.proxy.instructions import Instruction, RingId, RingReceive, RingSend
from coarse.proxy.ring_buffers import take_chunk

_TAG = 0


class WorkerRing:
    """All-reduces among the members of a communicator of their own.

    No other code uses the communicator, and all members carry out the same all-reduces in one order.
    Sums have the same bits on all workers and in every run: a chunk is added in the order of the ring.
    """

    def __init__(self, comm: MPI.Comm, workers: Sequence[int] | None = None) -> None:
        """Take the communicator.

        `workers` are the `coarse.rank()` of each member, to name those that are awaited; by default its rank.
        """
        self._comm = comm
        self._members = tuple(range(comm.Get_size()))
        self._workers = self._members if workers is None else tuple(workers)

    def reduce(self, array: np.ndarray) -> Conditions:
        """Sum over all members, in place: (n,) contiguous, of a type that is not narrower than its sums.

        A chunk is sent from its place in the array. The bytes that overwrite it have come round the ring, through its
        receiver.
        """
        stream = RingStream(self._comm.Get_rank(), self._members, [array.size])
        instructions = stream.push(0)
        sends, step = Messages(), 0
        while not stream.is_idle:
            ring = self._send(instructions, array, sends)
            source = self._members[stream.worker - 1]
            coming = _Coming(self._comm, source, self._workers[source])
            yield coming
            instructions = stream.on_chunk(ring, step)
            (receive,) = [each for each in instructions if isinstance(each, RingReceive)]
            take_chunk(receive, array, coming.chunk(array.dtype))
            step += 1
        yield sends

    def _send(self, instructions: list[Instruction], array: np.ndarray, sends: Messages) -> RingId:
        (send,) = [each for each in instructions if isinstance(each, RingSend)]
        part = array[send.begin : send.end]
        sends.add(self._comm.Isend([part, MPI.BYTE], dest=send.device, tag=_TAG), self._workers[send.device], part)
        return send.ring


class _Coming:
    """Next message of the worker before this one."""

    def __init__(self, comm: MPI.Comm, source: int, worker: int) -> None:
        self._comm = comm
        self._source = source
        self._worker = worker
        self._message: MPI.Message | None = None
        self._status = MPI.Status()

    def is_over(self) -> bool:
        """Return whether the message has come."""
        if self._message is None:
            self._message = self._comm.Improbe(source=self._source, tag=_TAG, status=self._status)
        return self._message is not None

    def missing(self) -> tuple[int, ...]:
        """Return the worker before this one."""
        return (self._worker,)

    def chunk(self, dtype: np.dtype) -> np.ndarray:
        """Receive the message, and return its elements, (n,) of a dtype."""
        assert self._message is not None
        chunk = np.empty(self._status.Get_count(MPI.BYTE) // dtype.itemsize, dtype)
        self._message.Recv([chunk, MPI.BYTE])
        return chunk
