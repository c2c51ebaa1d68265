# Pure: no MPI, threads, clock or environment.
"""Weighted max-min fairness by progressive filling, for links that several transfers share.

No transfer's rate, by its weight, can be raised without lowering that of one that has no more (Bertsekas and Gallager,
Data Networks, 2nd edition, section 6.5.2). A transfer's own cap acts like a link that no other uses.

[Note: remembered shares] Training repeats itself: the same sizes meet on the same paths in every iteration. Rates
follow from the draws of those that meet and from the links that they share, so they are remembered by these. And trials
of one job meet on equal links, so the fabrics of such links share what they remember, keyed by the draws' values and
not by their identity.
"""

import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TypeVar

from coarse.hardware.ways import Draw

T = TypeVar("T", bound=Hashable)
MAX_REMEMBERED_SHARES = 1 << 16


class FairShares:
    """Max-min fair rates of the transfers that meet on links: see [Note: remembered shares]."""

    def __init__(self, capacities: Mapping[int, float]) -> None:
        self._capacities = capacities
        self._remembered: dict[tuple[int, ...], list[tuple[int, float]]] = {}

    def rates(self, draws: Sequence[Draw], links: Sequence[int]) -> Sequence[tuple[int, float]]:
        """Return (position in `draws`, bytes per second) of each transfer, if they share these links alone."""
        name = (*links, *[draw.name or _named(draw) for draw in draws])
        rates = self._remembered.get(name)
        if rates is None:
            shared = set(links)
            costs = {
                number: {link: cost for link, cost in draw.costs.items() if link in shared}
                for number, draw in enumerate(draws)
            }
            caps = {number: draw.cap for number, draw in enumerate(draws)}
            weights = {number: draw.weight for number, draw in enumerate(draws)}
            if len(self._remembered) >= MAX_REMEMBERED_SHARES:
                self._remembered.clear()
            found = max_min_rates(costs, caps, weights, self._capacities)
            rates = self._remembered[name] = list(found.items())
        return rates


_numbers = count(-1, -1)
_names: dict[tuple[object, ...], int] = {}
"""Number of draws by all that rates depend on; a number is never given again."""


def _named(draw: Draw) -> int:
    """Give a draw the number, below 0, of all equal ones, until its costs change."""
    if len(_names) >= MAX_REMEMBERED_SHARES:
        _names.clear()
    draw.name = _names.setdefault((draw.cap, draw.weight, *draw.costs.items()), next(_numbers))
    return draw.name


@lru_cache(maxsize=1)
def shares_of(capacities: tuple[float, ...]) -> FairShares:
    """Return the remembered shares of links of these capacities, by the link's number."""
    return FairShares(dict(enumerate(capacities)))


def max_min_rates(
    costs: Mapping[T, Mapping[int, float]],
    caps: Mapping[T, float],
    weights: Mapping[T, float],
    capacities: Mapping[int, float],
) -> dict[T, float]:
    """Return the max-min fair rate of every transfer.

    `costs` states how much a transfer takes of the capacity of each of its links for every byte per second. All rates
    rise together, in proportion to the weights; each round stops the transfers that have come to their caps, or else
    those of the links that fill first.
    """
    rates: dict[T, float] = {}
    users, rises = _users_by_link(costs, weights)
    free = {link: capacities[link] for link in users}
    by_cap = sorted(((caps[each] / weights[each], number, each) for number, each in enumerate(costs)), reverse=True)
    fills_at = [(free[link] / rise, link) for link, rise in rises.items()]
    heapq.heapify(fills_at)
    level = 0.0
    while len(rates) < len(costs):
        level = max(level, _first_level(fills_at, free, rises))  # rounding alone can have a link fill too soon
        stopped = []
        while by_cap and ((last := by_cap[-1])[2] in rates or last[0] <= level):
            if last[2] not in rates:
                rates[last[2]] = caps[last[2]]
                stopped.append(last[2])
            by_cap.pop()
        if not stopped:
            full: dict[T, None] = {}
            while _first_level(fills_at, free, rises) <= level:
                full.update(dict.fromkeys(users[heapq.heappop(fills_at)[1]]))
            stopped = [transfer for transfer in full if transfer not in rates]
            for transfer in stopped:
                rates[transfer] = level * weights[transfer]
        for transfer in stopped:
            rate, weight = rates[transfer], weights[transfer]
            for link, cost in costs[transfer].items():
                free[link] -= rate * cost
                rises[link] -= weight * cost
    return rates


def _users_by_link(
    costs: Mapping[T, Mapping[int, float]], weights: Mapping[T, float]
) -> tuple[dict[int, list[T]], dict[int, float]]:
    """Return each link's transfers, and how fast they fill it together while the level rises by 1."""
    users: dict[int, list[T]] = {}
    rises: dict[int, float] = {}
    for transfer, by_link in costs.items():
        weight = weights[transfer]
        for link, cost in by_link.items():
            if link in users:
                users[link].append(transfer)
                rises[link] += weight * cost
            else:
                users[link] = [transfer]
                rises[link] = weight * cost
    return users, rises


def _first_level(fills_at: list[tuple[float, int]], free: Mapping[int, float], rises: Mapping[int, float]) -> float:
    """Return the level at which the next link is full; that link is then on top of the heap.

    The heap may be out of date, but never too high: a link fills later when some of its transfers stop early.
    """
    while fills_at:
        noted, link = fills_at[0]
        if (rise := rises[link]) > 0:
            level = free[link] / rise
            if level <= noted:
                return level
            heapq.heapreplace(fills_at, (level, link))
        else:
            heapq.heappop(fills_at)
    return math.inf
