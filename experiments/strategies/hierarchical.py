# Pure: no MPI, threads, clock or environment.
"""A hierarchical parameter server: one device of each node adds, and one device of all adds the nodes' sums."""

from dataclasses import dataclass

from coarse.strategy import Cluster, Facts, Plan, Strategy, Tensor, on_each_node


@dataclass(frozen=True, kw_only=True)
class HierarchicalServer(Strategy):
    """Each node's first device adds its workers; the first node's device adds the nodes' and sends the total back."""

    cut_bytes: int = 1 << 20
    """Least bytes of a shard, so that one is added while others travel."""

    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        """Return the same plan for every tensor but for its shards."""

        def first(node: int) -> tuple[int, ...]:
            return cluster.devices_on(node)[:1]

        homes = cluster.local_devices
        return on_each_node(tensor, cluster, homes, self.cut_bytes, adders=first, exchange="star")
