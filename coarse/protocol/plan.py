"""Where every shard of a tensor is synchronised: routing tables, the cut into shards, the members of its ring.

All ranks compute the same plan from the same tables, so nothing about it travels with the data
(COARSE III-E for routing and partitioning, IV-A for sync groups).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class RoutingTable:
    """One client's table (COARSE III-E): a size threshold, two proxies, and its partition size."""

    threshold_bytes: int
    latency_proxy: int
    bandwidth_proxy: int
    partition_bytes: int

    @property
    def row(self) -> tuple[int, int, int, int]:
        """Its fields in order, as they travel."""
        return self.threshold_bytes, self.latency_proxy, self.bandwidth_proxy, self.partition_bytes

    @classmethod
    def of_row(cls, row: Sequence[int]) -> "RoutingTable":
        """The table whose `row` this is."""
        threshold, latency, bandwidth, partition = row
        return cls(
            threshold_bytes=threshold, latency_proxy=latency, bandwidth_proxy=bandwidth, partition_bytes=partition
        )


def proxy_for(nbytes: int, table: RoutingTable) -> int:
    """The device index of the proxy that takes a tensor of `nbytes` (COARSE III-E)."""
    return table.bandwidth_proxy if nbytes > table.threshold_bytes else table.latency_proxy


def count_shards(nbytes: int, partition_bytes: int) -> int:
    """How many equal shards a tensor is cut into, none smaller than the partition size."""
    return max(1, nbytes // partition_bytes)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What all ranks know of the machine: on which node each client and device is.

    `collective` is "in_place" (one device of a node reduces the contributions of all its clients
    where they lie in mapped memory), "central" (the same, but always the node's first device) or "ring"
    (every device reduces its own clients' and joins the ring).
    """

    client_nodes: tuple[int, ...]
    device_nodes: tuple[int, ...]
    local_proxies: tuple[int, ...]
    ranks: tuple[int, ...]
    """World rank of every endpoint: clients first, then devices."""
    collective: str
    num_sync_groups: int

    @cached_property
    def num_clients(self) -> int:
        """How many clients there are on all nodes."""
        return len(self.client_nodes)

    @cached_property
    def num_devices(self) -> int:
        """How many memory devices there are on all nodes."""
        return len(self.device_nodes)

    @cached_property
    def turns(self) -> int:
        """Keys that are equal modulo this have the same devices, where shards are of one size."""
        return math.lcm(*(len(self.adders_on(node)) for node in self.nodes))

    @cached_property
    def plans(self) -> "dict[tuple[int, int, int], SyncPlan]":
        """What `plan_key` has made of (turn, number of shards, number of elements): names of one model share a few."""
        return {}

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that have clients, in order."""
        return tuple(sorted(set(self.client_nodes)))

    def describe(self, endpoint: int) -> str:
        """An endpoint by name, for people."""
        kind, index = "worker", endpoint
        if endpoint >= self.num_clients:
            kind, index = "memory device", endpoint - self.num_clients
        return f"{kind} {index} (MPI rank {self.ranks[endpoint]})"

    def devices_on(self, node: int) -> tuple[int, ...]:
        """Device indices of one node."""
        return tuple(d for d, at in enumerate(self.device_nodes) if at == node)

    def adders_on(self, node: int) -> tuple[int, ...]:
        """Device indices of one node among which shards are dealt."""
        near = self.devices_on(node)
        return near[:1] if self.collective == "central" else near

    def clients_on(self, node: int) -> tuple[int, ...]:
        """Client indices of one node."""
        return tuple(c for c, at in enumerate(self.client_nodes) if at == node)


@dataclass(frozen=True)
class SyncPlan:
    """Who synchronises which shards of one key in one epoch."""

    num_shards: int
    num_elements: int
    members_by_block: tuple[tuple[int, int, tuple[int, ...]], ...]
    """(first shard, past the last, ring members in order of device index)."""
    contributors_by_device: tuple[tuple[int, ...], ...]
    """Client indices whose contributions each device reduces."""
    num_sync_groups: int

    def members(self, shard: int) -> tuple[int, ...]:
        """Devices of the ring that synchronises a shard, in ring order for direction +1."""
        for first, last, members in self.members_by_block:
            if first <= shard < last:
                return members
        raise IndexError(f"shard {shard} of {self.num_shards}")

    def direction(self, shard: int) -> int:
        """Adjacent sync groups run in opposite directions (COARSE IV-A)."""
        return 1 if (shard % self.num_sync_groups) % 2 == 0 else -1

    def targets(self, client: int) -> tuple[tuple[int, int, int], ...]:
        """(device, first shard, past the last): where a client announces its shards."""
        return tuple(
            (device, first, last)
            for first, last, members in self.members_by_block
            for device in members
            if client in self.contributors_by_device[device]
        )

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """First and past-the-last element of the shards [first, last); shards differ by at most one element."""
        return (
            first * self.num_elements // self.num_shards,
            last * self.num_elements // self.num_shards,
        )


def plan_key(
    key: int, num_elements: int, itemsize: int, tables: Sequence[RoutingTable], placement: Placement
) -> SyncPlan:
    """The plan of one key, the same on every rank: boundaries follow the largest partition size."""
    nbytes = num_elements * itemsize
    num_shards = count_shards(nbytes, max(table.partition_bytes for table in tables))
    if placement.collective == "ring":
        blocks, contributors = _ring_everywhere(num_shards, nbytes, tables, placement)
        return SyncPlan(num_shards, num_elements, blocks, contributors, placement.num_sync_groups)
    same = key % placement.turns, num_shards, num_elements
    plan = placement.plans.get(same)
    if plan is None:
        blocks, contributors = _reduce_on_each_node(key, num_shards, placement)
        plan = SyncPlan(num_shards, num_elements, blocks, contributors, placement.num_sync_groups)
        placement.plans[same] = plan
    return plan


Blocks = tuple[tuple[int, int, tuple[int, ...]], ...]
Contributors = tuple[tuple[int, ...], ...]


def _ring_everywhere(
    num_shards: int, nbytes: int, tables: Sequence[RoutingTable], placement: Placement
) -> tuple[Blocks, Contributors]:
    routes = [proxy_for(nbytes, table) for table in tables]
    contributors = tuple(
        tuple(c for c, route in enumerate(routes) if route == device)
        for device in range(placement.num_devices)
    )
    return ((0, num_shards, tuple(range(placement.num_devices))),), contributors


def _reduce_on_each_node(
    key: int, num_shards: int, placement: Placement
) -> tuple[Blocks, Contributors]:
    """Each node's devices take equal runs of shards; the key rotates which device is first."""
    devices = [placement.adders_on(node) for node in placement.nodes]
    cuts = {0, num_shards}
    for local in devices:
        cuts |= {-(-i * num_shards // len(local)) for i in range(len(local))}
    edges = sorted(cuts)
    blocks = tuple(
        (
            first,
            last,
            tuple(local[(first * len(local) // num_shards + key) % len(local)] for local in devices),
        )
        for first, last in pairwise(edges)
    )
    served = {device for _, _, members in blocks for device in members}
    contributors = tuple(
        placement.clients_on(placement.device_nodes[device]) if device in served else ()
        for device in range(placement.num_devices)
    )
    return blocks, contributors


def mask_of(first: int, last: int) -> int:
    """The bit set of shards [first, last)."""
    return (1 << last) - (1 << first)


def runs_of(mask: int) -> list[tuple[int, int]]:
    """The maximal runs [first, last) of set bits, in order."""
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
