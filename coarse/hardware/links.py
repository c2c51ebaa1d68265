# Pure: no MPI, threads, clock or environment.
"""Links, directions of wires: a start-up latency, a rate that transfers share, and times by size.

A latency and a rate alone are far off in the middle of the size range, where a transfer is long enough to stream and
too short to stream at the full rate. A link may therefore carry a table of measured times; COARSE's profiler sees its
proxies through just such curves (COARSE III-E, figures 13 and 14).
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from coarse.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Link:
    """Direction of a wire, or any other capacity that transfers share."""

    name: str
    latency_s: float
    """Seconds before the first byte moves."""
    bytes_per_s: float
    """Rate that all transfers on the link share."""
    table: tuple[tuple[int, float], ...] = ()
    """Times of one transfer alone, as (nbytes, seconds beyond the latency). It is empty if they are nbytes /
    bytes_per_s."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ConfigError(
                f"link {self.name!r}: the latency must be at least 0 seconds, got {self.latency_s}; "
                "correct the latency of the link",
                key="latency_s",
            )
        if not (math.isfinite(self.bytes_per_s) and self.bytes_per_s > 0):
            raise ConfigError(
                f"link {self.name!r}: the rate must be above 0 bytes per second and finite, got {self.bytes_per_s}; "
                "correct the rate, or leave the link out of the machine",
                key="bytes_per_s",
            )
        self._check_table()

    def _check_table(self) -> None:
        for (before, before_s), (nbytes, seconds) in pairwise(((0, 0.0), *self.table)):
            if not (nbytes > before and before_s < seconds < math.inf):
                raise ConfigError(
                    f"link {self.name!r}: sizes and seconds of the table must grow from row to row, got "
                    f"({nbytes}, {seconds}) after ({before}, {before_s}); sort the rows by size, and leave out "
                    "those in which more bytes take no longer",
                    key="table",
                )

    def streaming_s(self, nbytes: int) -> float:
        """Return the seconds beyond the latency that one transfer alone takes.

        They are linear between the rows of the table, in proportion to the first row below it, and at the full rate
        beyond the last; never less than nbytes / bytes_per_s.
        """
        if nbytes <= 0:
            return 0.0
        fastest_s = nbytes / self.bytes_per_s
        if not self.table:
            return fastest_s
        row = bisect_left(self._sizes, nbytes)
        if row == len(self.table):
            last, last_s = self.table[-1]
            return max(fastest_s, last_s + (nbytes - last) / self.bytes_per_s)
        low, low_s = self.table[row - 1] if row else (0, 0.0)
        high, high_s = self.table[row]
        return max(fastest_s, low_s + (high_s - low_s) * (nbytes - low) / (high - low))

    def alone_s(self, nbytes: int) -> float:
        """Return the seconds that one transfer alone takes, its latency included."""
        return self.latency_s + self.streaming_s(nbytes)

    def rate_bytes_per_s(self, nbytes: int) -> float:
        """Return the highest rate that one transfer of this many bytes can draw."""
        if nbytes <= 0 or not self.table:
            return self.bytes_per_s
        return nbytes / self.streaming_s(nbytes)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(nbytes for nbytes, _ in self.table)


def path_alone_s(links: Sequence[Link], nbytes: int) -> float:
    """Return the seconds that a transfer takes alone over several links, cut-through.

    They are all latencies, then the bytes at the lowest of the links' rates. A link that the path takes twice, such as
    a limit on both directions of a wire together, gives the transfer half its rate.
    """
    latencies_s = sum(link.latency_s for link in links)
    if nbytes <= 0 or not links:
        return latencies_s
    times_taken = Counter(link.name for link in links)
    rate = min(link.rate_bytes_per_s(nbytes) / times_taken[link.name] for link in links)
    return latencies_s + nbytes / rate


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return the points of a table in which more bytes take longer; the largest size stays."""
    kept: list[tuple[int, float]] = []
    for nbytes, seconds in points:
        while kept and kept[-1][1] >= seconds:
            kept.pop()  # a slower transfer of fewer bytes was disturbed
        kept.append((nbytes, seconds))
    return tuple(kept)
