# Pure: no MPI, threads, clock or environment.
"""A job's site on a machine: the links of every way that its mode uses."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from coarse.hardware.links import Link, path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind
from coarse.protocol.plan import Placement

Path = tuple[int, ...]
_Way = dict[tuple[int, int], Path]


class Hop(NamedTuple):
    """Hops of a ring that are alike."""

    path: Path
    num_alike: int


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
    device_hops: tuple[Hop, ...] = ()
    """Where one stands for all: every kind of hop in the ring of devices; () where all hops are alike."""
    worker_hops: tuple[Hop, ...] = ()
    """The same of the workers' own ring."""

    def __post_init__(self) -> None:
        known = range(len(self.links))
        ways = (self.push, self.pull, self.between_devices, self.between_workers)
        hops = dict(enumerate(hop.path for hop in (*self.device_hops, *self.worker_hops)))
        for way in (*ways, hops):
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
    if one_stands_for_all:
        hops = [_hops(machine, places.devices, device_ring), _hops(machine, places.workers, worker_ring)]
        rings = [_slowest(machine, ring, len(places.workers)) for ring in hops]
    else:
        hops = []
        rings = [_ring_paths(machine, places.devices, device_ring), _ring_paths(machine, places.workers, worker_ring)]
    used = _used((push, pull, *rings), hops) if one_stands_for_all else range(len(machine.links))
    place_of = {link: place for place, link in enumerate(used)}
    push, pull, between_devices, between_workers = (_renumbered(way, place_of) for way in (push, pull, *rings))
    device_hops, worker_hops = (_renumbered_hops(ring, place_of) for ring in hops or ((), ()))
    return Site(
        links=_links_of_one(machine, places, used) if one_stands_for_all else machine.links,
        adder_bytes_per_s=machine.memory_device.adder_bytes_per_s,
        push=push,
        pull=pull,
        between_devices=between_devices,
        between_workers=between_workers,
        device_hops=device_hops,
        worker_hops=worker_hops,
    )


def _used(ways: Iterable[_Way], hops: Iterable[Sequence[Hop]]) -> list[int]:
    """The links that ways and hops use, in the machine's order."""
    paths = [path for way in ways for path in way.values()] + [hop.path for ring in hops for hop in ring]
    return sorted({link for path in paths for link in path})


def _links_of_one(machine: Machine, places: EndpointPlacement, used: Sequence[int]) -> tuple[Link, ...]:
    """Some links of a machine, of those that all nodes share what one node has, where all do alike."""
    num_nodes, shared = len({machine.node_of(worker) for worker in places.workers}), machine.wiring.shared
    links = {number: machine.link(number) for number in used}
    return tuple(
        replace(link, bytes_per_s=link.bytes_per_s / num_nodes) if number in shared else link
        for number, link in links.items()
    )


def _renumbered(way: _Way, place_of: Mapping[int, int]) -> _Way:
    """The same ways by the places that links have among those used."""
    return {ends: tuple(place_of[link] for link in path) for ends, path in way.items()}


def _renumbered_hops(hops: Sequence[Hop], place_of: Mapping[int, int]) -> tuple[Hop, ...]:
    """The same; () where all are alike."""
    if len(hops) < 2:
        return ()
    return tuple(Hop(tuple(place_of[link] for link in path), num_alike) for path, num_alike in hops)


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


def _hops(machine: Machine, members: Sequence[str], kind: PathKind) -> list[Hop]:
    """Of the hops of a ring that are alike the first, and how many they are, in the order of their links."""
    if len(members) < 2:
        return []
    alike: dict[Hashable, list[tuple[str, str]]] = {}
    for hop in zip(members, [*members[1:], members[0]], strict=True):
        alike.setdefault(machine.wiring.likeness(*hop), []).append(hop)
    return sorted(Hop(_path(machine, *hops[0], kind), len(hops)) for hops in alike.values())


def _slowest(machine: Machine, hops: Sequence[Hop], num_members: int) -> _Way:
    """The slowest hop of a ring, which stands for all, both ways round."""
    if not hops:
        return {}

    def alone_s(hop: Hop) -> float:
        return path_alone_s([machine.link(link) for link in hop.path], _TYPICAL_BYTES)

    slowest = max(hops, key=alone_s).path
    return {(0, 1): slowest, (0, num_members - 1): slowest}


def _path(machine: Machine, source: str, target: str, kind: PathKind) -> Path:
    """Rings that leave their node go through the tree and the network, whatever they use within it."""
    if machine.node_of(source) != machine.node_of(target):
        kind = "pcie"
    return machine.path(source, target, kind=kind)
