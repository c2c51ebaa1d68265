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


class Unit(enum.StrEnum):
    """How numbers of a row are written; `CHANGE` is a ratio r, written as the change r - 1."""

    TIMES = "x"
    CHANGE = "change"
    SHARE = "share"
    GB_PER_S = "GB/s"
    MIB = "MiB"
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

    @property
    def ours_text(self) -> str:
        """Our value, or the range of our values."""
        ends = dict.fromkeys(self.unit.text(end) for end in (min(self.ours), max(self.ours))) if self.ours else {}
        return " to ".join(ends) or "-"

    @property
    def deviation_text(self) -> str:
        """Signed per cent."""
        return "-" if self.deviation is None else f"{self.deviation:+.0%}"

    @property
    def verdict_text(self) -> str:
        """For the table; the reasons of misses stand below it."""
        return str(self.verdict)

    def document(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        values = asdict(self)
        if self.paper_range is not None:
            values["paper_range"] = [end if math.isfinite(end) else None for end in self.paper_range]
        return {**values, "ours_text": self.ours_text}


def number_row(
    claim: str,
    source: str,
    paper: str,
    paper_range: tuple[float, float],
    ours: Sequence[float],
    unit: Unit,
    *,
    inputs: tuple[str, ...],
    why: str = "",
    is_range_of_set: bool = False,
) -> ClaimRow:
    """A stated number, or range; with `is_range_of_set` each of its ends is held against our set's."""
    deviation = deviation_from(paper_range, ours, is_range_of_set=is_range_of_set)
    hit = abs(deviation) <= TOLERANCE
    return ClaimRow(
        claim=claim,
        source=source,
        paper=paper,
        paper_range=paper_range,
        ours=tuple(ours),
        unit=unit,
        deviation=deviation,
        verdict=Verdict.WITHIN if hit else Verdict.MISSED,
        why="" if hit else why,
        inputs=inputs,
    )


def ordering_row(
    claim: str,
    source: str,
    paper: str,
    holds: bool,
    ours: Sequence[float],
    unit: Unit,
    *,
    inputs: tuple[str, ...],
    why: str = "",
) -> ClaimRow:
    """A stated order or shape; `why` is kept where it does not hold."""
    return ClaimRow(
        claim=claim,
        source=source,
        paper=paper,
        paper_range=None,
        ours=tuple(ours),
        unit=unit,
        deviation=None,
        verdict=Verdict.ORDERING if holds else Verdict.MISSED,
        why="" if holds else why,
        inputs=inputs,
    )


def input_row(
    claim: str, source: str, paper: str, ours: Sequence[float], unit: Unit, *, inputs: tuple[str, ...], why: str
) -> ClaimRow:
    """A statement that went into the machine, and comes out of it unchanged."""
    return ClaimRow(
        claim=claim,
        source=source,
        paper=paper,
        paper_range=None,
        ours=tuple(ours),
        unit=unit,
        deviation=None,
        verdict=Verdict.INPUT,
        why=why,
        inputs=inputs,
    )


def deviation_from(stated: tuple[float, float], ours: Sequence[float], *, is_range_of_set: bool) -> float:
    """Relative: 0 inside of the stated range, else against the end that is nearest (or that is the same end)."""
    low, high = stated
    if is_range_of_set:
        return max((min(ours) / low - 1, max(ours) / high - 1), key=abs)
    return max((_beyond(low, high, value) for value in ours), key=abs)


def _beyond(low: float, high: float, value: float) -> float:
    if value < low:
        return value / low - 1
    return value / high - 1 if value > high else 0.0
