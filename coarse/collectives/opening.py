"""Opening of a group: members greet each other, make communicators, and share memory on each node."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

from coarse.collectives.conditions import Messages
from coarse.collectives.node import Node, counts_bytes, shared_bytes
from coarse.collectives.node_memory import NodeRegion, agree_on_region
from coarse.collectives.progress import Conditions
from coarse.collectives.shape import Collective, GroupShape
from coarse.collectives.shared import SharedByGroups
from coarse.collectives.wire import GroupWire, Traffic
from coarse.errors import MismatchError
from coarse.protocol.records import Tag

_TAG = 0x7FFF
"""Tag of groups whose members have greeted each other: no others' tags are as large."""


def communicators(worker_comm: MPI.Comm, workers: tuple[int, ...], tag: int) -> tuple[MPI.Intracomm, MPI.Intracomm]:
    """Return two communicators of these workers alone, in this order.

    All of them call it together, and block until they have. A group of all workers duplicates the parent, for which it
    needs no others. A group of some uses Create_group: Open MPI may have mpirun carry it out, which takes a hundred
    times as long. `tag` tells groups apart that are opened at once.

    Raises:
        MismatchError: the group has all workers, and some of them open another group now (on all of them).
    """
    parent = MPI.Intracomm(worker_comm)
    if workers == tuple(range(parent.Get_size())):
        comm = parent.Dup()
        least_and_most = np.array([-tag, tag])
        comm.Allreduce(MPI.IN_PLACE, least_and_most, MPI.MAX)
        if -least_and_most[0] != least_and_most[1]:
            raise MismatchError(
                f"rank {parent.Get_rank()}: the group of all workers that is opened here is not the one that others "
                "open now; open the same groups in the same order on all of them"
            )
        return comm, comm.Dup()
    everybody = parent.Get_group()
    group = everybody.Incl(list(workers))
    comm = parent.Create_group(group, tag)
    group.Free()
    everybody.Free()
    return comm, comm.Dup()


def greet(parent: MPI.Comm, workers: tuple[int, ...], what: str) -> Conditions:
    """Wait until all members, of which this worker is one, have come to open `what`.

    [Note: hello] Making a communicator blocks inside MPI until all its members have come. So they first send each
    other a message, for which the progress thread waits as for any other; then all are about to come.

    Raises:
        MismatchError: another member opens something else now.
    """
    mine = np.frombuffer(hashlib.blake2b(what.encode(), digest_size=16).digest(), np.uint8)
    theirs = np.tile(mine, (len(workers), 1))
    messages, own = Messages(), parent.Get_rank()
    for worker, into in zip(workers, theirs, strict=True):
        if worker != own:
            messages.add(parent.Irecv([into, MPI.BYTE], worker, int(Tag.HELLO)), worker, into)
            messages.add(parent.Isend([mine, MPI.BYTE], worker, int(Tag.HELLO)), worker, mine)
    yield messages
    differing = [worker for worker, hello in zip(workers, theirs, strict=True) if (hello != mine).any()]
    if differing:
        raise MismatchError(
            f"rank {own}: {what} is opened here, and another one on ranks {differing}; open the same groups "
            "in the same order on all their members"
        )


@dataclass
class Opened:
    """Parts of a group that exist once its members have opened it."""

    shared: SharedByGroups
    shape: GroupShape
    rank: int
    workers: tuple[int, ...]
    collective: Collective
    traffic: Traffic = field(default_factory=Traffic)
    wire: GroupWire = field(init=False)
    node: Node = field(init=False)
    comms: list[MPI.Intracomm] = field(default_factory=list)
    """Communicators of the collectives, and of the jobs that users submit."""

    def open(self) -> Conditions:
        """Open the group with the other members.

        Raises:
            MismatchError: another member opens another group now.
            CapacityError: a node's devices have no room (on all members).
        """
        what = f'a group of ranks {list(self.workers)} with collective "{self.collective}"'
        yield from greet(self.shared.worker_comm, self.workers, what)
        self.comms += communicators(self.shared.worker_comm, self.workers, _TAG)
        counters = (self.traffic, self.shared.traffic)
        self.wire = GroupWire(self.comms[0], self.shape, self.rank, self.workers, counters)
        members = self.shape.near(self.rank)
        found: list[NodeRegion] = []
        largest = max(len(near) for near in self.shape.members_by_node)
        nbytes, num_zeros = shared_bytes(largest), counts_bytes(largest)
        yield from agree_on_region(self.wire, self.shared.devices, nbytes, num_zeros, found)
        near_workers = tuple(self.workers[member] for member in members)
        self.node = Node(self.shared.devices, found[0], members, self.rank, near_workers)

    def close(self) -> Conditions:
        """Free the memory, once all members of the node have come here.

        Communicators are left to MPI's end: with ULFM an agreement on one may be under way on other members still.
        """
        yield self.node.ticks.all_passed(self.node.ticks.tick())
        if self.node.position == 0:
            self.shared.devices.free(self.node.region)
