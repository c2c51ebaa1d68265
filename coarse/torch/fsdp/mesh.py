"""Process group and mesh over which a model is sharded, and the check that the mesh fits the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import coarse
from coarse.errors import ConfigError
from coarse.session import current
from coarse.strategy.sharding import Hybrid, Keeps, Sharding, keeps_any, name_of, require_factor


def join() -> None:
    """Start coarse and torch.distributed, where the script has not done so."""
    if not coarse.is_initialized():
        coarse.init()
    if not dist.is_initialized():
        dist.init_process_group("coarse")


def nodes_of_workers() -> tuple[int, ...]:
    """Return the number of each worker's node."""
    return current().placement.cluster.worker_nodes


def default_mesh(sharding: Sharding) -> DeviceMesh:
    """Return a mesh of all workers, in one dimension or in replicas times shards.

    Mode hybrid has the latter; by default a node's workers share parameters.

    Raises:
        ConfigError: hybrid, and a node with more workers than another, or a factor that fits no nodes.
    """
    device_type = default_device_type()
    if sharding.mesh_dims == 1:
        return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    nodes = workers_by_node(nodes_of_workers())
    factor = require_factor(sharding.factor_of(dist.get_world_size(), len(nodes[0])), len(nodes), len(nodes[0]))
    rows = torch.tensor(nodes, device="cpu").reshape(-1, factor).tolist()
    return DeviceMesh(device_type, torch.tensor(rows, device="cpu"), mesh_dim_names=("replicate", "shard"))


def default_device_type() -> str:
    """Return this machine's accelerator type, or "cpu" where there is none.

    A torch built for an accelerator does not ask for one.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type


def workers_by_node(node_by_worker: Sequence[int]) -> list[list[int]]:
    """Return each node's workers, (N, L) ranks.

    Raises:
        ConfigError: nodes have unequally many.
    """
    counts = Counter(node_by_worker)
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"nodes have {', '.join(map(str, counts.values()))} workers, but modes 'hybrid' and 'zeropp' want equally "
            "many on every node; start as many on each, or use mode 'fsdp' or 'fcdp' with collective 'ring'",
            key="mode",
        )
    return [[rank for rank, node in enumerate(node_by_worker) if node == known] for known in counts]


def require_fitting(mesh: DeviceMesh | None, sharding: Sharding, node_by_worker: Sequence[int]) -> None:
    """Return where the mesh, or the default one, has the mode's dimensions and its groups fit the nodes.

    Raises:
        ConfigError: with the mesh, the nodes, and what to do.
    """
    wanted_dims, has_second = sharding.mesh_dims, keeps_any(sharding, Keeps.SECOND_SHARDS)
    if mesh is None:
        if wanted_dims == 2 or has_second:
            nodes = workers_by_node(node_by_worker)
            require_factor(sharding.factor_of(len(node_by_worker), len(nodes[0])), len(nodes), len(nodes[0]))
        return
    if mesh.ndim != wanted_dims:
        kinds = {1: "one dimension, the workers that share each parameter", 2: "two, replicas times shards"}
        other = "use mode 'hybrid'" if mesh.ndim == 2 else "give a mesh of replicas times shards, or none"
        raise ConfigError(
            f"mode {name_of(sharding)!r} wants a mesh of {kinds[wanted_dims]}; got shape {tuple(mesh.shape)}: {other}",
            key="mesh",
        )
    ranks = mesh.mesh.flatten().tolist()
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(len(node_by_worker))):
        raise ConfigError(f"the mesh names ranks {ranks}, but workers are 0..{len(node_by_worker) - 1}", key="mesh")
    if wanted_dims == 2:
        if isinstance(sharding, Hybrid) and sharding.factor not in (0, mesh.shape[1]):
            raise ConfigError(
                f"the mode shards over {sharding.factor} workers and the mesh, of shape {tuple(mesh.shape)}, over "
                f"{mesh.shape[1]}; leave out the mesh, or the factor",
                key="mesh",
            )
        for row in mesh.mesh.tolist():
            _require_whole_nodes(row, node_by_worker)
    elif has_second:
        workers_by_node([node_by_worker[rank] for rank in ranks])


def _require_whole_nodes(shard_group: Sequence[int], node_by_worker: Sequence[int]) -> None:
    """Raise ConfigError unless a shard group lies on one node, or has all workers of each of its nodes."""
    nodes = {node_by_worker[rank] for rank in shard_group}
    whole = [rank for rank, node in enumerate(node_by_worker) if node in nodes]
    if len(nodes) > 1 and set(whole) != set(shard_group):
        raise ConfigError(
            f"the mesh shards over workers {list(shard_group)}, who lie on {len(nodes)} nodes beside others (node of "
            f"each worker: {list(node_by_worker)}); shard within a node or over whole nodes, replicate across",
            key="mesh",
        )


def shard_group_ranks(mesh: DeviceMesh) -> tuple[int, ...]:
    """Return the ranks that share this worker's parameters."""
    return tuple(dist.get_process_group_ranks(mesh.get_group(mesh.ndim - 1)))


def replica_group_ranks(mesh: DeviceMesh) -> tuple[int, ...]:
    """Return the ranks that have the same shards as this worker, itself among them."""
    return (coarse.rank(),) if mesh.ndim == 1 else tuple(dist.get_process_group_ranks(mesh.get_group(0)))
