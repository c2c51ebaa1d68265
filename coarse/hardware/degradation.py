# Pure: no MPI, threads, clock or environment.
"""Links that lose a part of their rate, or get it back, while a job runs."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from coarse.errors import ConfigError
from coarse.hardware.links import Link

_FORM = "LINK=FACTOR@SECONDS such as 'socket0 crossing=0.1@2'"
_NUM_OFFERED = 5


class RateChange(NamedTuple):
    """New rate of a link from a second of the run on."""

    at_s: float
    link: int
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Degradation:
    """Change of the links that match: `factor` times the rate of their machine, from `at_s` on."""

    link: str
    """Name of a link, or a pattern with * and ? that several match."""
    factor: float
    """Factor on the rate: below 1 slower, 1 as at the start."""
    at_s: float
    """Seconds since the first iteration began."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ConfigError(
                f"degrade {self.link!r}: the factor must be above 0 and finite, got {self.factor:g}; "
                "for a link that is almost dead give a small one",
                key="degrade",
            )
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ConfigError(
                f"degrade {self.link!r}: wanted the seconds since the first iteration began, at least 0, "
                f"got {self.at_s:g}; correct what stands behind @",
                key="degrade",
            )


def parse_degradation(text: str) -> Degradation:
    """Return a degradation as users write it: LINK=FACTOR@SECONDS.

    Raises:
        ConfigError: anything else.
    """
    rest, _, seconds = text.rpartition("@")
    link, _, factor = rest.rpartition("=")
    try:
        parsed = float(factor), float(seconds)
    except ValueError:
        parsed = None
    if parsed is None or not link.strip():
        raise ConfigError(f"--degrade must be {_FORM}, got {text!r}; correct it", key="degrade")
    return Degradation(link=link.strip(), factor=parsed[0], at_s=parsed[1])


def rate_changes(links: Sequence[Link], degradations: Sequence[Degradation]) -> tuple[RateChange, ...]:
    """Return the changes of links' rates in order of time; of two at once the later in the list counts."""
    changes = [
        RateChange(each.at_s, link, links[link].bytes_per_s * each.factor)
        for each in degradations
        for link in _matching(links, each.link)
    ]
    return tuple(sorted(changes, key=lambda change: change.at_s))


def at_share(link: Link, factor: float) -> Link:
    """Return the link at a share of its rate; its times by size grow in proportion, its start-up stays."""
    table = tuple((nbytes, seconds / factor) for nbytes, seconds in link.table)
    return replace(link, bytes_per_s=link.bytes_per_s * factor, table=table)


def _matching(links: Sequence[Link], pattern: str) -> list[int]:
    found = [number for number, link in enumerate(links) if fnmatchcase(link.name, pattern)]
    if not found:
        names = [link.name for link in links]
        near = difflib.get_close_matches(pattern, names, _NUM_OFFERED, 0.3) or names[:_NUM_OFFERED]
        raise ConfigError(
            f"degrade: no link is called {pattern!r}; the nearest of {len(names)} are: {', '.join(near)}; "
            f"choose one of these, or a pattern such as '{near[0].split()[0]} *'",
            key="degrade",
        )
    return found
