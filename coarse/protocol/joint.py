# Pure: no MPI, threads, clock or environment.
"""Calls that members of a group make together, or as the two ends of a message, as far as their time depends on it."""

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
    """An all-gather of each node's members, who may be far fewer than the group."""
    READ_PARTS = 12
    """Gather of what each member first reads of the node's copy on the host (FCDP IV-C)."""
    READ_WHOLE = 13
    """Gather of the node's copy, of which each member reads all by itself."""
    NODE_BUFFER = 14
    MEET = 17
    """Nothing but that all have come."""
    SEND = 15
    RECEIVE = 16

    @property
    def label(self) -> str:
        """Return the name as users read it."""
        return self.name.lower()


class Joint(NamedTuple):
    """A member's part of a call that a group makes together."""

    kind: CollectiveKind
    nbytes: int = 0
    """Bytes that this member contributes: of a reduction its whole array, of a gather its own slice, of what has a root
    the slice or array that passes between the root and each member."""
    itemsize: int = 1
    """Bytes of an element as it is added."""
    root: int = -1
    """Group rank; -1 where there is none."""
    is_ring: bool = True
    """True if bytes go from each member to the next as if there were no nodes, in place of rails and then within."""
    is_kept: bool = False
    """True if the node's copy on the host holds the result afterwards."""
    buffer: int = 0
    """Number of the node's buffer that holds it, where one does or will."""
    parts: tuple[int, ...] = ()
    """Number of bytes for each member, of ALL_TO_ALL."""

    def pack(self) -> bytes:
        """Return its bytes."""
        flags = self.is_ring * _IS_RING | self.is_kept * _IS_KEPT
        head = _HEAD.pack(self.kind, flags, self.root, self.nbytes, self.itemsize, self.buffer, len(self.parts))
        return head + struct.pack(f"<{len(self.parts)}Q", *self.parts)


OWN_GROUP, COMM_WORLD = 0, -1
"""Numbers of the workers' own stream of all-reduces, and of MPI's world."""


class Meeting(NamedTuple):
    """Meeting of joint calls of the same members: the n-th of one is the n-th of all."""

    members: tuple[int, ...]
    """Workers by group rank; of messages the sender and the receiver."""
    number: int
    """Number among the groups that these members have opened, from 1 on, or one of these; of messages their tag."""


ANYBODY = Meeting((), 0)
"""Meeting at which a message from any rank is received."""


def pack_call(meeting: Meeting, joint: Joint) -> bytes:
    """Return the bytes of a call at a meeting."""
    return struct.pack(f"<qH{len(meeting.members)}H", meeting.number, len(meeting.members), *meeting.members) + (
        joint.pack()
    )


def unpack_call(data: bytes) -> tuple[Meeting, Joint]:
    """Return what `pack_call` was given."""
    number, size = struct.unpack_from("<qH", data)
    members = struct.unpack_from(f"<{size}H", data, 10)
    at = 10 + 2 * size
    kind, flags, root, nbytes, itemsize, buffer, num_parts = _HEAD.unpack_from(data, at)
    parts = struct.unpack_from(f"<{num_parts}Q", data, at + _HEAD.size)
    is_ring, is_kept = bool(flags & _IS_RING), bool(flags & _IS_KEPT)
    joint = Joint(CollectiveKind(kind), nbytes, itemsize, root, is_ring, is_kept, buffer, parts)
    return Meeting(members, number), joint
