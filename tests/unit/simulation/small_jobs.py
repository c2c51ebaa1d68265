"""Jobs on sites of a few equal links, small enough for arithmetic by hand."""

from dataclasses import replace

from coarse.hardware.links import Link
from coarse.protocol.plan import Placement
from coarse.simulation.job import Gradient, Job
from coarse.simulation.sites import Site
from coarse.strategy.builtin import Coarse
from coarse.strategy.rounds import first_to_devices
from coarse.strategy.routing import RoutingTable

LATENCY_S = 1e-5
BYTES_PER_S = 1e9
ADDER_BYTES_PER_S = 1e15
"""So fast that adding takes no time worth a digit."""


def link(name: str, latency_s: float = LATENCY_S, bytes_per_s: float = BYTES_PER_S) -> Link:
    return Link(name=name, latency_s=latency_s, bytes_per_s=bytes_per_s)


def site_of(size: int, *, latency_s: float = LATENCY_S, adder_bytes_per_s: float = ADDER_BYTES_PER_S) -> Site:
    """Workers and as many devices; every member of a ring sends on a link of its own, so does every pair."""
    roles = ("push", "pull", "device ring", "worker ring")
    links = tuple(link(f"{role} {member}", latency_s) for role in roles for member in range(size))
    ends = [(a, b) for a in range(size) for b in range(size)]
    apart = [(a, b) for a, b in ends if a != b]
    return Site(
        links=links,
        adder_bytes_per_s=adder_bytes_per_s,
        push={(a, b): (a,) for a, b in ends},
        pull={(a, b): (size + a,) for a, b in ends},
        between_devices={(a, b): (2 * size + a,) for a, b in apart},
        between_workers={(a, b): (3 * size + a,) for a, b in apart},
    )


def job_of(
    size: int,
    gradients: tuple[tuple[int, float], ...],  # (elements, ready_s) in the order of backward
    *,
    num_proxied: int = 0,
    forward_s: float = 0.0,
    backward_s: float = 0.0,
    partition_bytes: int = 1 << 30,
    site: Site | None = None,
    slow_downs: tuple[float, ...] = (),
    num_sync_groups: int = 1,
) -> Job:
    """A job of equal workers, each with a device of its own as its only proxy."""
    return Job(
        site=site or site_of(size),
        placement=Placement(
            client_nodes=(0,) * size,
            device_nodes=(0,) * size,
            local_proxies=tuple(range(size)),
            ranks=tuple(range(2 * size)),
            planner=Coarse(collective="ring"),
            num_sync_groups=num_sync_groups,
        ),
        facts=tuple(
            RoutingTable(threshold_bytes=0, latency_proxy=d, bandwidth_proxy=d, partition_bytes=partition_bytes)
            for d in range(size)
        ),
        gradients=tuple(
            Gradient(name=f"gradient {number}", num_elements=num_elements, ready_s=ready_s)
            for number, (num_elements, ready_s) in enumerate(gradients)
        ),
        forward_s=forward_s,
        backward_s=backward_s,
        round=first_to_devices(num_proxied, len(gradients)),
        slow_downs=slow_downs,
        num_iterations=2,
    )


def ring_s(size: int, nbytes: int) -> float:
    """Seconds of a ring all-reduce by 2(p-1) steps of n/p bytes each."""
    return 2 * (size - 1) * (LATENCY_S + nbytes / size / BYTES_PER_S)


def move_s(nbytes: int) -> float:
    """Seconds of one transfer."""
    return LATENCY_S + nbytes / BYTES_PER_S


def as_one(job: Job) -> Job:
    """The same job, its first worker standing for all."""
    return replace(job, one_stands_for_all=True)
