"""Timeline of a run's iteration and of its links: the data of pictures and traces."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PHASES = ("forward", "backward", "compute", "idle", "wait", "exposed", "optimizer")
"""Phases of a worker, one after the other. "wait" is idle and exposed together, in a measured run; "compute" is
forward, backward and optimizer together, in an emulated one."""
MOVES = ("push", "fetch", "ring", "pull", "add", "together", "load", "store")
"""Activities beside the phases: bytes on links, and sync cores that add."""


class Span(NamedTuple):
    """Activity with a duration, in seconds since the timeline began."""

    kind: str
    begin_s: float
    end_s: float


class Window(NamedTuple):
    """Time that a picture shows, in seconds of virtual time."""

    begin_s: float
    end_s: float

    def clipped(self, kind: str, begin_s: float, end_s: float) -> Span | None:
        """Return the visible part of an activity, counted from the window's begin, or None without one."""
        begin_s, end_s = max(begin_s, self.begin_s), min(end_s, self.end_s)
        return Span(kind, begin_s - self.begin_s, end_s - self.begin_s) if end_s > begin_s else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Line of the picture."""

    name: str
    spans: tuple[Span, ...]


class Capacity(NamedTuple):
    """Largest rate of a link from some second of the timeline on."""

    from_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """Use of a link over time: its mean rate in each of equal parts of the timeline."""

    name: str
    kind: str
    """Kind that it shares with other links."""
    carries: tuple[str, ...]
    """Kinds of traffic on it."""
    capacity: tuple[Capacity, ...]
    """Capacities, the first from second 0 on; further ones if the link changed over time."""
    nbytes: float
    """Bytes in the whole timeline."""
    bytes_per_s: tuple[float, ...]
    others: tuple[str, ...] = ()
    """Used links of its kind and capacity that are not drawn; the busiest first."""

    def share(self, duration_s: float) -> float:
        """Return the carried share of the bytes that the link could have carried in the timeline."""
        ends_s = (*(each.from_s for each in self.capacity[1:]), duration_s)
        most = sum(each.bytes_per_s * (end_s - each.from_s) for each, end_s in zip(self.capacity, ends_s, strict=True))
        return self.nbytes / most if most > 0 else 0.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LinkUse":
        """Return the use of values read from JSON; raise KeyError or TypeError if they are something else."""
        return cls(
            name=str(values["name"]),
            kind=str(values["kind"]),
            carries=tuple(map(str, values["carries"])),
            capacity=tuple(Capacity(float(from_s), float(rate)) for from_s, rate in values["capacity"]),
            nbytes=float(values["nbytes"]),
            bytes_per_s=tuple(map(float, values["bytes_per_s"])),
            others=tuple(map(str, values["others"])),
        )


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Iteration of one run, or a few of them."""

    title: str
    duration_s: float
    rows: tuple[Row, ...]
    links: tuple[LinkUse, ...] = ()
    """Use of one link of each kind, the busiest first; empty if links were not counted."""
    places: tuple[tuple[str, str], ...] = ()
    """Pairs of a worker or memory device and the part of the machine that plays it, workers first; empty if unknown."""

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Timeline":
        """Return the timeline that `to_mapping` wrote; raise KeyError or TypeError for other values."""
        return cls(
            title=str(values["title"]),
            duration_s=float(values["duration_s"]),
            rows=tuple(
                Row(name=str(row["name"]), spans=tuple(Span(str(k), float(b), float(e)) for k, b, e in row["spans"]))
                for row in values["rows"]
            ),
            links=tuple(LinkUse.from_mapping(link) for link in values["links"]),
            places=tuple((str(who), str(where)) for who, where in values["places"]),
        )


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Merge spans of a kind that touch or overlap, and return the fewer spans."""
    last: dict[str, Span] = {}
    done: list[Span] = []
    for span in sorted(spans, key=lambda span: span.begin_s):
        before = last.get(span.kind)
        if before is not None and span.begin_s <= before.end_s:
            last[span.kind] = before._replace(end_s=max(before.end_s, span.end_s))
            continue
        if before is not None:
            done.append(before)
        last[span.kind] = span
    return tuple(sorted((*done, *last.values()), key=lambda span: span.begin_s))
