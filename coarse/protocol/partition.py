"""Partition table: the role of each rank (worker or memory device), its node and its switch."""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from coarse.errors import ConfigError
from coarse.protocol.place import Anywhere, MemoryPlace


class Role(enum.Flag):
    """Role of a rank; a rank may have both."""

    WORKER = enum.auto()
    MEMORY_DEVICE = enum.auto()


ROLE_NAMES = {
    "worker": Role.WORKER,
    "memory_device": Role.MEMORY_DEVICE,
    "both": Role.WORKER | Role.MEMORY_DEVICE,
}
DEFAULT_SWITCH = "0"


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """World rank with its roles and its place."""

    rank: int
    roles: Role
    node: str
    switch: str = DEFAULT_SWITCH
    """Bus switch that the rank hangs on; names count within one node."""
    memory: MemoryPlace = field(default_factory=Anywhere)
    """Place in which a memory device keeps its bytes."""
    memory_said_at: str = field(default="", compare=False, repr=False)
    """Origin of `memory` as `file:line`, for errors."""

    def __post_init__(self) -> None:
        if not self.roles:
            raise ConfigError(f"rank {self.rank} has no role; give it one", key="role")
        if self.memory != Anywhere() and Role.MEMORY_DEVICE not in self.roles:
            raise ConfigError(
                f"rank {self.rank} is no memory device, so it has no memory to place, got '{self.memory}'; "
                "remove it, or give the rank that role too",
                key="memory",
            )


@dataclass(frozen=True, kw_only=True)
class PartitionTable:
    """All places by rank.

    Client c is the c-th worker, and device d is the d-th memory device.
    """

    places: tuple[RankPlace, ...]
    local_proxies: tuple[int, ...]
    """Device index of each client's local proxy, which stands on the same node."""

    def __post_init__(self) -> None:
        ranks = tuple(place.rank for place in self.places)
        if ranks != tuple(range(len(ranks))):
            raise ConfigError(f"places must be of ranks 0, 1, ... in order, got {ranks}")
        for role, name in ((Role.WORKER, "worker"), (Role.MEMORY_DEVICE, "memory device")):
            if not ranks_with(self.places, role):
                raise ConfigError(
                    f"no {name} among {len(ranks)} ranks; start more, or give one both roles"
                )
        wanted = [self.node_of_client(client) for client in range(self.num_workers)]
        near = [device in range(self.num_devices) for device in self.local_proxies]
        if not all(near) or [self.node_of_device(d) for d in self.local_proxies] != wanted:
            raise ConfigError(
                f"local_proxies must name a device on each worker's node, {wanted}, "
                f"got {self.local_proxies}"
            )

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """World ranks of the workers; the client index is the position."""
        return ranks_with(self.places, Role.WORKER)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """World ranks of the memory devices; the device index is the position."""
        return ranks_with(self.places, Role.MEMORY_DEVICE)

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @property
    def num_devices(self) -> int:
        """Number of memory devices."""
        return len(self.devices)

    def client_of(self, rank: int) -> int | None:
        """Return the client index of a world rank, None if it is no worker."""
        return self.workers.index(rank) if rank in self.workers else None

    def device_of(self, rank: int) -> int | None:
        """Return the device index of a world rank, None if it is no memory device."""
        return self.devices.index(rank) if rank in self.devices else None

    def node_of_client(self, client: int) -> str:
        """Return the node on which client `client` stands."""
        return self.places[self.workers[client]].node

    def node_of_device(self, device: int) -> str:
        """Return the node on which device `device` stands."""
        return self.places[self.devices[device]].node

    def clients_on(self, node: str) -> tuple[int, ...]:
        """Return the client indices on `node`, in order."""
        return tuple(c for c in range(self.num_workers) if self.node_of_client(c) == node)

    def devices_on(self, node: str) -> tuple[int, ...]:
        """Return the device indices on `node`, in order."""
        return tuple(d for d in range(self.num_devices) if self.node_of_device(d) == node)


def partition_from_nodes(
    nodes: Sequence[str], *, workers: int | None = None, devices: int | None = None
) -> PartitionTable:
    """Return the table for ranks on `nodes` (host name by world rank), workers first on each node.

    By default each node has half workers and half devices, an odd rank is a worker, and a lone rank has both roles.
    With `workers` and `devices`, devices are dealt to nodes in proportion to their ranks.
    """
    ranks_by_node: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks_by_node.setdefault(node, []).append(rank)
    if workers is None and devices is None:
        num_devices = [len(ranks) // 2 for ranks in ranks_by_node.values()]
    else:
        wanted_devices = _checked_num_devices(len(nodes), workers, devices)
        num_devices = _dealt_devices([len(r) for r in ranks_by_node.values()], wanted_devices)
    roles = [ROLE_NAMES["worker"]] * len(nodes)
    for ranks, count in zip(ranks_by_node.values(), num_devices, strict=True):
        for rank in ranks[len(ranks) - count :]:
            roles[rank] = Role.MEMORY_DEVICE
        if len(ranks) == 1 and workers is None and devices is None:
            roles[ranks[0]] = ROLE_NAMES["both"]
    return partition_from_places(_place_all(roles, nodes))


def partition_from_text(text: str, nodes: Sequence[str]) -> PartitionTable:
    """Return the table of "2:2" (workers:devices) or of one role per rank, "worker,memory_device"."""
    num_workers, colon, num_devices = text.partition(":")
    if colon and num_workers.strip().isdecimal() and num_devices.strip().isdecimal():
        return partition_from_nodes(nodes, workers=int(num_workers), devices=int(num_devices))
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ROLE_NAMES:
            raise ConfigError(
                f"partition {text!r}: must be workers:devices such as '2:2' or roles out of "
                f"{', '.join(ROLE_NAMES)}, got {name!r}"
            )
    if len(names) != len(nodes):
        raise ConfigError(
            f"partition {text!r} is for {len(names)} ranks, but {len(nodes)} run; "
            f"start {len(names)} ranks or name {len(nodes)} roles"
        )
    return partition_from_places(_place_all([ROLE_NAMES[name] for name in names], nodes))


def partition_from_places(
    places: tuple[RankPlace, ...], stated: Mapping[int, int] | None = None
) -> PartitionTable:
    """Return the table of `places`, with local proxies dealt except where `stated` (by rank) names one.

    Workers of one switch share its devices; those of a switch without any share the node's.
    The devices are dealt in order, so that neighbouring workers share one.
    """
    devices = ranks_with(places, Role.MEMORY_DEVICE)
    sharers: dict[tuple[int, ...], list[int]] = {}
    for rank in ranks_with(places, Role.WORKER):
        at = places[rank]
        on_node = [d for d, other in enumerate(devices) if places[other].node == at.node]
        on_switch = [d for d in on_node if places[devices[d]].switch == at.switch]
        if not on_node:
            raise ConfigError(
                f"node {at.node} has worker rank {rank} but no memory device; "
                "give one of its ranks that role, or both roles"
            )
        sharers.setdefault(tuple(on_switch or on_node), []).append(rank)
    proxies: dict[int, int] = {}
    for shared, ranks in sharers.items():
        for position, rank in enumerate(ranks):
            proxies[rank] = shared[position * len(shared) // len(ranks)]
    proxies.update(stated or {})
    return PartitionTable(
        places=places, local_proxies=tuple(proxies[rank] for rank in sorted(proxies))
    )


def _place_all(roles: Sequence[Role], nodes: Sequence[str]) -> tuple[RankPlace, ...]:
    return tuple(
        RankPlace(rank=rank, roles=role, node=node)
        for rank, (role, node) in enumerate(zip(roles, nodes, strict=True))
    )


def ranks_with(places: Sequence[RankPlace], role: Role) -> tuple[int, ...]:
    """Return the ranks whose place has a role, in order."""
    return tuple(place.rank for place in places if role in place.roles)


def _checked_num_devices(num_ranks: int, workers: int | None, devices: int | None) -> int:
    """Return the number of devices asked for, or the ranks left over when only workers are given.

    Raises:
        ConfigError: The numbers do not add up to the ranks, or one of them is below 1.
    """
    wanted_devices = devices if devices is not None else num_ranks - (workers or 0)
    wanted_workers = workers if workers is not None else num_ranks - wanted_devices
    if wanted_workers < 1 or wanted_devices < 1 or wanted_workers + wanted_devices != num_ranks:
        raise ConfigError(
            f"{wanted_workers} workers and {wanted_devices} memory devices do not fit the "
            f"{num_ranks} ranks that run; both must be at least 1 and add up to that"
        )
    return wanted_devices


def _dealt_devices(num_ranks_by_node: Sequence[int], num_devices: int) -> list[int]:
    """Return the devices of each node.

    Each device goes where most ranks share one, so that every node first gets one.
    """
    dealt = [0] * len(num_ranks_by_node)
    for _ in range(num_devices):
        shares = [
            ranks / n if n else math.inf for ranks, n in zip(num_ranks_by_node, dealt, strict=True)
        ]
        dealt[shares.index(max(shares))] += 1
    return dealt
