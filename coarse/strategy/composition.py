# Reads files. The module of a strategy that is not coarse's own.
"""Composition of a configuration: its strategy, and a placement that plans by it; the same on every rank."""

from dataclasses import replace

from coarse.errors import ConfigError
from coarse.protocol.config import Config, FixedRouting
from coarse.protocol.partition import PartitionTable
from coarse.protocol.plan import Placement
from coarse.strategy.builtin import Coarse
from coarse.strategy.named import DENSE, strategy_named
from coarse.strategy.strategy import Strategy


def strategy_of(config: Config) -> Strategy:
    """Return the strategy that a configuration asks for.

    Raises:
        ConfigError: settings that contradict the mode, or no such class or option.
    """
    if config.mode == DENSE:
        _require_dense(config)
    return strategy_named(
        config.mode,
        policy=config.policy,
        options=config.strategy,
        routing=config.routing,
        collective=config.collective,
    )


def on_workers(own: Strategy, of_job: Strategy) -> Strategy:
    """Return an optimizer's strategy as the job's devices can follow it: with the job's routes and way to sum.

    Raises:
        ConfigError: it plans otherwise than the job's strategy, which memory devices have.
    """
    if type(own).plan is not type(of_job).plan:
        raise ConfigError(
            f"{type(own).__name__} plans otherwise than {type(of_job).__name__}, the job's strategy, by which memory "
            "devices sum; give it to the job: coarse run --mode FILE.py:CLASS",
            key="strategy",
        )
    if isinstance(own, Coarse) and isinstance(of_job, Coarse):
        return replace(own, routing=of_job.routing, collective=of_job.collective)
    return own


def placement_of(partition: PartitionTable, config: Config, strategy: Strategy) -> Placement:
    """Return the places of the partition's ranks, as the strategy uses them.

    Raises:
        ConfigError: the strategy, or a fixed route, cannot work with this partition.
    """
    nodes = sorted({place.node for place in partition.places})
    placement = Placement(
        client_nodes=tuple(nodes.index(partition.node_of_client(c)) for c in range(partition.num_workers)),
        device_nodes=tuple(nodes.index(partition.node_of_device(d)) for d in range(partition.num_devices)),
        local_proxies=partition.local_proxies,
        ranks=(*partition.workers, *partition.devices),
        planner=strategy,
        num_sync_groups=config.num_sync_groups,
    )
    strategy.check(placement.cluster)
    return placement


def _require_dense(config: Config) -> None:
    """Refuse settings that contradict one device for all (COARSE III-B)."""
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
