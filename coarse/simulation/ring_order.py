# Pure: no MPI, threads, clock or environment.
"""Order in which workers, and memory devices, stand in their rings.

NCCL, which the paper's all-reduce and its proxies use (COARSE IV-B), searches for the order whose slowest hop is
fastest: on a DGX-1 GPUs 0, 2, 6 and 4 form a ring of NVLinks, while in the order 0, 2, 4, 6 two of the four hops have
no NVLink.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, permutations

from coarse.hardware.links import path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.placement import EndpointPlacement
from coarse.hardware.wiring import PathKind

_PROBE_BYTES = 1 << 22
_MAX_SEARCHED = 8
"""Members of a node up to which all orders are tried; more keep the order of their places."""


def in_ring_order(
    machine: Machine, places: EndpointPlacement, *, workers: PathKind, devices: PathKind
) -> EndpointPlacement:
    """Return the places with each node's workers and devices in the order whose slowest hop is fastest."""
    worker_order = _order(machine, places.workers, workers)
    device_order = _order(machine, places.devices, devices)
    renamed = {device: number for number, device in enumerate(device_order)}
    return replace(
        places,
        workers=tuple(places.workers[w] for w in worker_order),
        devices=tuple(places.devices[d] for d in device_order),
        local_devices=tuple(renamed[places.local_devices[w]] for w in worker_order) if renamed else (),
    )


def _order(machine: Machine, members: Sequence[str], kind: PathKind) -> list[int]:
    by_node = [list(here) for _, here in groupby(range(len(members)), key=lambda m: machine.node_of(members[m]))]
    closes = len(by_node) == 1
    known: dict[Hashable, list[int]] = {}  # what nodes that are alike have in common -> the order in which they stand
    ordered: list[int] = []
    for here in by_node:
        first = members[here[0]]
        alike = tuple(machine.wiring.likeness(first, members[member]) for member in here)
        if alike not in known:
            best = _best_order(machine, members, here, kind, closes=closes)
            known[alike] = [member - here[0] for member in best]
        ordered += (here[0] + place for place in known[alike])
    return ordered


def _best_order(
    machine: Machine, members: Sequence[str], here: Sequence[int], kind: PathKind, *, closes: bool
) -> Sequence[int]:
    if not 3 <= len(here) <= _MAX_SEARCHED:
        return here
    cost_s = {(a, b): _alone_s(machine, members[a], members[b], kind) for a, b in permutations(here, 2)}
    orders = ((here[0], *rest) for rest in permutations(here[1:]))

    def slowest_s(order: Sequence[int]) -> float:
        return max(cost_s[hop] for hop in _hops(order, closes=closes))

    return min(orders, key=slowest_s)  # of equal ones the first, which is the given order if that is among them


def _alone_s(machine: Machine, source: str, target: str, kind: PathKind) -> float:
    return path_alone_s([machine.link(link) for link in machine.path(source, target, kind=kind)], _PROBE_BYTES)


def _hops(order: Sequence[int], *, closes: bool) -> Iterator[tuple[int, int]]:
    yield from pairwise(order)
    if closes:
        yield order[-1], order[0]
