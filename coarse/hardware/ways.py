# Pure: no MPI, threads, clock or environment.
"""Paths of links, the capacity that transfers of each size take, and the links that can limit them.

[Note: cost of a size] A link that small transfers keep at half its rate is busy all the same. So a transfer takes of a
link's capacity the ratio of its rate to the most that its size could draw: several small ones at once get no more
through than one after the other. Links are shared by the time for which transfers keep them busy.

[Note: covered links] A link is covered by another if each transfer that passes it passes the other too, and takes at
least as large a part of that one: the other is full first, so the covered one holds no transfer back and need not be
shared. Of two that cover one another the first alone counts. Paths and sizes are known once they are used; one that is
new may uncover a link, and no link is covered again. A link whose rate has changed covers none and is not covered.
"""

from collections.abc import Sequence

from coarse.hardware.links import Link

MAX_REMEMBERED_DRAWS = 1 << 16
UNITS_PER_BYTE = 1 << 10
"""Number of units of a link's capacity in a byte per second. Draws count in these, so that sums are exact in any
order."""


class Draw:
    """Draw of a size on a path: see [Note: cost of a size]. Draws are compared by identity."""

    __slots__ = ("cap", "costs", "drawn", "every", "name", "weight")

    def __init__(self, cap: float, every: dict[int, float], weight: float) -> None:
        self.cap = cap  # bytes per second, alone
        self.every = every  # link -> what a byte per second takes of it; at least 1, twice where taken twice
        self.costs = every  # the same, of links that are not covered
        self.drawn: tuple[tuple[int, int], ...] = ()  # the most that it draws of each of these, in units
        self.weight = weight  # how fast its rate rises beside others'
        self.name = 0  # what fair shares know it by, once they do

    def keep(self, is_covered: Sequence[bool]) -> None:
        """Take out the covered links, which may have changed."""
        self.costs = {link: cost for link, cost in self.every.items() if not is_covered[link]}
        self.drawn = tuple((link, units(self.cap * cost)) for link, cost in self.costs.items())
        self.name = 0


def units(bytes_per_s: float) -> int:
    """Return a rate in whole units: see UNITS_PER_BYTE."""
    return round(bytes_per_s * UNITS_PER_BYTE)


class Way:
    """Path of links, and the bytes that have passed it."""

    __slots__ = ("draws", "latency_s", "nbytes_done", "path")

    def __init__(self, path: tuple[int, ...], links: Sequence[Link]) -> None:
        for link in path:
            if not 0 <= link < len(links):
                raise ValueError(f"path {path}: links are 0..{len(links) - 1}, got {link}")
        self.path = path
        self.latency_s = sum(links[link].latency_s for link in path)  # before the first byte of a transfer moves
        self.nbytes_done = 0
        self.draws: dict[int, Draw] = {}  # by the bytes of a piece


class Ways:
    """Paths that transfers have taken, by the rates that links have now."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._ways: dict[tuple[int, ...], Way] = {}
        self._over: list[list[Way]] = [[] for _ in links]
        self._covers: list[set[int]] = [set() for _ in links]  # which links cover each, as far as is known
        self._is_known = [False] * len(links)  # whether a transfer has taken it
        self._is_fixed = [False] * len(links)  # its rate has changed
        self.capacity = {number: link.bytes_per_s for number, link in enumerate(links)}
        self.is_covered = [False] * len(links)
        """True for each link that is covered; see [Note: covered links]."""

    def way(self, path: tuple[int, ...]) -> Way:
        """Return the way of a path, made at its first use."""
        way = self._ways.get(path)
        if way is None:
            way = self._ways[path] = Way(path, self._links)
            for link in set(path):
                self._over[link].append(way)
        return way

    def over(self, link: int) -> Sequence[Way]:
        """Return all ways that take a link."""
        return self._over[link]

    def cover_of(self, link: int) -> int:
        """Return a link that is not covered and that each transfer on this one passes, too.

        It is the link itself, if that is not covered.
        """
        if not self.is_covered[link]:
            return link
        return min(each for each in self._covers[link] if not self.is_covered[each])

    def new_draw(self, way: Way, nbytes: int) -> tuple[Draw, list[tuple[int, int]]]:
        """Return the draw of pieces of `nbytes` on a path, and the links that this uncovers.

        They are (link, its cover until now).
        """
        links, path = self._links, way.path
        once = {link: links[link].bytes_per_s / links[link].rate_bytes_per_s(nbytes) for link in path}
        every = {link: cost * path.count(link) for link, cost in once.items()}
        cap = min(self.capacity[link] / cost for link, cost in every.items())
        if len(way.draws) >= MAX_REMEMBERED_DRAWS:
            way.draws.clear()
        draw = way.draws[nbytes] = Draw(cap, every, 1 / max(once.values()))
        uncovered = self._compare({link: cost / self.capacity[link] for link, cost in every.items()})
        draw.keep(self.is_covered)
        return draw, uncovered

    def change_rate(self, link: int, bytes_per_s: float) -> list[tuple[int, int]]:
        """Give a link another rate from now on; return the links that this uncovers, as in `new_draw`."""
        self._is_fixed[link] = True
        beside = {each for way in self._over[link] for each in way.path}
        left = {each: self._covers[each] - {link} if each != link else set() for each in sorted(beside)}
        self.capacity[link] = bytes_per_s
        for way in self._over[link]:
            way.draws.clear()
        return self._leave(left)

    def _compare(self, parts: dict[int, float]) -> list[tuple[int, int]]:
        """Account for parts of links that are taken together; return the links that this uncovers."""
        new, left = [], {}
        for link, part in parts.items():
            if self._is_fixed[link]:
                continue
            larger = {each for each, other in parts.items() if other >= part and each != link}
            if self._is_known[link]:
                left[link] = self._covers[link] & larger
            else:
                self._is_known[link] = True
                self._covers[link] = {each for each in larger if not self._is_fixed[each]}
                new.append(link)
        uncovered = self._leave(left)
        for link in new:
            self.is_covered[link] = self._has_cover(link)
        return uncovered

    def _leave(self, left: dict[int, set[int]]) -> list[tuple[int, int]]:
        """Leave links with these covers, and return those that have none any more.

        They are (link, its cover until now).
        """
        before = {link: self.cover_of(link) for link in left if self.is_covered[link]}
        for link, covers in left.items():
            self._covers[link] = covers
        uncovered = [(link, cover) for link, cover in before.items() if not self._has_cover(link)]
        for link, _ in uncovered:
            self.is_covered[link] = False
            for way in self._over[link]:
                for draw in way.draws.values():
                    draw.keep(self.is_covered)
        return uncovered

    def _has_cover(self, link: int) -> bool:
        return any(each < link or link not in self._covers[each] for each in self._covers[link])
