# Pure: no MPI, threads, clock or environment.
"""A job's site on a machine: the links of every way that its mode uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coarse.hardware.links import Link, path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind
from coarse.protocol.plan import Placement

Path = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A machine as a job sees it; paths are tuples of positions in `links`."""

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
    """Of every device's near-memory adders: bytes read and added."""

    def __post_init__(self) -> None:
        known = range(len(self.links))
        ways = (self.push, self.pull, self.between_devices, self.between_workers)
        for way in ways:
            for ends, path in way.items():
                if any(link not in known for link in path):
                    raise ValueError(f"the path {path} of {ends} names links that are not among {len(self.links)}")


STEPWISE_RANKS = 64
"""Up to so many workers every rank is simulated; beyond, the first stands for all (see macro.py)."""
_TYPICAL_BYTES = 1 << 20


def coarse_site(
    machine: Machine, places: EndpointPlacement, *, device_ring: PathKind, worker_ring: PathKind,
    copies: PathKind = "pcie",
) -> Site:  # fmt: skip
    """Pushes and pulls over `copies`, sync cores over `device_ring`, the workers' own ring over `worker_ring`."""
    pairs = _pairs(len(places.workers), places)
    return Site(
        links=machine.links,
        adder_bytes_per_s=machine.memory_device.adder_bytes_per_s,
        push={(c, d): _path(machine, places.workers[c], places.devices[d], copies) for c, d in pairs},
        pull={(c, d): _path(machine, places.devices[d], places.workers[c], copies) for c, d in pairs},
        between_devices=_ring_paths(machine, places.devices, device_ring),
        between_workers=_ring_paths(machine, places.workers, worker_ring),
    )


def dense_site(machine: Machine, places: EndpointPlacement) -> Site:
    """One memory device; workers store gradients to it and load the result, coherently (COARSE III-B)."""
    shared = replace(machine, num_sharers=len(places.workers))
    device = places.devices[0]
    return Site(
        links=shared.links,
        adder_bytes_per_s=shared.memory_device.adder_bytes_per_s,
        push={(c, 0): shared.path(worker, device, kind="store") for c, worker in enumerate(places.workers)},
        pull={(c, 0): shared.path(device, worker, kind="load") for c, worker in enumerate(places.workers)},
        between_devices={},
        between_workers={},
    )


def placement_of(
    machine: Machine, places: EndpointPlacement, *, num_sync_groups: int, collective: str = "ring"
) -> Placement:
    """What clients and proxies know of the same places; `collective` is how proxies synchronise."""
    num_workers, num_devices = len(places.workers), len(places.devices)
    return Placement(
        client_nodes=tuple(machine.node_of(worker) for worker in places.workers),
        device_nodes=tuple(machine.node_of(device) for device in places.devices),
        local_proxies=places.local_devices,
        ranks=tuple(range(num_workers + num_devices)),
        collective=collective,
        num_sync_groups=num_sync_groups,
    )


def reachable_proxies(placement: Placement) -> list[tuple[int, ...]]:
    """Of each client the devices of its node."""
    return [placement.devices_on(node) for node in placement.client_nodes]


def _pairs(num_workers: int, places: EndpointPlacement) -> list[tuple[int, int]]:
    if num_workers > STEPWISE_RANKS and places.devices:
        return [(0, places.local_devices[0])]
    return [(c, d) for c in range(num_workers) for d in range(len(places.devices))]


def _ring_paths(machine: Machine, members: Sequence[str], kind: PathKind) -> dict[tuple[int, int], Path]:
    """(member, member) -> links; of many members the slowest hop of the ring stands for all."""
    if len(members) <= STEPWISE_RANKS:
        everybody = range(len(members))
        return {
            (a, b): _path(machine, members[a], members[b], kind) for a in everybody for b in everybody if a != b
        }
    hops = {_path(machine, a, b, kind) for a, b in zip(members, [*members[1:], members[0]], strict=True)}
    slowest = max(sorted(hops), key=lambda path: path_alone_s([machine.links[link] for link in path], _TYPICAL_BYTES))
    last = len(members) - 1
    return {(0, 1): slowest, (0, last): slowest}


def _path(machine: Machine, source: str, target: str, kind: PathKind) -> Path:
    """Rings that leave their node go through the tree and the network, whatever they use within it."""
    if machine.node_of(source) != machine.node_of(target):
        kind = "pcie"
    return machine.path(source, target, kind=kind)
