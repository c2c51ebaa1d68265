# Pure: no MPI, threads, clock or environment.
"""Sites of on-demand communication: a memory device on each node, on a machine or on fast links."""

import math
from collections.abc import Sequence

from coarse.hardware.links import Link
from coarse.hardware.machine import Machine
from coarse.protocol.plan import Placement
from coarse.simulation.sites import Site

_NO_TIME = 1e15
"""Rate in bytes/s of a link that takes no time."""


def host_site(machine: Machine, nodes: Sequence[int], gpus_per_node: int) -> Site:
    """Return the links of a machine whose GPUs are workers, and whose hosts are memory devices.

    Each GPU reads and writes by its way from and to the host's memory; a node sends over the way between the first GPUs
    of two nodes; a device adds as the machine's adders do.

    Args:
        machine: All nodes.
        nodes: Those of the job, in the order of its devices.
        gpus_per_node: Workers of each.
    """
    num_gpus = len(machine.tree.gpus)
    workers = [
        (device * gpus_per_node + place, device, f"gpu{node * num_gpus + place}")
        for device, node in enumerate(nodes) for place in range(gpus_per_node)
    ]  # fmt: skip
    pairs = [(a, b) for a in range(len(nodes)) for b in range(len(nodes)) if a != b]
    first = [f"gpu{node * num_gpus}" for node in nodes]
    return Site(
        links=machine.links,
        push={(worker, device): machine.host_path(gpu, to_host=True) for worker, device, gpu in workers},
        pull={(worker, device): machine.host_path(gpu, to_host=False) for worker, device, gpu in workers},
        between_devices={(a, b): machine.path(first[a], first[b]) for a, b in pairs},
        between_workers={},
        adder_bytes_per_s=machine.memory_device.adder_bytes_per_s,
    )


def bare_site(
    placement: Placement, *, node_bytes_per_s: float = _NO_TIME, node_latency_s: float = 0.0,
    copy_bytes_per_s: float = _NO_TIME, add_bytes_per_s: float = math.inf,
) -> Site:  # fmt: skip
    """Return links of which a node has one out and one in, and each worker one to each device and back.

    Args:
        placement: Workers and devices.
        node_bytes_per_s: Rate of a node's links, in bytes/s.
        node_latency_s: Seconds from a node to another.
        copy_bytes_per_s: Rate at which a worker reads and writes its node's memory, in bytes/s.
        add_bytes_per_s: Rate at which a device adds, in bytes/s.
    """
    cluster = placement.cluster
    nodes = {node: place for place, node in enumerate(dict.fromkeys(cluster.worker_nodes))}
    links = [
        Link(name=f"{way} {node}", latency_s=node_latency_s / 2, bytes_per_s=node_bytes_per_s)
        for way in ("out of", "into") for node in nodes
    ]  # fmt: skip
    first = len(links)
    links += [
        Link(name=f"worker {worker} {way}", latency_s=0.0, bytes_per_s=copy_bytes_per_s)
        for way in ("writes", "reads") for worker in range(cluster.num_workers)
    ]  # fmt: skip
    pairs = [(w, d) for w in range(cluster.num_workers) for d in range(cluster.num_devices)]
    devices = [nodes[node] for node in cluster.device_nodes]
    return Site(
        links=tuple(links),
        push={(worker, device): (first + worker,) for worker, device in pairs},
        pull={(worker, device): (first + cluster.num_workers + worker,) for worker, device in pairs},
        between_devices={
            (a, b): (devices[a], len(nodes) + devices[b])
            for a in range(cluster.num_devices) for b in range(cluster.num_devices) if a != b
        },
        between_workers={},
        adder_bytes_per_s=add_bytes_per_s,
    )  # fmt: skip
