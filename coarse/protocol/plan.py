"""Plans of where every shard of a tensor is synchronised: of strategies, and as they are carried out.

All ranks compute the same plan from the same facts, so nothing about it travels with the data (COARSE III-E for routing
and partitioning, IV-A for sync groups).
"""

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from coarse.errors import ConfigError

Facts = tuple[int, ...]
"""Measurements of one worker, which it has told all others."""


class Tensor(NamedTuple):
    """Array, or bucket of gradients, that is summed as a whole."""

    key: int
    """Number of its name, 64 bits; equal on all ranks."""
    num_elements: int
    itemsize: int
    """Bytes of an element."""
    hint: int = 0
    """Number that `Strategy.hints` chose for it; 0 for an array of the script's own."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.num_elements * self.itemsize


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers and memory devices, by the node of each; equal on every rank."""

    worker_nodes: tuple[int, ...]
    """Node of each worker."""
    device_nodes: tuple[int, ...]
    """Node of each memory device."""
    local_devices: tuple[int, ...]
    """Device that the partition table names as each worker's own; it is on the worker's node."""

    @property
    def num_workers(self) -> int:
        """Workers on all nodes."""
        return len(self.worker_nodes)

    @property
    def num_devices(self) -> int:
        """Memory devices on all nodes."""
        return len(self.device_nodes)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Nodes that have workers, in order."""
        return tuple(sorted(set(self.worker_nodes)))

    def devices_on(self, node: int) -> tuple[int, ...]:
        """Return the devices of one node."""
        return self._devices.get(node, ())

    def workers_on(self, node: int) -> tuple[int, ...]:
        """Return the workers of one node."""
        return self._workers.get(node, ())

    @cached_property
    def devices_of_nodes(self) -> tuple[tuple[int, ...], ...]:
        """Devices of each of `nodes`."""
        return tuple(map(self.devices_on, self.nodes))

    @cached_property
    def _devices(self) -> dict[int, tuple[int, ...]]:
        return _by_node(self.device_nodes)

    @cached_property
    def _workers(self) -> dict[int, tuple[int, ...]]:
        return _by_node(self.worker_nodes)


def _by_node(nodes: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    return {node: tuple(number for number, at in enumerate(nodes) if at == node) for node in set(nodes)}


@dataclass(frozen=True, kw_only=True)
class Block:
    """Shards [first, last), and the devices that exchange their sums of them."""

    first: int
    last: int
    members: tuple[int, ...]
    exchange: str = "ring"
    """Way in which the members come to the total: "ring" (COARSE IV-A) or "star"."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of one tensor: where it lies and who sums it, as a strategy decides."""

    homes: tuple[int, ...]
    """Device in whose memory each worker's region lies; on the worker's node."""
    num_shards: int
    """Equal parts into which the tensor is cut."""
    blocks: tuple[Block, ...]
    """All shards, in order."""
    adds: tuple[tuple[int, ...], ...]
    """Workers whose contributions each device adds where they lie in the mapped memory of its node, by device."""


class Planner(Protocol):
    """Part of a strategy that the kernel asks."""

    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        """Return the plan of a tensor; equal on all ranks that have equal facts."""
        ...


def count_shards(nbytes: int, partition_bytes: int) -> int:
    """Return the number of equal shards of a tensor, none smaller than the partition size."""
    return max(1, nbytes // partition_bytes)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Knowledge of all ranks about the machine: nodes of clients and devices, and the strategy."""

    client_nodes: tuple[int, ...]
    device_nodes: tuple[int, ...]
    local_proxies: tuple[int, ...]
    ranks: tuple[int, ...]
    """World rank of every endpoint: clients first, then devices."""
    planner: Planner
    num_sync_groups: int = 2
    modelled: Cluster | None = None
    """Workers and devices as strategies see them, where these are of other nodes than the ranks: in emulation."""

    @cached_property
    def num_clients(self) -> int:
        """Number of clients on all nodes."""
        return len(self.client_nodes)

    @cached_property
    def num_devices(self) -> int:
        """Number of memory devices on all nodes."""
        return len(self.device_nodes)

    @cached_property
    def cluster(self) -> Cluster:
        """Workers and devices as strategies see them."""
        return self.modelled or self._here

    @cached_property
    def _here(self) -> Cluster:
        return Cluster(
            worker_nodes=self.client_nodes, device_nodes=self.device_nodes, local_devices=self.local_proxies
        )

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes that have clients, in order."""
        return self._here.nodes

    @cached_property
    def _known(self) -> "dict[Tensor, tuple[tuple[Facts, ...], ShardPlan]]":
        """Last plan of each tensor, with its facts."""
        return {}

    @cached_property
    def _carried_out(self) -> "dict[tuple[int, int], tuple[Plan, ShardPlan]]":
        """Plans as carried out, by identity of a strategy's plan, and elements.

        Names of one model share a few.
        """
        return {}

    def plan_of(self, tensor: Tensor, facts: tuple[Facts, ...]) -> "ShardPlan":
        """Return the plan of one tensor by the facts of all workers, the same on every rank.

        Raises:
            ConfigError: The strategy's plan cannot be carried out on this cluster; the error says why.
        """
        known = self._known.get(tensor)
        if known is not None and known[0] == facts:
            return known[1]
        plan = self.planner.plan(tensor, self.cluster, facts)
        same = id(plan), tensor.num_elements
        carried_out = self._carried_out.get(same)
        if carried_out is None:
            if wrong := misfit(plan, self.cluster):
                name = type(self.planner).__name__
                raise ConfigError(f"{name}.plan of {tensor}: {wrong}; correct the strategy", key="mode")
            carried_out = plan, ShardPlan.of(plan, tensor.num_elements, self.num_sync_groups)
            if len(self._carried_out) < _MOST_SHARED:
                self._carried_out[same] = carried_out
        if len(self._known) >= _MOST_KNOWN:  # names that were forgotten have keys of their own
            self._known.clear()
        self._known[tensor] = facts, carried_out[1]
        return carried_out[1]

    @cached_property
    def is_planned_by_others(self) -> bool:
        """True if the strategy is not coarse's own, so that ranks tell one another what they have planned."""
        return not type(self.planner).__module__.startswith("coarse.")

    def digest_of(self, tensor: Tensor, facts: tuple[Facts, ...]) -> int:
        """Return 32 bits of the plan of a tensor, never 0; 0 for coarse's own strategies."""
        if not self.is_planned_by_others:
            return 0
        plan = self.plan_of(tensor, facts)
        return zlib.crc32(repr((plan.homes, plan.members_by_block, plan.contributors_by_device)).encode()) or 1

    def describe(self, endpoint: int) -> str:
        """Return an endpoint's name for people."""
        kind, index = "worker", endpoint
        if endpoint >= self.num_clients:
            kind, index = "memory device", endpoint - self.num_clients
        return f"{kind} {index} (MPI rank {self.ranks[endpoint]})"

    def devices_on(self, node: int) -> tuple[int, ...]:
        """Return the device indices of one node."""
        return self._here.devices_on(node)

    def clients_on(self, node: int) -> tuple[int, ...]:
        """Return the client indices of one node."""
        return self._here.workers_on(node)


_MOST_KNOWN = 1 << 16
_MOST_SHARED = 1024
"""Most plans whose carried-out form is remembered: built-in strategies give few, and the same objects again."""


def misfit(plan: object, cluster: Cluster) -> str:
    """Return why a plan cannot be carried out on a cluster, in half a sentence; "" where it can be."""
    if not isinstance(plan, Plan):
        return f"wanted a Plan, got {plan!r}"
    if wrong := next((block for block in plan.blocks if not isinstance(block, Block)), None):
        return f"blocks must be Blocks, such as Block(first=0, last=1, members=(0, 1)), got {wrong!r}"
    return _misplaced(plan, cluster) or _uncovered(plan, cluster) or _unsummed(plan, cluster)


def _misplaced(plan: Plan, cluster: Cluster) -> str:
    """Return a reason if homes or adders are not of their worker's node; "" if they are."""
    if len(plan.homes) != cluster.num_workers or len(plan.adds) != cluster.num_devices:
        return (
            f"wanted a home for each of {cluster.num_workers} workers and workers to add for each of "
            f"{cluster.num_devices} devices, got {len(plan.homes)} and {len(plan.adds)}"
        )
    for worker, home in enumerate(plan.homes):
        near = cluster.devices_on(cluster.worker_nodes[worker])
        last = cluster.num_devices - 1
        if home not in range(last + 1):
            return f"worker {worker} has its home on device {home!r}, and there are devices 0 to {last}"
        if home not in near:
            return f"worker {worker} has its home on device {home}, and reaches {near} of its node alone"
    for device, workers in enumerate(plan.adds):
        here = cluster.workers_on(cluster.device_nodes[device])
        if not set(workers) <= set(here) or len(set(workers)) < len(workers):
            return f"device {device} adds {workers}, and reaches each of {here} of its node once"
    return ""


def _uncovered(plan: Plan, cluster: Cluster) -> str:
    """Return a reason if blocks omit or repeat shards, or name members that do not exist; "" if not."""
    at = 0
    if plan.num_shards < 1:
        return f"wanted at least one shard, got {plan.num_shards}"
    for block in plan.blocks:
        if block.first != at or block.last <= block.first:
            return f"blocks must take shards 0..{plan.num_shards} in order, got [{block.first}, {block.last}) at {at}"
        members = block.members
        if not members or len(set(members)) < len(members) or not set(members) <= set(range(cluster.num_devices)):
            return f"members of a block must be different ones of {cluster.num_devices} devices, got {members}"
        if block.exchange not in EXCHANGES:
            return f"an exchange must be one of {', '.join(EXCHANGES)}, got {block.exchange!r}"
        at = block.last
    return "" if at == plan.num_shards else f"blocks end at shard {at} of {plan.num_shards}"


def _unsummed(plan: Plan, cluster: Cluster) -> str:
    """Return a reason if no member of a block, or two of them, add a worker's contribution; "" if not."""
    for block in plan.blocks:
        added = sorted(worker for device in block.members for worker in plan.adds[device])
        if added != list(range(cluster.num_workers)):
            missing = sorted(set(range(cluster.num_workers)) - set(added))
            twice = sorted({worker for worker in added if added.count(worker) > 1})
            faults = (f"no member adds {missing}" if missing else "", f"{twice} are added twice" if twice else "")
            return (
                f"each worker must be added once among the members {block.members} of shards "
                f"[{block.first}, {block.last}): {' and '.join(filter(None, faults))}"
            )
    return ""


EXCHANGES = ("ring", "star")
"""Ways in which devices come to a total; see proxy/exchanges.py."""


@dataclass(frozen=True)
class ShardPlan:
    """Plan as clients and proxies carry it out: which shards of a key each synchronises in an epoch."""

    num_shards: int
    num_elements: int
    members_by_block: tuple[tuple[int, int, tuple[int, ...]], ...]
    """Triples of first shard, past the last, and members of the exchange."""
    contributors_by_device: tuple[tuple[int, ...], ...]
    """Client indices whose contributions each device reduces."""
    num_sync_groups: int
    homes: tuple[int, ...] = ()
    """Device that holds each client's region."""
    exchanges: tuple[str, ...] = ()
    """Name of each block's exchange; () for rings everywhere."""

    @classmethod
    def of(cls, plan: Plan, num_elements: int, num_sync_groups: int) -> "ShardPlan":
        """Return the form in which a plan is carried out for a tensor of so many elements."""
        exchanges = tuple(block.exchange for block in plan.blocks)
        return cls(
            plan.num_shards,
            num_elements,
            tuple((block.first, block.last, block.members) for block in plan.blocks),
            plan.adds,
            num_sync_groups,
            plan.homes,
            exchanges if set(exchanges) != {"ring"} else (),
        )

    def exchange(self, shard: int) -> str:
        """Return the name of the exchange of one shard."""
        for name, (first, last, _) in zip(self.exchanges, self.members_by_block, strict=False):
            if first <= shard < last:
                return name
        return "ring"

    def members(self, shard: int) -> tuple[int, ...]:
        """Return the devices of the ring that synchronises a shard, in ring order for direction +1."""
        for first, last, members in self.members_by_block:
            if first <= shard < last:
                return members
        raise IndexError(f"shard {shard} of {self.num_shards}")

    def direction(self, shard: int) -> int:
        """Return the direction of a shard's ring: adjacent sync groups run in opposite ones (COARSE IV-A)."""
        return 1 if (shard % self.num_sync_groups) % 2 == 0 else -1

    def targets(self, client: int) -> tuple[tuple[int, int, int], ...]:
        """Return (device, first shard, past the last) of each announcement of a client's shards."""
        return tuple(
            (device, first, last)
            for first, last, members in self.members_by_block
            for device in members
            if client in self.contributors_by_device[device]
        )

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """Return first and past-the-last element of the shards [first, last).

        Shards differ by at most one element.
        """
        return (
            first * self.num_elements // self.num_shards,
            last * self.num_elements // self.num_shards,
        )

    def nbytes(self, first: int, last: int, itemsize: int) -> int:
        """Return the bytes of the shards [first, last)."""
        begin, end = self.bounds(first, last)
        return (end - begin) * itemsize


def mask_of(first: int, last: int) -> int:
    """Return the bit set of shards [first, last)."""
    return (1 << last) - (1 << first)


def runs_of(mask: int) -> list[tuple[int, int]]:
    """Return the maximal runs [first, last) of set bits, in order."""
    runs = []
    first = 0
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        first += gap
        length = (~mask & (mask + 1)).bit_length() - 1
        runs.append((first, first + length))
        mask >>= length
        first += length
    return runs
