"""A claim of the paper beside what we find, and whether the two agree.

Only what the paper's text states is held against anything: the heights of its bars are in figures alone.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

TOLERANCE = 0.10
"""Relative deviation up to which a stated number counts as reproduced."""

HEAD = ("source", "claim", "paper", "ours", "kind", "deviation", "verdict")
"""Of a table of claims."""


class Unit(enum.StrEnum):
    """How numbers of a row are written; `CHANGE` is a ratio r, written as the change r - 1."""

    TIMES = "x"
    CHANGE = "change"
    SHARE = "share"
    GB_PER_S = "GB/s"
    MIB = "MiB"
    GIB = "GiB"
    SECONDS = "s"
    SAMPLES_PER_S = "samples/s"
    TFLOPS = "TFLOPS"
    GB = "GB"
    BILLIONS = "billion"
    COUNT = ""

    def text(self, value: float) -> str:
        """One number."""
        match self:
            case Unit.TIMES:
                return f"{value:.2f}x"
            case Unit.CHANGE:
                return f"{value - 1:+.1%}"
            case Unit.SHARE:
                return f"{value:.1%}"
            case Unit.COUNT:
                return f"{value:.0f}"
            case _:
                return f"{value:.3g} {self.value}"


class Verdict(enum.StrEnum):
    """What a comparison comes to."""

    WITHIN = "within 10 %"
    TOLERATED = "within its tolerance"
    """Which is another than 10 %."""
    EXACT = "exact"
    ORDERING = "reproduced ordering"
    MISSED = "missed"
    INPUT = "input"
    """The claim is what our machine was made from: no reproduction."""


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One line of the evaluation."""

    claim: str
    source: str
    """Section or figure of the paper."""
    paper: str
    """The value as the paper states it."""
    paper_range: tuple[float, float] | None
    """The same as numbers; None where only an order is stated."""
    ours: tuple[float, ...]
    """One value per member of the set that the claim is about."""
    unit: Unit
    deviation: float | None
    """Of the end that is farthest off; None for an order."""
    verdict: Verdict
    why: str
    inputs: tuple[str, ...]
    """Names of the declared inputs (inputs.py) that the row rests on most."""
    kind: str = "simulated"
    tolerance: str = ""
    """Up to which deviation the number counts as reproduced, where it is not 10 %."""
    is_list: bool = False
    """Whether our values are shown one by one."""

    @property
    def ours_text(self) -> str:
        """Our value, the range of our values, or all of them."""
        if self.is_list:
            return " / ".join(self.unit.text(value) for value in self.ours)
        ends = dict.fromkeys(self.unit.text(end) for end in (min(self.ours), max(self.ours))) if self.ours else {}
        return " to ".join(ends) or "-"

    @property
    def deviation_text(self) -> str:
        """Signed per cent, or percentage points."""
        if self.deviation is None:
            return "-"
        return f"{100 * self.deviation:+.1f} pt" if self.tolerance.endswith("points") else f"{self.deviation:+.0%}"

    @property
    def verdict_text(self) -> str:
        """The verdict, with the tolerance where it is the row's own."""
        return f"within {self.tolerance}" if self.verdict is Verdict.TOLERATED else str(self.verdict)

    @property
    def cells(self) -> list[str]:
        """The row as all tables show it; see `HEAD`."""
        return [
            self.source,
            self.claim,
            self.paper,
            self.ours_text,
            self.kind,
            self.deviation_text,
            self.verdict_text,
        ]

    def document(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        values = asdict(self)
        if self.paper_range is not None:
            values["paper_range"] = [end if math.isfinite(end) else None for end in self.paper_range]
        return {**values, "ours_text": self.ours_text}


@dataclass(frozen=True)
class Number:
    """The paper states a number, or a range from `low` to `high`."""

    low: float
    high: float
    is_of_set: bool = False
    """Whether each end of the range is held against that end of our set."""
    tolerance: float = TOLERANCE
    """Relative, or of the share itself."""
    is_points: bool = False
    """Whether shares are compared by their difference, in percentage points."""

    @property
    def tolerance_text(self) -> str:
        """Nothing for the usual one."""
        if self.is_points:
            return f"{100 * self.tolerance:g} points"
        return "" if self.tolerance == TOLERANCE else f"{self.tolerance:.0%}".replace("%", " %")


@dataclass(frozen=True)
class Order:
    """The paper states an order or a shape, and ours has it or not."""

    holds: bool


@dataclass(frozen=True)
class Given:
    """The statement went into the machine, by a source or an assumption, and comes out of it unchanged."""


@dataclass(frozen=True)
class Listed:
    """The paper states whole numbers, and ours are all the same or not."""

    values: tuple[int, ...]


Statement = Number | Order | Given | Listed


def claim_row(
    claim: str,
    source: str,
    paper: str,
    stated: Statement,
    ours: Sequence[float],
    unit: Unit,
    *,
    inputs: tuple[str, ...],
    why: str = "",
) -> ClaimRow:
    """A claim, judged; `why` is kept unless it is reproduced."""
    deviation = deviation_from(stated, ours) if isinstance(stated, Number) else None
    verdict = _verdict(stated, deviation, ours)
    return ClaimRow(
        claim=claim,
        source=source,
        paper=paper,
        paper_range=(stated.low, stated.high) if isinstance(stated, Number) else None,
        ours=tuple(ours),
        unit=unit,
        deviation=deviation,
        verdict=verdict,
        why=why if verdict in (Verdict.MISSED, Verdict.INPUT) else "",
        inputs=inputs,
        tolerance=stated.tolerance_text if isinstance(stated, Number) else "",
        is_list=isinstance(stated, Listed),
    )


def deviation_from(stated: Number, ours: Sequence[float]) -> float:
    """Relative: 0 inside of the stated range, else against the end that is nearest (or that is the same end)."""
    low, high = stated.low, stated.high
    if stated.is_points:
        return max((value - min(max(value, low), high) for value in ours), key=abs)
    if stated.is_of_set:
        return max((min(ours) / low - 1, max(ours) / high - 1), key=abs)
    return max((_beyond(low, high, value) for value in ours), key=abs)


def _verdict(stated: Statement, deviation: float | None, ours: Sequence[float]) -> Verdict:
    match stated:
        case Listed(values):
            return Verdict.EXACT if tuple(ours) == values else Verdict.MISSED
        case Given():
            return Verdict.INPUT
        case Order(holds):
            return Verdict.ORDERING if holds else Verdict.MISSED
        case Number():
            assert deviation is not None
            if abs(deviation) > stated.tolerance:
                return Verdict.MISSED
            return Verdict.TOLERATED if stated.tolerance_text else Verdict.WITHIN


def _beyond(low: float, high: float, value: float) -> float:
    if value < low:
        return value / low - 1
    return value / high - 1 if value > high else 0.0
