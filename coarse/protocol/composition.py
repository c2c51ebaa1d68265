"""What a mode is made of: a placement and a way to route, the same on every rank.

The mode "dense" is COARSE III-B: one memory device keeps and sums everything, whole tensors at a time. It is the same
client, proxy and storage as the mode "coarse", with every table naming the first device and no partition.
"""

from coarse.errors import ConfigError
from coarse.protocol.config import Config, FixedRouting, MeasuredRouting
from coarse.protocol.partition import PartitionTable
from coarse.protocol.plan import Placement

WHOLE_BYTES = 2**63 - 1
"""A partition size above every tensor."""


def placement_of(partition: PartitionTable, config: Config) -> Placement:
    """Where the partition's ranks are, as the mode uses them.

    Raises ConfigError where the mode, or a fixed route, cannot work with this partition.
    """
    nodes = sorted({place.node for place in partition.places})
    is_dense = config.mode == "dense"
    placement = Placement(
        client_nodes=tuple(nodes.index(partition.node_of_client(c)) for c in range(partition.num_workers)),
        device_nodes=tuple(nodes.index(partition.node_of_device(d)) for d in range(partition.num_devices)),
        local_proxies=(0,) * partition.num_workers if is_dense else partition.local_proxies,
        ranks=(*partition.workers, *partition.devices),
        collective="central" if is_dense else config.collective,
        num_sync_groups=config.num_sync_groups,
    )
    if is_dense:
        _require_dense(config, nodes)
    else:
        _require_near_proxies(config.routing, placement)
    return placement


def routing_of(config: Config) -> MeasuredRouting | FixedRouting:
    """How each worker chooses the device for a tensor; in the mode "dense" there is nothing to choose or to cut."""
    if config.mode == "dense":
        return FixedRouting(threshold_bytes=0, partition_bytes=WHOLE_BYTES)
    return config.routing


def _require_dense(config: Config, nodes: list[str]) -> None:
    """Refuse what contradicts one device for all (COARSE III-B)."""
    if len(nodes) > 1:
        raise ConfigError(
            f'mode "dense" wants all ranks on one node, got {len(nodes)} ({", ".join(nodes)}): every worker loads from '
            "and stores to one memory device, and no coherent link joins the memory of two nodes here; use mode "
            '"coarse", or see `coarse predict` for machines with such links',
            key="mode",
        )
    if config.collective == "ring":
        raise ConfigError(
            'mode "dense" has one memory device for all, which cannot form a ring, but collective is "ring"; leave '
            'collective out, or use mode "coarse"',
            key="collective",
        )
    if isinstance(config.routing, FixedRouting):
        raise ConfigError(
            'mode "dense" sends whole tensors to the first memory device, but the routing is fixed; leave routing out, '
            'or use mode "coarse"',
            key="routing",
        )


def _require_near_proxies(routing: MeasuredRouting | FixedRouting, placement: Placement) -> None:
    """Refuse fixed routes to devices that a worker cannot reach through mapped memory."""
    if not isinstance(routing, FixedRouting):
        return
    for key in ("latency_proxy", "bandwidth_proxy"):
        proxy = getattr(routing, key)
        for node in placement.nodes:
            near = placement.devices_on(node)
            if proxy is not None and proxy not in near:
                raise ConfigError(
                    f"routing.{key} must be a memory device of every worker's node, one of {near} for "
                    f"worker {placement.clients_on(node)[0]}, got {proxy}; leave it out for the local one",
                    key=key,
                )
