# Pure: no MPI, threads, clock or environment.
"""A job's site on a machine: the links of every way that its mode uses."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coarse.hardware.links import Link, path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind
from coarse.protocol.plan import Placement

Path = tuple[int, ...]
_Way = dict[tuple[int, int], Path]


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
    copies: PathKind = "pcie", one_stands_for_all: bool = False,
) -> Site:  # fmt: skip
    """Pushes and pulls over `copies`, sync cores over `device_ring`, the workers' own ring over `worker_ring`.

    Where one worker stands for all, the links and ways that it needs.
    """
    pairs = _pairs(places, one_stands_for_all=one_stands_for_all)
    push = {(c, d): _path(machine, places.workers[c], places.devices[d], copies) for c, d in pairs}
    pull = {(c, d): _path(machine, places.devices[d], places.workers[c], copies) for c, d in pairs}
    ring_paths = _slowest_hop if one_stands_for_all else _ring_paths
    between_devices = ring_paths(machine, places.devices, device_ring)
    between_workers = ring_paths(machine, places.workers, worker_ring)
    ways = (push, pull, between_devices, between_workers)
    used = _used(ways) if one_stands_for_all else range(len(machine.links))
    links = _links_of_one(machine, places, used) if one_stands_for_all else machine.links
    push, pull, between_devices, between_workers = (_renumbered(way, used) for way in ways)
    return Site(
        links=links,
        adder_bytes_per_s=machine.memory_device.adder_bytes_per_s,
        push=push,
        pull=pull,
        between_devices=between_devices,
        between_workers=between_workers,
    )


def _used(ways: Iterable[_Way]) -> list[int]:
    """The links that ways use, in the machine's order."""
    return sorted({link for way in ways for path in way.values() for link in path})


def _links_of_one(machine: Machine, places: EndpointPlacement, used: Sequence[int]) -> tuple[Link, ...]:
    """Some links of a machine, of those that all nodes share what one node has, where all do alike."""
    num_nodes, shared = len({machine.node_of(worker) for worker in places.workers}), machine.wiring.shared
    links = {number: machine.link(number) for number in used}
    return tuple(
        replace(link, bytes_per_s=link.bytes_per_s / num_nodes) if number in shared else link
        for number, link in links.items()
    )


def _renumbered(way: _Way, used: Sequence[int]) -> _Way:
    """The same ways by the places that links have among those used."""
    place_of = {link: place for place, link in enumerate(used)}
    return {ends: tuple(place_of[link] for link in path) for ends, path in way.items()}


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


def _pairs(places: EndpointPlacement, *, one_stands_for_all: bool) -> list[tuple[int, int]]:
    if one_stands_for_all:
        return [(0, local) for local in places.local_devices[:1]]
    return [(c, d) for c in range(len(places.workers)) for d in range(len(places.devices))]


def _ring_paths(machine: Machine, members: Sequence[str], kind: PathKind) -> dict[tuple[int, int], Path]:
    """(member, member) -> links."""
    everybody = range(len(members))
    return {(a, b): _path(machine, members[a], members[b], kind) for a in everybody for b in everybody if a != b}


def _slowest_hop(machine: Machine, members: Sequence[str], kind: PathKind) -> dict[tuple[int, int], Path]:
    """The slowest hop of the members' ring, which stands for all, both ways round."""
    if len(members) < 2:
        return {}
    firsts: dict[Hashable, tuple[str, str]] = {}  # of hops that are alike the first
    for hop in zip(members, [*members[1:], members[0]], strict=True):
        firsts.setdefault(machine.wiring.likeness(*hop), hop)
    hops = sorted(_path(machine, a, b, kind) for a, b in firsts.values())
    slowest = max(hops, key=lambda path: path_alone_s([machine.link(link) for link in path], _TYPICAL_BYTES))
    last = len(members) - 1
    return {(0, 1): slowest, (0, last): slowest}


def _path(machine: Machine, source: str, target: str, kind: PathKind) -> Path:
    """Rings that leave their node go through the tree and the network, whatever they use within it."""
    if machine.node_of(source) != machine.node_of(target):
        kind = "pcie"
    return machine.path(source, target, kind=kind)
