"""Rows of an evaluation under all that its inputs may have been: points of their intervals, verdicts, tornados.

Each input in turn at its two ends (the tornado), all corners of the numbers, where each is at one of its ends, all
combinations of the choices that a paper leaves open, and a Latin hypercube over all of them. For a row that is missed,
the value of one input alone, the others as declared, by which it is met: sought at five values of each, and where ours
crosses the paper's between two of them by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from scipy.stats.qmc import LatinHypercube

from coarse.errors import ConfigError
from experiments.gpt.rows import write_json
from experiments.validation.bars import new_figure, save
from experiments.validation.claims import ClaimRow, Verdict
from experiments.validation.declared import Declared, require_declared
from experiments.validation.page import by_part, markdown, text_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SEED = 0
NUM_SAMPLES = 24
_MEANING = (
    "A row of several values is met where all of them are at once. What is missed whatever they are is missed at each "
    "of these points; others were not tried. The last column has the input that, others as declared, would have to be "
    "otherwise, and its value next to the declared one of those tried."
)
_WITHIN = (0.25, 0.5, 0.75)
_NUM_HALVINGS = 6
Inputs = TypeVar("Inputs", bound="DataclassInstance")
Values = dict[str, float]
"""By field of an evaluation's inputs, for those that are other than the central ones."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What an input may have been."""

    field: str
    """Of the evaluation's inputs."""
    declared: str
    """The declared input that it is of."""
    low: float
    central: float
    high: float
    why: str
    is_choice: bool = False
    """Whether only its ends are possible."""

    def value(self, share: float) -> float:
        """What lies at a share of the way from the low end to the high one; of a choice the nearer end."""
        if self.is_choice:
            return self.high if share >= 0.5 else self.low
        return self.low + share * (self.high - self.low)

    def alone(self) -> list[float]:
        """Values that are tried with all other inputs as declared, rising."""
        shares = () if self.is_choice else _WITHIN
        return [self.low, *(self.value(share) for share in shares), self.high]

    def __post_init__(self) -> None:
        if not self.low <= self.central <= self.high or self.low == self.high:
            raise ConfigError(
                f"the interval of {self.field} must go up around its central value {self.central:g}, got "
                f"{self.low:g} to {self.high:g}; correct its ends",
                key=self.field,
            )


def interval_of(
    central: object, known: tuple[Declared, ...], field: str, declared: str, low: float, high: float, why: str, *,
    is_choice: bool = False,
) -> Interval:  # fmt: skip
    """The interval of a field of an evaluation's inputs around its central value.

    Raises:
        ConfigError: no declared input has this name, or the ends lie on one side of the central value.
    """
    require_declared((declared,), known)
    value = float(getattr(central, field))
    return Interval(
        field=field, declared=declared, low=low, central=value, high=high, why=why, is_choice=is_choice
    )


def with_values(central: Inputs, values: Values) -> Inputs:
    """An evaluation's inputs with some at other values, each of its field's kind: a truth, whole, or any number."""
    return replace(central, **{field: _as_in(getattr(central, field), value) for field, value in values.items()})


def _as_in(central: object, value: float) -> bool | int | float:
    if isinstance(central, bool):
        return bool(value)
    return round(value) if isinstance(central, int) else value


@dataclass(frozen=True, kw_only=True)
class Found:
    """A row, and what it comes to under all samples."""

    row: ClaimRow
    low: float
    high: float
    is_met: bool
    """Somewhere."""
    swings: tuple[tuple[str, float, float], ...]
    """By input: the first of our values with it at its low end, and at its high end."""
    remedy: str = ""
    """Of a miss: the inputs that alone would have it met, each with its value."""

    @property
    def verdict(self) -> str:
        """Of three."""
        if self.row.verdict is not Verdict.MISSED:
            return str(self.row.verdict_text)
        return "met within the intervals" if self.is_met else "missed whatever they are"


@dataclass(frozen=True, kw_only=True)
class Study:
    """An evaluation and the intervals of its inputs."""

    title: str
    what: str
    """What the rows are about, a sentence."""
    intervals: tuple[Interval, ...]
    rows_under: Callable[[Values], list[ClaimRow]]
    """All rows with some inputs at other values."""
    headlines: tuple[str, ...]
    """How the claims begin whose tornados are drawn."""
    part_of: Callable[[ClaimRow], str] = lambda row: ""
    """The title of a row's part of the page."""
    num_samples: int = NUM_SAMPLES
    """Points of the Latin hypercube."""

    def ends(self) -> list[Values]:
        """Each input alone at its low end, and at its high end."""
        return [{one.field: value} for one in self.intervals for value in (one.low, one.high)]

    def corners(self) -> list[Values]:
        """Every number at one of its ends, in all combinations; and every choice so."""
        return [values for is_choice in (False, True) for values in self._corners(is_choice=is_choice)]

    def _corners(self, *, is_choice: bool) -> Iterator[Values]:
        chosen = [one for one in self.intervals if one.is_choice == is_choice]
        for values in product(*((one.low, one.high) for one in chosen)) if chosen else ():
            yield dict(zip((one.field for one in chosen), values, strict=True))

    def drawn(self) -> list[Values]:
        """A Latin hypercube over all intervals."""
        points = LatinHypercube(d=len(self.intervals), rng=SEED).random(self.num_samples).tolist()
        return [
            {one.field: one.value(share) for one, share in zip(self.intervals, point, strict=True)} for point in points
        ]

    def points(self) -> list[Values]:
        """All of them, the central one first, then the ends."""
        within = [{one.field: value} for one in self.intervals for value in one.alone()[1:-1]]
        return [{}, *self.ends(), *self.corners(), *self.drawn(), *within]

    def found(self) -> list[Found]:
        """Every row that is no input, under everything."""
        points = {_key(values): self.rows_under(values) for values in self.points()}
        central = points[_key({})]
        found = []
        for place, row in enumerate(central):
            if row.verdict is Verdict.INPUT or not row.ours:
                continue
            every = [rows[place] for rows in points.values()]
            ends = {one.field: (one.low, one.high) for one in self.intervals}
            first = {field: [points[_key({field: end})][place].ours[0] for end in both] for field, both in ends.items()}
            swings = tuple((field, low, high) for field, (low, high) in first.items())
            remedy = self._remedy(place, points) if row.verdict is Verdict.MISSED else ""
            values = [value for one in every for value in one.ours]
            is_met = bool(remedy) or any(one.verdict is not Verdict.MISSED for one in every)
            found.append(
                Found(row=row, low=min(values), high=max(values), swings=swings, remedy=remedy, is_met=is_met)
            )
        return found

    def _remedy(self, place: int, points: dict[_Key, list[ClaimRow]]) -> str:
        """Inputs that alone would have a row met."""

        def row_at(field: str, value: float) -> ClaimRow:
            key = _key({field: value})
            if key not in points:
                points[key] = self.rows_under({field: value})
            return points[key][place]

        texts = []
        for one in self.intervals:
            met = [value for value in one.alone() if row_at(one.field, value).verdict is not Verdict.MISSED]
            if not met and not one.is_choice:
                met = list(_crossing(one, lambda value, one=one: row_at(one.field, value)))  # type: ignore[misc]
            if met:
                nearest = min(met, key=lambda value, one=one: abs(value - one.central))  # type: ignore[misc]
                texts.append(f"{one.field} {nearest:.3g} (declared {one.central:.3g})")
        return ", or ".join(texts)

    def section(self, found: Sequence[Found]) -> Iterator[str]:
        """Its part of the page in docs/."""
        inputs = [
            [one.field, one.declared, f"{one.low:g}", f"{one.central:g}", f"{one.high:g}", one.why]
            for one in self.intervals
        ]
        yield from ("", f"## {self.title}", "")
        yield (
            f"{self.what} Each input alone at both ends, all {len(self.corners())} corners of numbers and of choices, "
            f"and {self.num_samples} points of a Latin hypercube over all."
        )
        yield from ("", *markdown([["input", "declared as", "low", "central", "high", "why"], *inputs]))
        for part, rows in self.parts(found).items():
            yield from ("", f"### {part}" if part else "", "", f"{summary(rows)}.", "", *markdown(table(rows)))

    def parts(self, found: Sequence[Found]) -> dict[str, list[Found]]:
        """Rows by their part of the page."""
        return by_part(found, lambda one: self.part_of(one.row))

    def draw(self, found: Sequence[Found], path: Path) -> None:
        """A tornado for each headline: our value with each input at its ends, the widest at the top."""
        chosen = [one for start in self.headlines for one in found if one.row.claim.startswith(start)]
        figure = new_figure(height=1.8 * len(chosen))
        for axis, one in zip(figure.subplots(len(chosen), squeeze=False)[:, 0], chosen, strict=True):
            ordered = sorted(one.swings, key=lambda swing: abs(swing[2] - swing[1]))
            for place, (_, low, high) in enumerate(ordered):
                axis.barh(place, high - low, left=low, color="#4c78a8" if high >= low else "#f58518")
            axis.axvline(one.row.ours[0], color="black", linewidth=1)
            if one.row.paper_range is not None:
                axis.axvline(one.row.paper_range[0], color="#e45756", linestyle="--", linewidth=1)
            axis.set_yticks(range(len(ordered)), [name for name, _, _ in ordered])
            unit = one.row.unit
            values = f"ours {one.row.ours_text} (line), paper {one.row.paper} (dashed)"
            axis.set_title(f"{one.row.source}: {one.row.claim}; {values}", fontsize=8, loc="left")
            axis.xaxis.set_major_formatter(lambda value, _, unit=unit: unit.text(value))
            axis.tick_params(labelsize=7)
        save(figure, path)


_Key = tuple[tuple[str, float], ...]


def _key(values: Values) -> _Key:
    return tuple(sorted(values.items()))


def _crossing(interval: Interval, row_at: Callable[[float], ClaimRow]) -> Iterator[float]:
    """Values at which a row is met, where its deviation changes sign between two that were tried."""
    for low, high in pairwise(interval.alone()):
        ends = (row_at(low).deviation, row_at(high).deviation)
        if None in ends or ends[0] * ends[1] >= 0:  # type: ignore[operator]
            continue
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            row = row_at(middle)
            if row.verdict is not Verdict.MISSED:
                yield middle
                break
            low, high = (middle, high) if row.deviation * ends[0] > 0 else (low, middle)  # type: ignore[operator]


def run_studies(studies: Sequence[Study], console: Console, *, out: Path, docs: Path | None = None) -> int:
    """Evaluate, print, draw, write; 0, since a miss is a result and not a failure."""
    lines = [
        "# Within the intervals of inputs",
        "",
        "Made by `coarse validate --intervals --docs docs/intervals.md`; do not edit. All of ours is *simulated*. "
        f"{_MEANING}",
    ]
    documents = []
    for study in studies:
        found = study.found()
        for line in table(found)[1:]:
            remedy = f"; met by {line[-1]}" if line[-1] != "-" else ""
            text = f"{line[1]}: paper {line[2]}, ours {line[3]}, {line[4]}: {line[5]}{remedy} (simulated)"
            console.print(text, highlight=False)
        for part, rows in study.parts(found).items():
            console.print(f"{study.title}{f', {part}' if part else ''}: {summary(rows)}")
        study.draw(found, out / f"intervals-{study.title.split()[0].lower()}.png")
        documents.append({"paper": study.title, "seed": SEED, "samples": study.num_samples, "rows": table(found)[1:]})
        lines += study.section(found)
    write_json(out / "intervals.json", {"kind": "simulated", "studies": documents})
    console.print(f"written to {out}")
    if docs is not None:
        docs.write_text(text_of(lines), encoding="utf-8")
        console.print(f"written to {docs}")
    return 0


def table(found: Sequence[Found]) -> list[list[str]]:
    """A header, and a line a row."""
    lines = [["source", "claim", "paper", "ours", "within the intervals", "verdict", "hangs most on", "met by"]]
    for one in found:
        unit, row = one.row.unit, one.row
        most = max(one.swings, key=lambda swing: abs(swing[2] - swing[1]))
        moves = most[0] if most[1] != most[2] else "-"
        reach = f"{unit.text(one.low)} to {unit.text(one.high)}"
        lines.append([row.source, row.claim, row.paper, row.ours_text, reach, one.verdict, moves, one.remedy or "-"])
    return lines


def summary(found: Sequence[Found]) -> str:
    """How many rows came to what."""
    met = sum(one.row.verdict is not Verdict.MISSED for one in found)
    within = sum(one.row.verdict is Verdict.MISSED and one.is_met for one in found)
    return (
        f"{len(found)} rows: {met} met, {within} met within the inputs' intervals, {len(found) - met - within} missed "
        "whatever they are"
    )
