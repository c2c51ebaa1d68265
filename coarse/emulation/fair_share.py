"""How links that are wanted by several transfers are shared: max-min fairness by progressive filling.

Nobody's rate can be raised without lowering that of somebody who has no more (Bertsekas and Gallager, Data
Networks, 2nd edition, section 6.5.2). A transfer's own cap acts like a link that nobody else uses.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def max_min_rates(
    paths: Mapping[T, Sequence[int]], caps: Mapping[T, float], capacities: Mapping[int, float]
) -> dict[T, float]:
    """The max-min fair rate of every transfer, given its links, its own cap and the links' capacities.

    A link that stands twice in a path carries the transfer twice. All rates rise together; each round stops
    the transfers that have come to their caps, or else those of the link that fills first.
    """
    rates: dict[T, float] = {}
    users, num_rising = _users_by_link(paths)
    free = {link: capacities[link] for link in users}
    by_cap = sorted(paths, key=caps.__getitem__, reverse=True)
    while by_cap:
        full_link, level = _fills_first(free, num_rising)
        stopped = []
        while by_cap and (by_cap[-1] in rates or caps[by_cap[-1]] <= level):
            transfer = by_cap.pop()
            if transfer not in rates:
                rates[transfer] = caps[transfer]
                stopped.append(transfer)
        if not stopped and full_link is not None:
            stopped = [transfer for transfer in users[full_link] if transfer not in rates]
            rates.update(dict.fromkeys(stopped, level))
            del free[full_link]
        for transfer in stopped:
            for link in paths[transfer]:
                if link in free:
                    free[link] -= rates[transfer]
                    num_rising[link] -= 1
    return rates


def _users_by_link(paths: Mapping[T, Sequence[int]]) -> tuple[dict[int, dict[T, None]], dict[int, int]]:
    """Each link's transfers, and how often it stands in their paths."""
    users: dict[int, dict[T, None]] = {}
    num_rising: dict[int, int] = {}
    for transfer, path in paths.items():
        for link in path:
            users.setdefault(link, {})[transfer] = None
            num_rising[link] = num_rising.get(link, 0) + 1
    return users, num_rising


def _fills_first(free: Mapping[int, float], num_rising: dict[int, int]) -> tuple[int | None, float]:
    """The link that is full at the lowest rate of those that still rise on it, and that rate."""
    full_link, level = None, float("inf")
    for link, capacity in free.items():
        num = num_rising[link]
        if num and capacity < level * num:
            full_link, level = link, capacity / num
    return full_link, level
