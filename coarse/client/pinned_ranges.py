# Pure: no MPI, threads, clock or environment.
"""Ranges of host memory that are pinned, by address: CUDA pins a page once, and copies nothing across two pins."""

from bisect import bisect_right
from itertools import pairwise


class PinnedRanges:
    """Ranges that have been pinned, in order of their addresses; no two have a page in common."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._begins: list[int] = []
        self._ends: list[int] = []

    def lacking(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges, whole pages, that are still to be pinned for all of [begin, end) to be so."""
        page = self._page_bytes
        at, last = begin // page * page, -(-end // page) * page
        lacking = []
        for known_begin, known_end in self._within(at, last):
            if at < known_begin:
                lacking.append((at, known_begin))
            at = max(at, known_end)
        return [*lacking, (at, last)] if at < last else lacking

    def add(self, begin: int, end: int) -> None:
        """Note that a range of `lacking` has been pinned."""
        index = bisect_right(self._begins, begin)
        self._begins.insert(index, begin)
        self._ends.insert(index, end)

    def pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return [begin, end) in pieces of which none reaches from one pinned range into another, or out of one."""
        edges = {edge for known in self._within(begin, end) for edge in known if begin < edge < end}
        bounds = [begin, *sorted(edges), end]
        return list(pairwise(bounds))

    def _within(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges that have a byte of [begin, end), in order."""
        first = max(0, bisect_right(self._begins, begin) - 1)
        found = zip(self._begins[first:], self._ends[first:], strict=True)
        return [known for known in found if known[0] < end and begin < known[1]]
