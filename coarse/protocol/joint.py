# Pure: no MPI, threads, clock or environment.
"""Calls that members of a group make jointly, or as the two ends of a message, in terms of their time."""

import enum
import struct
from typing import NamedTuple

_HEAD = struct.Struct("<BBhQQQH")
_IS_RING, _IS_KEPT = 1, 2


class CollectiveKind(enum.IntEnum):
    """Kind of a collective."""

    ALL_REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE = 4
    REDUCE_SCATTER = 5
    SCATTER = 6
    GATHER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    SPARSE_ALL_REDUCE = 10
    GATHER_ON_NODE = 11
    """All-gather among each node's members, who may be far fewer than the group."""
    READ_PARTS = 12
    """Gather on each node after each member has read its part of the node's copy on the host (FCDP IV-C)."""
    READ_WHOLE = 13
    """Gather on each node in which each member reads the whole copy on the host by itself."""
    NODE_BUFFER = 14
    MEET = 17
    """Barrier: it completes once all have come."""
    SEND = 15
    RECEIVE = 16

    @property
    def label(self) -> str:
        """Name for users."""
        return self.name.lower()


class Joint(NamedTuple):
    """Member's part of a call that a group makes together."""

    kind: CollectiveKind
    nbytes: int = 0
    """Bytes that this member contributes: for a reduction its whole array, for a gather its own slice, for a collective
    with a root the slice or array that passes between the root and each member."""
    itemsize: int = 1
    """Bytes of an element as it is added."""
    root: int = -1
    """Group rank of the root; -1 where there is none."""
    is_ring: bool = True
    """True if bytes go from each member to the next as if there were no nodes, in place of rails and then within nodes.
    """
    is_kept: bool = False
    """True if the node's copy on the host holds the result afterwards."""
    buffer: int = 0
    """Number of the node's buffer that holds the copy, where one does or will."""
    parts: tuple[int, ...] = ()
    """Bytes for each member, for ALL_TO_ALL."""

    def pack(self) -> bytes:
        """Return the bytes of the call."""
        flags = self.is_ring * _IS_RING | self.is_kept * _IS_KEPT
        head = _HEAD.pack(self.kind, flags, self.root, self.nbytes, self.itemsize, self.buffer, len(self.parts))
        return head + struct.pack(f"<{len(self.parts)}Q", *self.parts)


OWN_GROUP, COMM_WORLD = 0, -1
"""Numbers of the workers' own stream of all-reduces, and of MPI's world."""


class Meeting(NamedTuple):
    """Rendezvous of joint calls of the same members: the n-th call of one is the n-th of all."""

    members: tuple[int, ...]
    """Workers by group rank; for messages the sender and the receiver."""
    number: int
    """Number among the groups that these members have opened, from 1 on, or one of the two numbers above; for messages
    their tag."""


ANYBODY = Meeting((), 0)
"""Rendezvous at which a message from any rank is received."""


def pack_call(meeting: Meeting, joint: Joint) -> bytes:
    """Encode a joint call and its rendezvous as bytes."""
    return struct.pack(f"<qH{len(meeting.members)}H", meeting.number, len(meeting.members), *meeting.members) + (
        joint.pack()
    )


def unpack_call(data: bytes) -> tuple[Meeting, Joint]:
    """Decode what `pack_call` encoded."""
    number, size = struct.unpack_from("<qH", data)
    members = struct.unpack_from(f"<{size}H", data, 10)
    at = 10 + 2 * size
    kind, flags, root, nbytes, itemsize, buffer, num_parts = _HEAD.unpack_from(data, at)
    parts = struct.unpack_from(f"<{num_parts}Q", data, at + _HEAD.size)
    is_ring, is_kept = bool(flags & _IS_RING), bool(flags & _IS_KEPT)
    joint = Joint(CollectiveKind(kind), nbytes, itemsize, root, is_ring, is_kept, buffer, parts)
    return Meeting(members, number), joint
