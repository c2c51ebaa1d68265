"""What one iteration of a run was spent on, and how busy its links were: what pictures and traces are made of."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PHASES = ("forward", "backward", "idle", "wait", "exposed", "optimizer")
"""What a worker does, one thing after the other. "wait" is what a measured run knows of idle and exposed."""
MOVES = ("push", "fetch", "ring", "pull", "add")
"""What happens beside it: bytes on links, and sync cores that add."""


class Span(NamedTuple):
    """Something that took time; seconds since the timeline began."""

    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the picture."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """A link over time: its mean rate in each of equal parts of the timeline."""

    name: str
    capacity_bytes_per_s: float
    nbytes: float
    """In the whole timeline."""
    bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One run's iteration, or a few of them."""

    title: str
    duration_s: float
    rows: tuple[Row, ...]
    links: tuple[LinkUse, ...] = ()
    """The busiest first; empty where nobody counted."""

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
            links=tuple(
                LinkUse(
                    name=str(link["name"]),
                    capacity_bytes_per_s=float(link["capacity_bytes_per_s"]),
                    nbytes=float(link["nbytes"]),
                    bytes_per_s=tuple(float(rate) for rate in link["bytes_per_s"]),
                )
                for link in values["links"]
            ),
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
