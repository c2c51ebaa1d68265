"""The order in which workers stand in their ring.

NCCL, which the paper's all-reduce uses, searches for the order whose slowest hop is fastest: on a DGX-1 GPUs 0, 2, 6
and 4 form a ring of NVLinks, while in the order 0, 2, 4, 6 two of the four hops have no NVLink.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, permutations

from coarse.emulation.hardware import Machine
from coarse.emulation.links import path_alone_s
from coarse.emulation.placement import Placement as Places
from coarse.emulation.wiring import PathKind

_PROBE_BYTES = 1 << 22
_MAX_SEARCHED = 8
"""Workers of a node up to which all orders are tried; more keep the order of their places."""


def in_ring_order(machine: Machine, places: Places, kind: PathKind) -> Places:
    """The same places with each node's workers in the order whose slowest hop is fastest; the given one if equal."""
    numbers = range(len(places.workers))
    order: list[int] = []
    by_node = [list(group) for _, group in groupby(numbers, key=lambda w: machine.node_of(places.workers[w]))]
    for here in by_node:
        closes = len(by_node) == 1
        order += _best_order(machine, places.workers, here, kind, closes=closes)
    return replace(
        places,
        workers=tuple(places.workers[w] for w in order),
        local_devices=tuple(places.local_devices[w] for w in order) if places.local_devices else (),
    )


def _best_order(
    machine: Machine, workers: Sequence[str], here: Sequence[int], kind: PathKind, *, closes: bool
) -> Sequence[int]:
    if not 3 <= len(here) <= _MAX_SEARCHED:
        return here
    cost_s = {(a, b): _alone_s(machine, workers[a], workers[b], kind) for a, b in permutations(here, 2)}
    orders = ((here[0], *rest) for rest in permutations(here[1:]))

    def slowest_s(order: Sequence[int]) -> float:
        return max(cost_s[hop] for hop in _hops(order, closes=closes))

    return min(orders, key=slowest_s)  # of equal ones the first, which is the given order


def _alone_s(machine: Machine, source: str, target: str, kind: PathKind) -> float:
    return path_alone_s([machine.links[link] for link in machine.path(source, target, kind=kind)], _PROBE_BYTES)


def _hops(order: Sequence[int], *, closes: bool) -> Iterator[tuple[int, int]]:
    yield from pairwise(order)
    if closes:
        yield order[-1], order[0]
