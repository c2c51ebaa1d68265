"""How links that are wanted by several transfers are shared: max-min fairness by progressive filling.

Nobody's rate can be raised without lowering that of somebody who has no more (Bertsekas and Gallager, Data
Networks, 2nd edition, section 6.5.2). A transfer's own cap acts like a link that nobody else uses.
"""

import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def max_min_rates(
    paths: Mapping[T, Sequence[int]], caps: Mapping[T, float], capacities: Mapping[int, float]
) -> dict[T, float]:
    """The max-min fair rate of every transfer, given its links, its own cap and the links' capacities.

    A link that stands twice in a path carries the transfer twice. All rates rise together; each round stops
    the transfers that have come to their caps, or else those of the links that fill first.
    """
    rates: dict[T, float] = {}
    users = _users_by_link(paths)
    free = {link: capacities[link] for link in users}
    num_rising = {link: len(transfers) for link, transfers in users.items()}
    by_cap = sorted(paths, key=caps.__getitem__, reverse=True)
    fills_at = [(free[link] / num, link) for link, num in num_rising.items()]
    heapq.heapify(fills_at)
    while by_cap:
        level = _first_level(fills_at, free, num_rising)
        stopped = []
        while by_cap and ((last := by_cap[-1]) in rates or caps[last] <= level):
            if last not in rates:
                rates[last] = caps[last]
                stopped.append(last)
            by_cap.pop()
        if not stopped:
            full = {}
            while _first_level(fills_at, free, num_rising) <= level:
                full.update(dict.fromkeys(users[heapq.heappop(fills_at)[1]]))
            stopped = [transfer for transfer in full if transfer not in rates]
            rates.update(dict.fromkeys(stopped, level))
        if len(rates) == len(paths):
            break
        for transfer in stopped:
            rate = rates[transfer]
            for link in paths[transfer]:
                free[link] -= rate
                num_rising[link] -= 1
    return rates


def _users_by_link(paths: Mapping[T, Sequence[int]]) -> dict[int, list[T]]:
    """Each link's transfers, as often as it stands in their paths."""
    users: dict[int, list[T]] = {}
    for transfer, path in paths.items():
        for link in path:
            if link in users:
                users[link].append(transfer)
            else:
                users[link] = [transfer]
    return users


def _first_level(
    fills_at: list[tuple[float, int]], free: Mapping[int, float], num_rising: Mapping[int, int]
) -> float:
    """The rate at which the next link is full; that link is then on top of the heap.

    The heap may be out of date, but never too high: a link fills later when some of its transfers stop early.
    """
    while fills_at:
        noted, link = fills_at[0]
        if num := num_rising[link]:
            level = free[link] / num
            if level <= noted:
                return level
            heapq.heapreplace(fills_at, (level, link))
        else:
            heapq.heappop(fills_at)
    return math.inf
