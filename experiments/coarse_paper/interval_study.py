"""Rows of an evaluation under all that its inputs may have been: points of their intervals, verdicts, tornados.

Each input in turn at its two ends (the tornado), all corners, where each input is at one of its ends, and a Latin
hypercube over all of them. An input that is a choice and not a number has rows of its own in a table of variations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console
from scipy.stats.qmc import LatinHypercube

from coarse.errors import ConfigError
from experiments.coarse_paper.bars import new_figure, save
from experiments.coarse_paper.claims import ClaimRow, Verdict
from experiments.coarse_paper.validate import markdown
from experiments.gpt.rows import write_json

SEED = 0
NUM_SAMPLES = 24
_MEANING = (
    "A row of several values is met where all of them are at once. What is missed whatever they are is missed at each "
    "of these points; others were not tried."
)
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

    def __post_init__(self) -> None:
        if not self.low <= self.central <= self.high or self.low == self.high:
            raise ConfigError(
                f"the interval of {self.field} must go up around its central value {self.central:g}, got "
                f"{self.low:g} to {self.high:g}; correct its ends",
                key=self.field,
            )


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
    command: str
    page_name: str
    """Of the page in docs/."""
    what: str
    """What the rows are about, a sentence."""
    intervals: tuple[Interval, ...]
    rows_under: Callable[[Values], list[ClaimRow]]
    """All rows with some inputs at other values."""
    headlines: tuple[str, ...]
    """How the claims begin whose tornados are drawn."""

    def ends(self) -> list[Values]:
        """Each input alone at its low end, and at its high end."""
        return [{one.field: value} for one in self.intervals for value in (one.low, one.high)]

    def corners(self) -> list[Values]:
        """Every input at one of its ends, in all combinations."""
        fields = [one.field for one in self.intervals]
        corners = product(*((one.low, one.high) for one in self.intervals))
        return [dict(zip(fields, values, strict=True)) for values in corners]

    def drawn(self, num_samples: int) -> list[Values]:
        """A Latin hypercube over all intervals."""
        points = LatinHypercube(d=len(self.intervals), rng=SEED).random(num_samples).tolist()
        return [
            {
                one.field: one.low + share * (one.high - one.low)
                for one, share in zip(self.intervals, point, strict=True)
            }
            for point in points
        ]

    def points(self, num_samples: int) -> list[Values]:
        """All of them, the central one first, then the ends."""
        return [{}, *self.ends(), *self.corners(), *self.drawn(num_samples)]

    def found(self, num_samples: int) -> list[Found]:
        """Every row that is no input, under everything."""
        central, *others = (self.rows_under(values) for values in self.points(num_samples))
        found = []
        for place, row in enumerate(central):
            if row.verdict is Verdict.INPUT or not row.ours:
                continue
            every = [row, *(rows[place] for rows in others)]
            swings = tuple(
                (interval.field, others[2 * number][place].ours[0], others[2 * number + 1][place].ours[0])
                for number, interval in enumerate(self.intervals)
            )
            values = [value for one in every for value in one.ours]
            found.append(
                Found(row=row, low=min(values), high=max(values), swings=swings,
                      is_met=any(one.verdict is not Verdict.MISSED for one in every))
            )  # fmt: skip
        return found

    def page(self, found: Sequence[Found], num_samples: int) -> str:
        """The page in docs/."""
        inputs = [
            [one.field, one.declared, f"{one.low:g}", f"{one.central:g}", f"{one.high:g}", one.why]
            for one in self.intervals
        ]
        lines = [
            f"# {self.title}", "",
            f"Made by `{self.command} --docs docs/{self.page_name}`; do not edit. {self.what} Each input alone at both "
            f"ends, all {len(self.corners())} corners, and {num_samples} points of a Latin hypercube over all. All "
            "numbers are *simulated*.", "",
            f"{summary(found)}. {_MEANING}", "",
            *markdown([["input", "declared as", "low", "central", "high", "why"], *inputs]), "",
            *markdown(table(found)), "",
        ]  # fmt: skip
        return "\n".join(lines)

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

    def run(self, console: Console, *, out: Path, num_samples: int = NUM_SAMPLES, docs: Path | None = None) -> int:
        """Evaluate, print, draw, write; 0, since a miss is a result and not a failure."""
        found = self.found(num_samples)
        for line in table(found)[1:]:
            text = f"{line[1]}: paper {line[2]}, ours {line[3]}, {line[4]}: {line[5]} (simulated)"
            console.print(text, highlight=False)
        console.print(f"{self.title}: {summary(found)}")
        out.mkdir(parents=True, exist_ok=True)
        stem = self.page_name.removesuffix(".md")
        self.draw(found, out / f"{stem}-tornado.png")
        write_json(out / f"{stem}.json", {
            "kind": "simulated", "command": self.command, "samples": num_samples, "seed": SEED,
            "rows": table(found)[1:],
        })  # fmt: skip
        console.print(f"written to {out}")
        if docs is not None:
            docs.write_text(self.page(found, num_samples), encoding="utf-8")
        return 0

    def main(self, doc: str | None) -> int:
        """The command line."""
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--samples", type=int, default=NUM_SAMPLES)
        parser.add_argument("--out", type=Path, default=Path("results/intervals"))
        parser.add_argument("--docs", type=Path, help="write the tables as this Markdown page")
        given = parser.parse_args()
        return self.run(Console(), out=given.out, num_samples=given.samples, docs=given.docs)


def table(found: Sequence[Found]) -> list[list[str]]:
    """A header, and a line a row."""
    lines = [["source", "claim", "paper", "ours", "within the intervals", "verdict", "hangs most on"]]
    for one in found:
        unit, row = one.row.unit, one.row
        most = max(one.swings, key=lambda swing: abs(swing[2] - swing[1]))
        moves = most[0] if most[1] != most[2] else "-"
        reach = f"{unit.text(one.low)} to {unit.text(one.high)}"
        lines.append([row.source, row.claim, row.paper, row.ours_text, reach, one.verdict, moves])
    return lines


def summary(found: Sequence[Found]) -> str:
    """How many rows came to what."""
    met = sum(one.row.verdict is not Verdict.MISSED for one in found)
    within = sum(one.row.verdict is Verdict.MISSED and one.is_met for one in found)
    return (
        f"{len(found)} rows: {met} met, {within} met within the inputs' intervals, {len(found) - met - within} missed "
        "whatever they are"
    )
