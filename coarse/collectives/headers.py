"""Headers that members exchange before a collective moves anything, so that a difference is an error.

Without them it would be a hang.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coarse.collectives.conditions import Messages
from coarse.collectives.node_memory import HEADERS
from coarse.collectives.progress import Conditions
from coarse.errors import MismatchError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.joint import CollectiveKind
from coarse.protocol.records import Tag, key_of

if TYPE_CHECKING:  # importing it starts MPI
    from coarse.collectives.wire import GroupWire


class Header(NamedTuple):
    """Header of a collective: all that must be the same on all members."""

    kind: CollectiveKind
    number: int
    """Number of jobs that the group's members have submitted, this one included."""
    name: int
    """Hash of the collective's purpose and of everything else that its members must have the same."""
    nbytes: int
    """Bytes of the largest array."""
    dtype: DType = DType.UINT8
    op: Op = Op.SUM
    keeps: int = 0
    """1 if the node keeps the bytes."""

    @classmethod
    def of(cls, kind: CollectiveKind, number: int, what: str, nbytes: int, must_match: str = "") -> "Header":
        """Return a header of bytes."""
        return cls(kind, number, key_of(f"{what}\0{must_match}") >> 1, nbytes)

    def __str__(self) -> str:
        reduced = f" of {self.dtype.label} op={self.op.name.lower()}"
        is_sum = self.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
        return f"{self.kind.name.lower()} of {self.nbytes} bytes{reduced if is_sum else ''} (number {self.number})"


def agree(wire: "GroupWire", members: Sequence[int], header: Header, what: str) -> Conditions:
    """Exchange headers with other members, by group rank, until all have come to this collective.

    Raises:
        MismatchError: on all of them, where two differ.
    """
    mine = np.array(header, np.int64)
    theirs = {member: np.empty_like(mine) for member in members if member != wire.rank}
    messages = Messages()
    for member, into in theirs.items():
        wire.receive(messages, member, into, HEADERS, Tag.HEADER)
        wire.send(messages, member, mine, HEADERS, Tag.HEADER)
    yield messages
    headers = {member: _read(theirs.get(member, mine)) for member in members}
    first = members[0]
    for member in members:
        if headers[member] != headers[first]:
            is_renamed = headers[member]._replace(name=headers[first].name) == headers[first]
            raise MismatchError(
                f"rank {wire.workers[wire.rank]}: {what!r}: rank {wire.workers[first]} submitted {headers[first]}, and "
                f"rank {wire.workers[member]} {headers[member]}{' under another name' if is_renamed else ''}; "
                "all members of a group submit the same collectives in the same order"
            )


def _read(words: np.ndarray) -> Header:
    kind, number, name, nbytes, dtype, op, keeps = words.tolist()
    return Header(CollectiveKind(kind), number, name, nbytes, DType(dtype), Op(op), keeps)
