"""Messages between the members of a group, counted where they leave the node."""

import numpy as np
from mpi4py import MPI

from coarse.collectives.awaited import Messages
from coarse.collectives.shape import GroupShape
from coarse.collectives.traffic import Traffic
from coarse.protocol.records import Tag


class GroupWire:
    """Sends and receives of one member, addressed by group rank.

    Messages of one tag between two members arrive in the order in which they were sent, and both take the same
    steps: so no message says what it is.
    """

    def __init__(
        self, comm: MPI.Comm, shape: GroupShape, rank: int, workers: tuple[int, ...], counters: tuple[Traffic, ...]
    ) -> None:
        """`comm` has the members in order of group ranks; `workers` are their ranks among workers."""
        self._comm = comm
        self.shape = shape
        self.rank = rank
        self.workers = workers
        self._counters = counters
        self._is_near = [node == shape.node_by_rank[rank] for node in shape.node_by_rank]

    def send(self, messages: Messages, to: int, payload: np.ndarray, what: str, tag: Tag = Tag.SLICE) -> None:
        """Start sending a contiguous array, which must not change until `messages` are over; nothing if empty."""
        if payload.nbytes:
            request = self._comm.Isend([payload, MPI.BYTE], dest=to, tag=int(tag))
            messages.add(request, self.workers[to], payload)
            if not self._is_near[to]:
                for counter in self._counters:
                    counter.add(what, sent_bytes=payload.nbytes)

    def receive(self, messages: Messages, source: int, into: np.ndarray, what: str, tag: Tag = Tag.SLICE) -> None:
        """Start receiving as many bytes as a contiguous array has."""
        if into.nbytes:
            request = self._comm.Irecv([into, MPI.BYTE], source=source, tag=int(tag))
            messages.add(request, self.workers[source], into)
            if not self._is_near[source]:
                for counter in self._counters:
                    counter.add(what, received_bytes=into.nbytes)
