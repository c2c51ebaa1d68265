"""A strategy of your own, in one file: a parameter server, live, checked and predicted by the same object.

    coarse check --strategy examples/server.py:Server
    coarse run --workers 2 --devices 2 --mode examples/server.py:Server examples/push_pull.py
    coarse predict --workers 4 --modes examples/server.py:Server,coarse,allreduce
"""

from dataclasses import dataclass

from coarse.strategy import Cluster, Facts, Plan, Strategy, Tensor, on_each_node


@dataclass(frozen=True, kw_only=True)
class Server(Strategy):
    """Rule by which the first device of each node adds its workers, and one of them the nodes' sums."""

    cut_bytes: int = 1 << 20

    def plan(self, tensor: Tensor, cluster: Cluster, facts: tuple[Facts, ...]) -> Plan:
        def first(node: int) -> tuple[int, ...]:
            return cluster.devices_on(node)[:1]

        return on_each_node(tensor, cluster, cluster.local_devices, self.cut_bytes, adders=first, exchange="star")
