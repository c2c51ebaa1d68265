"""Messages between the members of a group, and the count of those bytes that leave the node."""

from collections import defaultdict

import numpy as np
from mpi4py import MPI

from coarse.collectives.conditions import Messages
from coarse.collectives.shape import GroupShape
from coarse.protocol.records import Tag


class Traffic:
    """Byte counts by purpose; one thread counts, any may read."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = defaultdict(int)
        self._received: dict[str, int] = defaultdict(int)

    def add(self, what: str, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Count bytes that crossed between nodes."""
        self._sent[what] += sent_bytes
        self._received[what] += received_bytes

    def by_purpose(self) -> dict[str, tuple[int, int]]:
        """Return the bytes sent and received, by purpose."""
        return {what: (self._sent[what], self._received[what]) for what in sorted(self._sent)}

    def total(self) -> tuple[int, int]:
        """Return the bytes sent and received for all purposes."""
        return sum(self._sent.values()), sum(self._received.values())


class GroupWire:
    """Sends and receives of one member, addressed by group rank.

    Messages of one tag between two members arrive in the order in which they were sent, and both take the same
    steps: so no message says what it is.
    """

    def __init__(
        self, comm: MPI.Comm, shape: GroupShape, rank: int, workers: tuple[int, ...], counters: tuple[Traffic, ...]
    ) -> None:
        """Take the communicator.

        `comm` has the members in order of group ranks; `workers` are their ranks among workers.
        """
        self._comm = comm
        self.shape = shape
        self.rank = rank
        self.workers = workers
        self._counters = counters
        self._is_near = [node == shape.node_by_rank[rank] for node in shape.node_by_rank]

    def send(self, messages: Messages, to: int, payload: np.ndarray, what: str, tag: Tag = Tag.SLICE) -> None:
        """Start to send a contiguous array, unless it is empty; it must not change until `messages` are over."""
        if payload.nbytes:
            request = self._comm.Isend([payload, MPI.BYTE], dest=to, tag=int(tag))
            messages.add(request, self.workers[to], payload)
            if not self._is_near[to]:
                for counter in self._counters:
                    counter.add(what, sent_bytes=payload.nbytes)

    def receive(self, messages: Messages, source: int, into: np.ndarray, what: str, tag: Tag = Tag.SLICE) -> None:
        """Start to receive as many bytes as a contiguous array has."""
        if into.nbytes:
            request = self._comm.Irecv([into, MPI.BYTE], source=source, tag=int(tag))
            messages.add(request, self.workers[source], into)
            if not self._is_near[source]:
                for counter in self._counters:
                    counter.add(what, received_bytes=into.nbytes)
