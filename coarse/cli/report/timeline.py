"""What one iteration of a run was spent on, and how busy its links were: what pictures and traces are made of."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PHASES = ("forward", "backward", "compute", "idle", "wait", "exposed", "optimizer")
"""What a worker does, one thing after the other. "wait" is what a measured run knows of idle and exposed, "compute"
what an emulated one knows of forward, backward and optimizer."""
MOVES = ("push", "fetch", "ring", "pull", "add", "together", "load", "store")
"""What happens beside it: bytes on links, and sync cores that add."""


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
        """The part of something that is seen, counted from the window's begin; None where there is none."""
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
    """What it has in common with other links."""
    carries: tuple[str, ...]
    """Whose bytes."""
    capacity: tuple[Capacity, ...]
    """The first from second 0 on; more where the link changed as time went by."""
    nbytes: float
    """In the whole timeline."""
    bytes_per_s: tuple[float, ...]
    others: tuple[str, ...] = ()
    """Links of its kind and capacity that carried something too, and are not drawn; the busiest first."""

    def share(self, duration_s: float) -> float:
        """How much of what the link could have carried in the timeline it did carry."""
        ends_s = (*(each.from_s for each in self.capacity[1:]), duration_s)
        most = sum(each.bytes_per_s * (end_s - each.from_s) for each, end_s in zip(self.capacity, ends_s, strict=True))
        return self.nbytes / most if most > 0 else 0.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LinkUse":
        """What JSON made of it; KeyError or TypeError if it is something else."""
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
    """One of each kind, the busiest first; empty where nobody counted."""
    places: tuple[tuple[str, str], ...] = ()
    """(worker or memory device, which part of the machine plays it), workers first; empty where nobody knows."""

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Timeline":
        """What `to_mapping` made; KeyError or TypeError if it is something else."""
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
    """The same as few spans: those of a kind that touch or overlap are one."""
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
