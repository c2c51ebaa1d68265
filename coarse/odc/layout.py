# Pure: no MPI, threads, clock or environment.
"""Layout of a model under on-demand communication (ODC): its units, owners of rows, places of bytes.

All ranks know it.

[Note: agents] Every node has a place for each owner's shards and sums. For an owner on the node it is the owner's own
region. For one elsewhere it lies, where units are kept on the node, in the region of a member to which the owner was
assigned, the owner's agent there, and that member's device fills and empties it. For units that are not kept a worker
has its own landing places.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple, Self

from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.strategy.sharding import Sum

_ALIGNMENT = 64
NUM_LANDINGS = 2
"""Number of other nodes' units that a worker may fetch at once where the node keeps none: one ahead."""
NO_TOKENS = -1.0
"""Statement of a worker that does not give the number of tokens over which its losses were summed."""
EVERYTHING = -1
"""Value of `cache_bytes`: as many as are needed."""


class OdcUnit(NamedTuple):
    """Unit that is fetched as a whole."""

    shard_nbytes: int
    """Bytes of one owner's shard, packed and padded, in the gathered type."""
    segments: tuple[int, ...]
    """Elements of an owner's row for each parameter that may have a gradient."""
    dtype: int
    """Type of gradients."""

    @property
    def num_elements(self) -> int:
        """Number of elements of an owner's row."""
        return sum(self.segments)

    def num_pushed(self, mask: int) -> int:
        """Return the number of elements of an owner's row of a piece."""
        return sum(count for place, count in enumerate(self.segments) if mask >> place & 1)

    def runs(self, mask: int, among: int) -> list[tuple[int, int, int]]:
        """Return runs of a mask's neighbouring parameters, which are some of those that a piece has.

        Each is (begin in the piece's row, begin in the sums' row, elements).
        """
        found: list[tuple[int, int, int]] = []
        at_piece = at_sum = 0
        for place, count in enumerate(self.segments):
            if mask >> place & 1:
                if found and found[-1][1] + found[-1][2] == at_sum:
                    begin, sum_begin, before = found.pop()
                    found.append((begin, sum_begin, before + count))
                else:
                    found.append((at_piece, at_sum, count))
            if among >> place & 1:
                at_piece += count
            at_sum += count
        return found


@dataclass(frozen=True, kw_only=True)
class OdcDeclaration:
    """Declaration of a model, as all members state it."""

    members: tuple[int, ...]
    """Clients, in the order of rows."""
    units: tuple[OdcUnit, ...]
    sum: Sum
    cache_bytes: int
    """Bytes that a node may keep of other nodes' shards, and of sums for them; EVERYTHING for no limit."""
    top: int
    """Exponent of int64 sums: values lie below 2**top."""
    num_slots: int
    """Number of pieces of one worker that may be under way."""

    def to_text(self) -> str:
        """Return the declaration as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the declaration of a text that `to_text` gave."""
        found = json.loads(text)
        units = tuple(OdcUnit(nbytes, tuple(segments), dtype) for nbytes, segments, dtype in found["units"])
        return cls(
            members=tuple(found["members"]), units=units, sum=Sum(found["sum"]), cache_bytes=found["cache_bytes"],
            top=found["top"], num_slots=found["num_slots"],
        )  # fmt: skip

    def sum_nbytes(self, unit: int) -> int:
        """Return the bytes of one owner's sums of a unit."""
        shape = self.units[unit]
        itemsize = 16 if self.sum is Sum.INT64 else DType(shape.dtype).accumulator.itemsize
        return shape.num_elements * itemsize

    def piece_nbytes(self, unit: int, mask: int) -> int:
        """Return the bytes of one owner's row of a piece."""
        nbytes = self._piece_nbytes.get((unit, mask))
        if nbytes is None:
            shape = self.units[unit]
            nbytes = self._piece_nbytes[unit, mask] = shape.num_pushed(mask) * DType(shape.dtype).itemsize
        return nbytes

    @cached_property
    def _piece_nbytes(self) -> dict[tuple[int, int], int]:
        """Cache of bytes by unit and mask: a model's passes have few masks."""
        return {}

    @cached_property
    def slot_nbytes(self) -> int:
        """Bytes of the largest piece."""
        rows = [unit.num_elements * DType(unit.dtype).itemsize for unit in self.units]
        return len(self.members) * max(rows, default=0)


class Spot(NamedTuple):
    """Place of bytes in a device's memory."""

    device: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Region:
    """Division of one member's region of device memory: offsets from its beginning, by unit if not stated."""

    publications: tuple[int, ...]
    sums: tuple[int, ...]
    slots: tuple[int, ...]
    landings: tuple[int, ...]
    copies: dict[tuple[int, int], int]
    """Offsets by (owner, unit) of the owners whose agent it is."""
    partial_sums: dict[tuple[int, int], int]
    nbytes: int


class OdcLayout:
    """Places of all shards and sums; pure arithmetic on a declaration and a placement."""

    def __init__(self, declaration: OdcDeclaration, placement: Placement) -> None:
        self.declaration = declaration
        self.members = declaration.members
        self._nodes = placement.cluster.worker_nodes
        self._proxies = placement.cluster.local_devices
        self._position = {member: place for place, member in enumerate(self.members)}
        nodes = {self._nodes[member] for member in self.members}
        self._near = {node: tuple(one for one in self.members if self._nodes[one] == node) for node in nodes}
        self._far = {node: tuple(one for one in self.members if self._nodes[one] != node) for node in nodes}

    # --- who

    def position(self, member: int) -> int:
        """Return the number of a member's row in a piece, and in a gathered unit."""
        return self._position[member]

    def node_of(self, member: int) -> int:
        """Return a member's node."""
        return self._nodes[member]

    def device_of(self, member: int) -> int:
        """Return the device that serves a member's shards."""
        return self._proxies[member]

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """All devices that serve the model."""
        return tuple(sorted({self._proxies[member] for member in self.members}))

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that have members."""
        return tuple(sorted(self._near))

    def near(self, node: int) -> tuple[int, ...]:
        """Return the members on a node."""
        return self._near[node]

    def far(self, node: int) -> tuple[int, ...]:
        """Return the members that are not on a node."""
        return self._far[node]

    def owners_at(self, device: int) -> tuple[int, ...]:
        """Return the members whose shards a device serves."""
        return tuple(member for member in self.members if self._proxies[member] == device)

    def agent(self, node: int, owner: int) -> int:
        """Return the agent of an owner on a node; see [Note: agents]."""
        if self._nodes[owner] == node:
            return owner
        near = self._near[node]
        return near[self._position[owner] % len(near)]

    @cached_property
    def kept(self) -> frozenset[int]:
        """Units that every node keeps of other nodes' owners: the first ones that there is room for.

        All are gathered equally often and gain equally by byte, so their order decides, as FCDP's does.
        """
        if not self.declaration.cache_bytes or len(self.nodes) == 1:
            return frozenset()
        most_far = max(len(self.far(node)) for node in self.nodes)
        found, left = set(), self.declaration.cache_bytes
        for unit, shape in enumerate(self.declaration.units):
            nbytes = most_far * (_aligned(shape.shard_nbytes) + _aligned(self.declaration.sum_nbytes(unit)))
            if self.declaration.cache_bytes == EVERYTHING or nbytes <= left:
                found.add(unit)
                left -= nbytes
        return frozenset(found)

    # --- what becomes of a piece

    def adds(self, device: int, client: int, unit: int) -> tuple[int, ...]:
        """Return the owners for whom a device adds rows of a piece in a slot of a worker of its node."""
        node = self._nodes[client]
        near = [owner for owner in self.near(node) if self._proxies[owner] == device]
        if unit in self.kept:
            near += [owner for owner in self.far(node) if self._proxies[self.agent(node, owner)] == device]
        return tuple(near)

    def sends(self, device: int, client: int, unit: int) -> dict[int, tuple[int, ...]]:
        """Return the owners whose rows a device sends to other nodes, by their devices."""
        if unit in self.kept or self._proxies[client] != device:
            return {}
        found: dict[int, tuple[int, ...]] = {}
        for owner in self.far(self._nodes[client]):
            found[self._proxies[owner]] = (*found.get(self._proxies[owner], ()), owner)
        return found

    def told(self, client: int, unit: int) -> tuple[int, ...]:
        """Return the devices of its node that a worker tells of a piece."""
        return tuple(
            device for device in self.devices_on(self._nodes[client])
            if self.adds(device, client, unit) or self.sends(device, client, unit)
        )  # fmt: skip

    def num_answers(self, client: int, unit: int) -> int:
        """Return the number of devices that answer that they have added rows of a piece."""
        near = self.devices_on(self._nodes[client])
        adding = sum(bool(self.adds(device, client, unit)) for device in near)
        return adding + len(self.sends(self._proxies[client], client, unit))

    def devices_on(self, node: int) -> tuple[int, ...]:
        """Return the devices of a node that serve members."""
        return tuple(sorted({self._proxies[member] for member in self.near(node)}))

    # --- where

    def region(self, member: int) -> Region:
        """Return the division of a member's region."""
        return self._regions[member]

    @cached_property
    def _regions(self) -> dict[int, Region]:
        return {member: self._cut(member) for member in self.members}

    def _cut(self, member: int) -> Region:
        units, node = self.declaration.units, self._nodes[member]
        far = self.far(node)
        dealt = [owner for owner in far if self.agent(node, owner) == member]
        cut = _Cut()
        publications = cut.each(unit.shard_nbytes for unit in units)
        sums = cut.each(self.declaration.sum_nbytes(unit) for unit in range(len(units)))
        slots = cut.each([self.declaration.slot_nbytes] * self.declaration.num_slots)
        rest = [unit.shard_nbytes for number, unit in enumerate(units) if number not in self.kept]
        landing = len(far) * max(rest, default=0)
        landings = cut.each([landing] * NUM_LANDINGS) if landing else ()
        pairs = [(owner, unit) for owner in dealt for unit in sorted(self.kept)]
        copies = {pair: cut.take(units[pair[1]].shard_nbytes) for pair in pairs}
        partial_sums = {pair: cut.take(self.declaration.sum_nbytes(pair[1])) for pair in pairs}
        return Region(
            publications=publications, sums=sums, slots=slots, landings=landings, copies=copies,
            partial_sums=partial_sums, nbytes=max(cut.end, _ALIGNMENT),
        )  # fmt: skip


class OdcSizes(NamedTuple):
    """Sizes for the costs of a device's records, and of the steps that it carries out."""

    layout: OdcLayout
    device: int


class _Cut:
    """Allocator of aligned pieces, one behind another."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, nbytes: int) -> int:
        begin, self.end = self.end, self.end + _aligned(nbytes)
        return begin

    def each(self, sizes: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.take(nbytes) for nbytes in sizes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Spots:
    """Places of all bytes, once the offset of each member's region is known."""

    def __init__(self, layout: OdcLayout, bases: dict[int, int]) -> None:
        """Start with `bases`, by member the offset of its region in its device's memory."""
        self._layout = layout
        self._bases = bases
        self._sums: dict[tuple[int, int, int], Spot] = {}
        """Spots of sums by node, owner and unit, as far as they were asked for."""

    def published(self, owner: int, unit: int) -> Spot:
        """Return the place of an owner's publication."""
        return self._spot(owner, self._layout.region(owner).publications[unit])

    def copy(self, node: int, owner: int, unit: int) -> Spot:
        """Return the place from which a node reads an owner's shard."""
        agent = self._layout.agent(node, owner)
        if agent == owner:
            return self.published(owner, unit)
        return self._spot(agent, self._layout.region(agent).copies[owner, unit])

    def sums(self, node: int, owner: int, unit: int) -> Spot:
        """Return the place in which a node adds pieces for an owner."""
        spot = self._sums.get((node, owner, unit))
        if spot is None:
            agent = self._layout.agent(node, owner)
            region = self._layout.region(agent)
            offset = region.sums[unit] if agent == owner else region.partial_sums[owner, unit]
            spot = self._sums[node, owner, unit] = self._spot(agent, offset)
        return spot

    def landed(self, client: int, unit: int, landing: int, owner: int) -> Spot:
        """Return the place of an owner's shard that a worker has fetched for itself."""
        row = self._layout.far(self._layout.node_of(client)).index(owner)
        offset = self._layout.region(client).landings[landing] + row * self._layout.declaration.units[unit].shard_nbytes
        return self._spot(client, offset)

    def row(self, client: int, unit: int, mask: int, slot: int, owner: int) -> Spot:
        """Return the place of an owner's row of a piece."""
        row_nbytes = self._layout.declaration.piece_nbytes(unit, mask)
        return self._spot(client, self._layout.region(client).slots[slot] + self._layout.position(owner) * row_nbytes)

    def _spot(self, member: int, offset: int) -> Spot:
        return Spot(self._layout.device_of(member), self._bases[member] + offset)
