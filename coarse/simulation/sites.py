# Pure: no MPI, threads, clock or environment.
"""Site of a job on a machine: the links of every way that its mode uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from coarse.hardware.links import Link
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind
from coarse.protocol.plan import Placement
from coarse.strategy.strategy import Strategy

Path = tuple[int, ...]


class Hop(NamedTuple):
    """Equal hops of a ring."""

    path: Path
    num_alike: int


@dataclass(frozen=True, kw_only=True)
class Site:
    """Machine as a job sees it; paths are tuples of positions in `links`."""

    links: tuple[Link, ...]
    push: Mapping[tuple[int, int], Path]
    """(client, device) -> links of a push."""
    pull: Mapping[tuple[int, int], Path]
    """(client, device) -> links of a pull."""
    between_devices: Mapping[tuple[int, int], Path]
    """(device, device) -> links of a sync core's sends."""
    between_workers: Mapping[tuple[int, int], Path]
    """(worker, worker) -> links of the workers' own ring."""
    adder_bytes_per_s: float
    """Rate of every device's near-memory adders, in bytes read and added."""
    load: Mapping[tuple[int, int], Path] = field(default_factory=dict)
    """(worker, device) -> links of loads from coherent memory, where the machine has any on the worker's node."""
    store: Mapping[tuple[int, int], Path] = field(default_factory=dict)
    """(worker, device) -> links of stores to coherent memory."""
    to_host: tuple[Path, ...] = ()
    """Links of each worker's stores to the memory of its host."""
    from_host: tuple[Path, ...] = ()
    """Links of each worker's loads from the memory of its host."""
    device_hops: tuple[Hop, ...] = ()
    """Every kind of hop in the ring of devices, if one worker stands for all; () if all hops are equal."""
    worker_hops: tuple[Hop, ...] = ()
    """Every kind of hop in the workers' own ring, likewise."""
    alone_links: tuple[Link, ...] = ()
    """Links as a lone transfer finds them, if one worker stands for all. No other transfer shares that worker's part
    of them. In `links` they are those that all workers use. () if both are the same."""

    def __post_init__(self) -> None:
        known = range(len(self.links))
        ways = (self.push, self.pull, self.between_devices, self.between_workers, self.load, self.store)
        hops = dict(enumerate(hop.path for hop in (*self.device_hops, *self.worker_hops)))
        hosts = dict(enumerate((*self.to_host, *self.from_host)))
        for way in (*ways, hops, hosts):
            for ends, path in way.items():
                if any(link not in known for link in path):
                    raise ValueError(f"the path {path} of {ends} names links that are not among {len(self.links)}")


STEPWISE_RANKS = 64
"""Most workers of which every rank is simulated. Beyond, one stands for all (see representative.py)."""


def coarse_site(
    machine: Machine, places: EndpointPlacement, *, device_ring: PathKind, worker_ring: PathKind,
    copies: PathKind = "pcie",
) -> Site:  # fmt: skip
    """Return the site of a job whose pushes and pulls are copies.

    Pushes and pulls go over `copies`, sync cores over `device_ring`, the workers' own ring over `worker_ring`.
    """
    pairs = [(c, d) for c in range(len(places.workers)) for d in range(len(places.devices))]
    return Site(
        links=machine.links,
        adder_bytes_per_s=machine.memory_device.adder_bytes_per_s,
        push={(c, d): path_of(machine, places.workers[c], places.devices[d], copies) for c, d in pairs},
        pull={(c, d): path_of(machine, places.devices[d], places.workers[c], copies) for c, d in pairs},
        between_devices=_ring_paths(machine, places.devices, device_ring),
        between_workers=_ring_paths(machine, places.workers, worker_ring),
        load=_coherent_paths(machine, places, "load"),
        store=_coherent_paths(machine, places, "store"),
        to_host=_host_paths(machine, places.workers, to_host=True),
        from_host=_host_paths(machine, places.workers, to_host=False),
    )


def dense_site(machine: Machine, places: EndpointPlacement) -> Site:
    """Return the site of one memory device, with coherent access (COARSE III-B).

    Workers store gradients to it and load the result.
    """
    shared = replace(machine, num_sharers=len(places.workers))
    device = places.devices[0]
    return Site(
        links=shared.links,
        adder_bytes_per_s=shared.memory_device.adder_bytes_per_s,
        push={(c, 0): shared.path(worker, device, kind="store") for c, worker in enumerate(places.workers)},
        pull={(c, 0): shared.path(device, worker, kind="load") for c, worker in enumerate(places.workers)},
        between_devices={},
        between_workers=_ring_paths(shared, places.workers, "auto"),
        load=_coherent_paths(shared, places, "load"),
        store=_coherent_paths(shared, places, "store"),
        to_host=_host_paths(shared, places.workers, to_host=True),
        from_host=_host_paths(shared, places.workers, to_host=False),
    )


def placement_of(
    machine: Machine, places: EndpointPlacement, strategy: Strategy, *, num_sync_groups: int
) -> Placement:
    """Return the places as clients and proxies know them."""
    num_workers, num_devices = len(places.workers), len(places.devices)
    return Placement(
        client_nodes=tuple(machine.node_of(worker) for worker in places.workers),
        device_nodes=tuple(machine.node_of(device) for device in places.devices),
        local_proxies=places.local_devices,
        ranks=tuple(range(num_workers + num_devices)),
        planner=strategy,
        num_sync_groups=num_sync_groups,
    )


def reachable_proxies(placement: Placement) -> list[tuple[int, ...]]:
    """Return the devices of each client's node."""
    return [placement.devices_on(node) for node in placement.client_nodes]


def _ring_paths(machine: Machine, members: Sequence[str], kind: PathKind) -> dict[tuple[int, int], Path]:
    """Return (member, member) -> links."""
    everybody = range(len(members))
    return {(a, b): path_of(machine, members[a], members[b], kind) for a in everybody for b in everybody if a != b}


def _coherent_paths(machine: Machine, places: EndpointPlacement, kind: PathKind) -> dict[tuple[int, int], Path]:
    """Return (worker, device) of one node -> links of loads, or of stores; {} if no memory is coherent."""
    if machine.coherence is None:
        return {}
    pairs = [(w, d) for w in range(len(places.workers)) for d in range(len(places.devices))]
    found = {}
    for w, d in pairs:
        worker, device = places.workers[w], places.devices[d]
        if machine.node_of(worker) == machine.node_of(device):
            found[w, d] = machine.path(*((device, worker) if kind == "load" else (worker, device)), kind=kind)
    return found


def _host_paths(machine: Machine, members: Sequence[str], *, to_host: bool) -> tuple[Path, ...]:
    """Return links between each member and the memory of its host."""
    return tuple(machine.host_path(member, to_host=to_host) for member in members)


def path_of(machine: Machine, source: str, target: str, kind: PathKind) -> Path:
    """Return link ids between endpoints, over links of a kind.

    Ways between nodes go by tree and network, also in rings that use another kind within a node.
    """
    if machine.node_of(source) != machine.node_of(target):
        kind = "pcie"
    return machine.path(source, target, kind=kind)
