"""Memory of a node's devices that a group's members on the node share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coarse.client.client import Client
from coarse.collectives.conditions import Messages
from coarse.collectives.progress import Conditions
from coarse.errors import CapacityError
from coarse.protocol.records import Tag

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.collectives.wire import GroupWire

_RECORD_BYTES = 1024
_WORDS = 2


class NodeRegion(NamedTuple):
    """Bytes of one device that a node's members have mapped."""

    device: int
    offset: int
    nbytes: int


class NodeBuffer:
    """Device memory that all of a group's members on one node have mapped: one copy per node."""

    def __init__(
        self, name: str, region: NodeRegion, array: np.ndarray, give_back: "Callable[[NodeBuffer], None]"
    ) -> None:
        self.name = name
        self.region = region
        self.nbytes = region.nbytes
        self.array = array
        """Bytes of the buffer, (nbytes,) uint8; the collectives that were given the buffer define its content."""
        self._give_back = give_back

    def release(self) -> None:
        """Free the memory, once all jobs before have ended.

        All members call it, and do not touch the memory afterwards.
        """
        self._give_back(self)


class NodeDevices:
    """Devices of a worker's node, which share its regions among them."""

    def __init__(self, client: Client, devices: tuple[int, ...]) -> None:
        self._client = client
        self._taken_bytes = dict.fromkeys(devices, 0)

    def allocate(self, nbytes: int) -> NodeRegion:
        """Allocate a region on the device that has given this worker the fewest bytes.

        If that one is full, another device is asked.

        Raises:
            CapacityError: no device has room, with the text of the first of them.
        """
        refusals = []
        for device in sorted(self._taken_bytes, key=lambda known: self._taken_bytes[known]):
            try:
                offset, _ = self._client.allocate(device, nbytes)
            except CapacityError as refused:
                refusals.append(refused)
                continue
            self._taken_bytes[device] += nbytes
            return NodeRegion(device, offset, nbytes)
        raise refusals[0]

    def view(self, region: NodeRegion) -> np.ndarray:
        """Return the bytes of a region, which any member may have allocated."""
        return self._client.memories[region.device].view(region.offset, region.nbytes)

    def free(self, region: NodeRegion) -> None:
        """Free a region that `allocate` gave to this worker."""
        self._taken_bytes[region.device] -= region.nbytes
        self._client.free(region.device, region.offset)


def agree_on_region(
    wire: "GroupWire", devices: NodeDevices, nbytes: int, num_zeros: int, found: list[NodeRegion]
) -> Conditions:
    """Have the first member of every node take a region of `nbytes` and tell the whole group.

    The first `num_zeros` bytes are zeros. The region of this member's node is appended to `found`.

    Raises:
        CapacityError: a node has no room; on all members, after the others have freed theirs.
    """
    shape, mine = wire.shape, None
    firsts = [members[0] for members in shape.members_by_node]
    records = np.zeros((len(firsts), _RECORD_BYTES), np.uint8)
    node = shape.place(wire.rank)[0]
    if wire.rank in firsts:
        try:
            mine = devices.allocate(nbytes)
            devices.view(mine)[:num_zeros] = 0
            _write(records[node], mine, "")
        except CapacityError as refused:
            _write(records[node], NodeRegion(-1, -1, 0), str(refused))
    messages = Messages()
    for number, first in enumerate(firsts):
        if first != wire.rank:
            wire.receive(messages, first, records[number], HEADERS, Tag.REGION)
    if wire.rank in firsts:
        for member in range(shape.size):
            if member != wire.rank:
                wire.send(messages, member, records[node], HEADERS, Tag.REGION)
    yield messages
    read = [_read(record, nbytes) for record in records]
    refusals = [text for region, text in read if region.device < 0]
    if refusals:
        if mine is not None:
            devices.free(mine)
        raise CapacityError(refusals[0])
    found.append(read[node][0])


HEADERS = "headers"
"""Purpose under which bytes are counted that announce a collective."""


def _write(record: np.ndarray, region: NodeRegion, text: str) -> None:
    words = record[: 8 * _WORDS].view(np.int64)
    words[:] = region.device, region.offset
    encoded = text.encode()[: _RECORD_BYTES - 8 * _WORDS]
    record[8 * _WORDS : 8 * _WORDS + len(encoded)] = np.frombuffer(encoded, np.uint8)


def _read(record: np.ndarray, nbytes: int) -> tuple[NodeRegion, str]:
    device, offset = record[: 8 * _WORDS].view(np.int64).tolist()
    return NodeRegion(device, offset, nbytes), record[8 * _WORDS :].tobytes().rstrip(b"\0").decode(errors="replace")
