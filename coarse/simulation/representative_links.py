# Pure: no MPI, threads, clock or environment.
"""Site of a job in which one worker stands for all: its links and ways, and its share of links.

[Note: shares of links] The worker that stands for all pushes to its device and pulls from it, and its device sends on
the slowest hop of the ring, whichever members that hop connects. All workers and devices together may take a link more
often, or less often: a GPU that plays a device sends on one hop and receives on another while its worker pushes and
pulls. So a link has the rate that leaves the one its part, by how often each takes it: a push and a pull carry a
gradient once, a ring carries it twice, in one direction or half in each. Links that nodes share are divided by the same
rule: a pool's among all nodes, while a leaf switch's uplinks carry one hop each way, however many nodes the leaf has.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from coarse.hardware.degradation import at_share
from coarse.hardware.links import Link, path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind
from coarse.simulation.sites import Hop, Path, Site, path_of

_TYPICAL_BYTES = 1 << 20
_RING_TIMES = 2.0
"""Times that a ring of many members carries a gradient over each hop."""


class _Ring(NamedTuple):
    """Ring on a machine: its hops, one of each kind, and its draws of links for a gradient."""

    hops: list[Hop]
    slowest: Path
    draws: dict[int, float]

    def renumbered(
        self, place_of: Mapping[int, int], num_members: int
    ) -> tuple[dict[tuple[int, int], Path], tuple[Hop, ...]]:
        """Return the slowest hop, which stands for all, in both directions; and all kinds of hops.

        They are () if there is one kind.
        """
        if not self.hops:
            return {}, ()
        slowest = _renumbered(self.slowest, place_of)
        hops = tuple(Hop(_renumbered(path, place_of), num_alike) for path, num_alike in self.hops)
        return {(0, 1): slowest, (0, num_members - 1): slowest}, hops if len(hops) > 1 else ()


def representative_links(
    machine: Machine, places: EndpointPlacement, *, device_ring: PathKind, worker_ring: PathKind, copies: PathKind,
    num_sync_groups: int,
) -> Site:  # fmt: skip
    """Return the site of the worker that stands for all; see [Note: shares of links]."""
    forward = -(-num_sync_groups // 2) / num_sync_groups  # adjacent groups run in opposite directions
    devices = _ring(machine, places.devices, device_ring, forward)
    workers = _ring(machine, places.workers, worker_ring, 1.0)
    pushes, pulls = _copies(machine, places, copies)
    of_all = _together(devices.draws, workers.draws, _drawn([*pushes, *pulls], 1.0))
    push, pull = _busiest(machine, list(zip(pushes, pulls, strict=True)), of_all)
    of_one = _together(_drawn([push, pull], 1.0), _drawn([devices.slowest, workers.slowest], _RING_TIMES))
    used = sorted(of_one.keys() | {link for ring in (devices, workers) for hop in ring.hops for link in hop.path})
    place_of = {link: place for place, link in enumerate(used)}
    between_devices, device_hops = devices.renumbered(place_of, len(places.devices))
    between_workers, worker_hops = workers.renumbered(place_of, len(places.workers))
    local = places.local_devices[:1]
    return Site(
        links=tuple(_at_part(machine.link(link), of_one.get(link, 0.0), of_all[link]) for link in used),
        adder_bytes_per_s=machine.memory_device.adder_bytes_per_s,
        push={(0, device): _renumbered(push, place_of) for device in local},
        pull={(0, device): _renumbered(pull, place_of) for device in local},
        between_devices=between_devices,
        between_workers=between_workers,
        device_hops=device_hops,
        worker_hops=worker_hops,
        alone_links=_alone(machine, places, used),
    )


def _ring(machine: Machine, members: Sequence[str], kind: PathKind, forward: float) -> _Ring:
    """Return a ring of members; `forward` is the part of the gradients that goes round in its direction.

    The rest goes the other way.
    """
    if len(members) < 2:
        return _Ring([], (), {})
    pairs = list(zip(members, [*members[1:], members[0]], strict=True))
    ahead = [path_of(machine, *pair, kind) for pair in pairs]
    back = [path_of(machine, *pair[::-1], kind) for pair in pairs] if forward < 1 else []
    draws = _together(_drawn(ahead, _RING_TIMES * forward), _drawn(back, _RING_TIMES * (1 - forward)))
    alike: dict[Hashable, list[Path]] = {}
    for pair, path in zip(pairs, ahead, strict=True):
        alike.setdefault(machine.wiring.likeness(*pair), []).append(path)
    hops = sorted(Hop(paths[0], len(paths)) for paths in alike.values())
    slowest = max(hops, key=lambda hop: path_alone_s([machine.link(link) for link in hop.path], _TYPICAL_BYTES))
    return _Ring(hops, slowest.path, draws)


def _copies(machine: Machine, places: EndpointPlacement, kind: PathKind) -> tuple[list[Path], list[Path]]:
    """Return every worker's push to its device, and its pull."""
    pairs = [(places.workers[client], places.devices[local]) for client, local in enumerate(places.local_devices)]
    return (
        [path_of(machine, worker, device, kind) for worker, device in pairs],
        [path_of(machine, device, worker, kind) for worker, device in pairs],
    )


def _busiest(machine: Machine, copies: Sequence[tuple[Path, Path]], draws: Mapping[int, float]) -> tuple[Path, Path]:
    """Return the push and pull of the first worker with the busiest links; none if no worker pushes."""

    def busy_s(paths: tuple[Path, Path]) -> float:
        return max((draws[link] / machine.link(link).bytes_per_s for path in paths for link in path), default=0.0)

    return max(copies, key=busy_s, default=((), ()))


def _drawn(paths: Sequence[Path], times: float) -> dict[int, float]:
    """Return how often transfers on these paths, each of so many gradients, take each link."""
    return {link: count * times for link, count in Counter(chain.from_iterable(paths)).items()}


def _together(*draws: Mapping[int, float]) -> dict[int, float]:
    """Return the sums of all draws of each link."""
    return {link: sum(each.get(link, 0.0) for each in draws) for link in dict.fromkeys(chain.from_iterable(draws))}


def _at_part(link: Link, of_one: float, of_all: float) -> Link:
    """Return the link as the one finds it while all others use it, too; whole if the one does not use it."""
    if not of_one or of_one == of_all:
        return link
    return at_share(link, of_one / of_all)


def _alone(machine: Machine, places: EndpointPlacement, used: Sequence[int]) -> tuple[Link, ...]:
    """Return the links, with one node's share of those that all nodes share."""
    num_nodes, shared = len({machine.node_of(worker) for worker in places.workers}), machine.wiring.shared
    return tuple(
        replace(machine.link(link), bytes_per_s=machine.link(link).bytes_per_s / num_nodes)
        if link in shared
        else machine.link(link)
        for link in used
    )


def _renumbered(path: Path, place_of: Mapping[int, int]) -> Path:
    """Return a path by the places that links have among those used."""
    return tuple(place_of[link] for link in path)
