"""What all groups of a process share: one progress thread, the node's devices, and the counts of bytes."""

import contextlib
from collections import Counter

from mpi4py import MPI

from coarse.client.client import Client
from coarse.collectives.node_memory import NodeDevices
from coarse.collectives.progress import ProgressThread
from coarse.collectives.wire import Traffic
from coarse.protocol.joint import Meeting
from coarse.protocol.plan import Placement
from coarse.protocol.records import Tag


class SharedByGroups:
    """One for each worker, of its runtime."""

    def __init__(self, client: Client, worker_comm: MPI.Comm, placement: Placement) -> None:
        """Of the workers' communicator nobody else may make use: groups are made of it in the progress thread."""
        index = client.protocol.client
        self.client = client
        self.placement = placement
        self.worker_comm = worker_comm
        self.progress = ProgressThread(client.link, "coarse-collectives", self._drive)
        self.devices = NodeDevices(client, placement.cluster.devices_on(placement.cluster.worker_nodes[index]))
        self.traffic = Traffic()
        """What all groups have carried between nodes."""
        self.node_reads: Counter[str] = Counter()
        """By purpose the bytes that this worker has read from buffers in the node's memory."""
        self._num_groups = 0
        self._num_alike: Counter[tuple[int, ...]] = Counter()

    def _drive(self) -> None:
        """Have MPI go on: it does whenever one looks for a message, here for one that nobody sends."""
        with contextlib.suppress(MPI.Exception):  # deaths are told of elsewhere
            self.worker_comm.Iprobe(self.worker_comm.Get_rank(), int(Tag.HELLO))

    def next_lane(self) -> int:
        """A lane of the progress thread that no other group has."""
        self._num_groups += 1
        return self._num_groups

    def meeting(self, workers: tuple[int, ...]) -> Meeting:
        """Return where a new group of these workers meets, the same on all of them."""
        self._num_alike[workers] += 1
        return Meeting(workers, self._num_alike[workers])

    def close(self) -> None:
        """Give up what is under way: this worker leaves the job."""
        self.progress.close()
