# Pure: no MPI, threads, clock or environment.
"""Constructors of plans: one device for all, a ring of all devices, and sums on each node that meet across nodes.

Equal arguments give the same object, so that names of one model share a few plans.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import lcm

from coarse.errors import ConfigError
from coarse.protocol.plan import Block, Cluster, Plan, Tensor, count_shards

_MOST_KEPT = 4096


def central(cluster: Cluster, device: int = 0) -> Plan:
    """Return the plan by which one device holds and sums everything, in one piece: a parameter server.

    All workers must be on its node.

    Raises:
        ConfigError: there are several nodes.
    """
    if len(cluster.nodes) > 1:
        raise ConfigError(
            f"central() has all workers on the node of one device, and there are {len(cluster.nodes)} nodes; refuse "
            "such clusters in check(cluster), or use on_each_node()",
            key="mode",
        )
    return _central(cluster, device)


def ring_of_all(tensor: Tensor, cluster: Cluster, homes: Sequence[int], cut_bytes: int) -> Plan:
    """Return the plan by which every device adds what it holds, and all devices form one ring (COARSE IV-A).

    Args:
        tensor: The tensor to plan.
        cluster: Workers and devices.
        homes: Device of each worker's region.
        cut_bytes: Least bytes of a shard; a smaller tensor is one.
    """
    return _ring_of_all(cluster, tuple(homes), count_shards(tensor.nbytes, cut_bytes))


def on_each_node(
    tensor: Tensor,
    cluster: Cluster,
    homes: Sequence[int],
    cut_bytes: int,
    *,
    adders: Callable[[int], Sequence[int]] | None = None,
    exchange: str = "ring",
) -> Plan:
    """Return the plan by which the devices of each node share the shards and exchange the nodes' sums.

    Each device adds the contributions of all workers of its node where their regions lie. For each shard one device of
    each node then exchanges the node's sum.

    Args:
        tensor: The tensor to plan; its key turns which device of a node is first.
        cluster: Workers and devices.
        homes: Device of each worker's region.
        cut_bytes: Least bytes of a shard; a smaller tensor is one.
        adders: Devices of a node that add; by default all of them.
        exchange: How the nodes' devices come to the total, "ring" or "star": the first node's device adds, and sends
            the total back.
    """
    local = tuple(tuple(adders(node)) for node in cluster.nodes) if adders else cluster.devices_of_nodes
    turn = tensor.key % lcm(*map(len, local))
    return _on_each_node(cluster, tuple(homes), count_shards(tensor.nbytes, cut_bytes), turn, local, exchange)


@lru_cache(maxsize=_MOST_KEPT)
def _central(cluster: Cluster, device: int) -> Plan:
    everybody = tuple(range(cluster.num_workers))
    adds = tuple(everybody if number == device else () for number in range(cluster.num_devices))
    blocks = (Block(first=0, last=1, members=(device,)),)
    return Plan(homes=(device,) * len(everybody), num_shards=1, blocks=blocks, adds=adds)


@lru_cache(maxsize=_MOST_KEPT)
def _ring_of_all(cluster: Cluster, homes: tuple[int, ...], num_shards: int) -> Plan:
    devices = tuple(range(cluster.num_devices))
    adds = tuple(tuple(worker for worker, home in enumerate(homes) if home == device) for device in devices)
    blocks = (Block(first=0, last=num_shards, members=devices),)
    return Plan(homes=homes, num_shards=num_shards, blocks=blocks, adds=adds)


@lru_cache(maxsize=_MOST_KEPT)
def _on_each_node(
    cluster: Cluster, homes: tuple[int, ...], num_shards: int, turn: int, local: tuple[tuple[int, ...], ...],
    exchange: str,
) -> Plan:  # fmt: skip
    """Return a plan that gives each node's devices equal runs of shards; the turn rotates which is first."""
    cuts = {0, num_shards}
    for near in local:
        cuts |= {-(-i * num_shards // len(near)) for i in range(len(near))}
    blocks = tuple(
        Block(
            first=first,
            last=last,
            members=tuple(near[(first * len(near) // num_shards + turn) % len(near)] for near in local),
            exchange=exchange,
        )
        for first, last in pairwise(sorted(cuts))
    )
    served = {device for block in blocks for device in block.members}
    adds = tuple(
        cluster.workers_on(node) if device in served else () for device, node in enumerate(cluster.device_nodes)
    )
    return Plan(homes=homes, num_shards=num_shards, blocks=blocks, adds=adds)
