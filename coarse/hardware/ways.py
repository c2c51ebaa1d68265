# Pure: no MPI, threads, clock or environment.
"""Paths of links, and what transfers of each size take of them.

[Note: cost of a size] A link that small transfers keep at half its rate is busy all the same. So a transfer
takes of a link's capacity what its rate is to the most that its size could draw: several small ones at once get
no more through than one after the other. Links are shared by the time for which transfers keep them busy.
"""

from collections.abc import Mapping, Sequence

from coarse.hardware.links import Link

MAX_REMEMBERED_DRAWS = 1 << 16
UNITS_PER_BYTE = 1 << 10
"""What links are drawn is counted in such parts of a byte per second, so that sums are exact in whatever order."""


class Draw:
    """What a size takes of a path: see [Note: cost of a size]. Each is itself alone: two are never equal."""

    __slots__ = ("cap", "costs", "drawn", "weight")

    def __init__(self, cap: float, costs: dict[int, float], weight: float) -> None:
        self.cap = cap  # bytes per second, alone
        self.costs = costs  # link -> what a byte per second takes of it; at least 1, twice where taken twice
        self.drawn = tuple((link, units(cap * cost)) for link, cost in costs.items())  # the most, of each link
        self.weight = weight  # how fast its rate rises beside others'


def units(bytes_per_s: float) -> int:
    """A rate in whole units: see UNITS_PER_BYTE."""
    return round(bytes_per_s * UNITS_PER_BYTE)


class Way:
    """One path, and what has passed it."""

    __slots__ = ("_draws", "_links", "latency_s", "nbytes_done", "path")

    def __init__(self, path: tuple[int, ...], links: Sequence[Link]) -> None:
        for link in path:
            if not 0 <= link < len(links):
                raise ValueError(f"path {path}: links are 0..{len(links) - 1}, got {link}")
        self.path = path
        self.latency_s = sum(links[link].latency_s for link in path)  # before the first byte of a transfer moves
        self.nbytes_done = 0
        self._links = links
        self._draws: dict[int, Draw] = {}

    def draw(self, nbytes: int, capacity: Mapping[int, float]) -> Draw:
        """What transfers that go in pieces of `nbytes` take of the path, whose links have these bytes per second."""
        draw = self._draws.get(nbytes)
        if draw is None:
            links, path = self._links, self.path
            once = {link: links[link].bytes_per_s / links[link].rate_bytes_per_s(nbytes) for link in path}
            costs = {link: cost * path.count(link) for link, cost in once.items()}
            cap = min(capacity[link] / cost for link, cost in costs.items())
            if len(self._draws) >= MAX_REMEMBERED_DRAWS:
                self._draws.clear()
            draw = self._draws[nbytes] = Draw(cap, costs, 1 / max(once.values()))
        return draw

    def forget_draws(self) -> None:
        """The capacity of one of its links has changed."""
        self._draws.clear()
