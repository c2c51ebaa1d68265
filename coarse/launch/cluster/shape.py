# Pure: no MPI, threads, clock or environment.
"""Shape of a cluster in a box, its nodes and their ranks: `2x2` is two nodes of two workers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.protocol.partition import PartitionTable

MOST_NODES = 4
MOST_RANKS_PER_NODE = 64
"""Most ranks of each kind on a node; more would only wait for the cores that all nodes share."""


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """Shape of equal nodes, each with workers and memory devices."""

    num_nodes: int
    workers_per_node: int
    devices_per_node: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes <= MOST_NODES:
            raise ConfigError(
                f"--cluster must have 1 to {MOST_NODES} nodes, got {self.num_nodes}; such as 2x2, or use a real "
                "cluster by mpirun --hostfile"
            )
        for number, what in (
            (self.workers_per_node, "--cluster must have 1 to {} workers on each node, got {}; such as 2x2"),
            (self.devices_per_node, "--devices must be 1 to {}, the memory devices of each node, got {}"),
        ):
            if not 1 <= number <= MOST_RANKS_PER_NODE:
                raise ConfigError(what.format(MOST_RANKS_PER_NODE, number))

    @property
    def partition(self) -> str:
        """Role of every rank, node by node, workers first on each."""
        node = ["worker"] * self.workers_per_node + ["memory_device"] * self.devices_per_node
        return ",".join(node * self.num_nodes)

    @property
    def num_workers(self) -> int:
        """Number of ranks that compute, on all nodes."""
        return self.num_nodes * self.workers_per_node


def shape_from_text(text: str, devices_per_node: int | None, stated: PartitionTable | None = None) -> ClusterShape:
    """Return the shape of "2x2", nodes x workers of each.

    Without `devices_per_node` each node has its part of the `stated` table's devices; without both, one per worker.
    """
    found = re.fullmatch(r"([0-9]{1,9})[xX]([0-9]{1,9})", text.strip())
    if not found:
        raise ConfigError(
            f"--cluster must be NODESxWORKERS, such as 2x2 (two nodes, two workers on each), got {text!r}"
        )
    num_nodes, workers = map(int, found.groups())
    if devices_per_node is None:
        devices_per_node = workers if stated is None else stated.num_devices // max(1, num_nodes)
    return ClusterShape(num_nodes=num_nodes, workers_per_node=workers, devices_per_node=devices_per_node)


def hosts_of_ranks(num_ranks: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the node of every rank, ranks dealt in order and equally; ConfigError if they do not divide."""
    if num_ranks % len(names):
        raise ConfigError(
            f"the partition has {num_ranks} ranks, which {len(names)} nodes cannot share equally; "
            f"give it a multiple of {len(names)}, or another --cluster"
        )
    each = num_ranks // len(names)
    return tuple(names[rank // each] for rank in range(num_ranks))


def require_shape(table: PartitionTable, shape: ClusterShape, hosts: Sequence[str]) -> None:
    """Raise ConfigError unless a table of the configuration puts `shape`'s ranks on every host."""
    wanted = shape.workers_per_node, shape.devices_per_node
    for host in dict.fromkeys(hosts):
        ranks = {rank for rank, other in enumerate(hosts) if other == host}
        found = len(ranks & set(table.workers)), len(ranks & set(table.devices))
        if found != wanted:
            raise ConfigError(
                f"--cluster asks for {wanted[0]} workers and {wanted[1]} memory devices on each node, but the "
                f"configuration's partition has {found[0]} and {found[1]} among ranks {min(ranks)} to {max(ranks)}; "
                "change --cluster or --devices, or take the partition out of the file or of COARSE_PARTITION"
            )
