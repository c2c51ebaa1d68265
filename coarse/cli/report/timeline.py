"""Timeline of one iteration of a run, and of its links' use: the source of pictures and traces."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PHASES = ("forward", "backward", "compute", "idle", "wait", "exposed", "optimizer")
"""Phases of a worker, one after the other.

"wait" is a measured run's word for idle and exposed, "compute" an emulated one's for forward, backward and optimizer.
"""
MOVES = ("push", "fetch", "ring", "pull", "add", "together", "load", "store")
"""Movements beside it: bytes on links, and sync cores that add."""


class Span(NamedTuple):
    """Something that took time; seconds since the timeline began."""

    kind: str
    begin_s: float
    end_s: float


class Window(NamedTuple):
    """The time that a picture shows; seconds of virtual time."""

    begin_s: float
    end_s: float

    def clipped(self, kind: str, begin_s: float, end_s: float) -> Span | None:
        """Return the part of a span that is seen, counted from the window's begin; None if there is none."""
        begin_s, end_s = max(begin_s, self.begin_s), min(end_s, self.end_s)
        return Span(kind, begin_s - self.begin_s, end_s - self.begin_s) if end_s > begin_s else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the picture."""

    name: str
    spans: tuple[Span, ...]


class Capacity(NamedTuple):
    """The most that a link carries from some second of the timeline on."""

    from_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """A link over time: its mean rate in each of equal parts of the timeline."""

    name: str
    kind: str
    """Kind that it shares with other links."""
    carries: tuple[str, ...]
    """Owners of its bytes."""
    capacity: tuple[Capacity, ...]
    """The first from second 0 on; more where the link changed as time went by."""
    nbytes: float
    """Bytes in the whole timeline."""
    bytes_per_s: tuple[float, ...]
    others: tuple[str, ...] = ()
    """Links of its kind and capacity that carried something too, and are not drawn; the busiest first."""

    def share(self, duration_s: float) -> float:
        """Return the share of what the link could have carried in the timeline that it did carry."""
        ends_s = (*(each.from_s for each in self.capacity[1:]), duration_s)
        most = sum(each.bytes_per_s * (end_s - each.from_s) for each, end_s in zip(self.capacity, ends_s, strict=True))
        return self.nbytes / most if most > 0 else 0.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LinkUse":
        """Return the use that JSON made of one; KeyError or TypeError for another value."""
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
    """One run's iteration, or a few of them."""

    title: str
    duration_s: float
    rows: tuple[Row, ...]
    links: tuple[LinkUse, ...] = ()
    """Links, one of each kind, the busiest first; empty if they were not counted."""
    places: tuple[tuple[str, str], ...] = ()
    """(worker or memory device, part of the machine that plays it), workers first; empty if they are unknown."""

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Timeline":
        """Return the timeline that `to_mapping` made; KeyError or TypeError for another value."""
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
    """Return the same as few spans: those of a kind that touch or overlap are one."""
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
