"""Objects that all groups of a process share: a progress thread, the node's devices, byte counts."""

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
    """Shared objects of one worker's groups; its runtime has one."""

    def __init__(self, client: Client, worker_comm: MPI.Comm, placement: Placement) -> None:
        """Make the shared objects.

        No other code may use the workers' communicator: groups are made of it in the progress thread.
        """
        index = client.protocol.client
        self.client = client
        self.placement = placement
        self.worker_comm = worker_comm
        self.progress = ProgressThread(client.link, "coarse-collectives", self._drive)
        self.devices = NodeDevices(client, placement.cluster.devices_on(placement.cluster.worker_nodes[index]))
        self.traffic = Traffic()
        """Bytes that all groups have carried between nodes."""
        self.node_reads: Counter[str] = Counter()
        """Bytes that this worker has read from buffers in the node's memory, by purpose."""
        self._num_groups = 0
        self._num_alike: Counter[tuple[int, ...]] = Counter()

    def _drive(self) -> None:
        """Have MPI go on, as it does on each look for a message: here for one that is never sent."""
        with contextlib.suppress(MPI.Exception):  # deaths are told of elsewhere
            self.worker_comm.Iprobe(self.worker_comm.Get_rank(), int(Tag.HELLO))

    def next_lane(self) -> int:
        """Return a lane of the progress thread that no other group has."""
        self._num_groups += 1
        return self._num_groups

    def meeting(self, workers: tuple[int, ...]) -> Meeting:
        """Return the Meeting of a new group of these workers, equal on all of them."""
        self._num_alike[workers] += 1
        return Meeting(workers, self._num_alike[workers])

    def close(self) -> None:
        """Give up what is under way: this worker leaves the job."""
        self.progress.close()
