"""Rows about training under all that their inputs may have been: met, met within the intervals, or missed whatever.

    python -m experiments.coarse_paper.intervals [--samples 24] [--out results/intervals] [--docs docs/intervals.md]

Each input in turn at its two ends (the tornado), and a Latin hypercube over all of them, with the paper's policy. An
input that is a choice and not a number has its own rows in the table of variations (variations.py).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy.stats.qmc import LatinHypercube

from coarse.errors import ConfigError
from coarse.simulation.scenario import Policy
from experiments.coarse_paper import fig2_communication_share, fig16_speedup, fig17_blocked_time
from experiments.coarse_paper.bars import new_figure, save
from experiments.coarse_paper.cells import Cell, missing, precompute, taken, under
from experiments.coarse_paper.claims import ClaimRow, Verdict
from experiments.coarse_paper.inputs import CENTRAL, LOAD_SLOWDOWN, Inputs, require_declared
from experiments.coarse_paper.settings import by_policies
from experiments.coarse_paper.validate import markdown
from experiments.gpt.rows import write_json

COMMAND = "python -m experiments.coarse_paper.intervals"
FIGURES = (fig2_communication_share, fig16_speedup, fig17_blocked_time)
PAGE = Path(__file__).parents[2] / "docs" / "intervals.md"
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What an input may have been; its central value is that of `CENTRAL`."""

    field: str
    """Of `Inputs`."""
    declared: str
    """The declared input (inputs.py) that it is of."""
    low: float
    high: float
    why: str

    def __post_init__(self) -> None:
        require_declared((self.declared,))
        if not self.low <= self.central <= self.high or self.low == self.high:
            raise ConfigError(
                f"the interval of {self.field} must go up around its central value {self.central:g}, got "
                f"{self.low:g} to {self.high:g}; correct its ends",
                key=self.field,
            )

    @property
    def central(self) -> float:
        """As declared."""
        value = getattr(CENTRAL, self.field)
        return float(_OF_PRESETS[self.field] if value is None else value)

    def at(self, value: float) -> Inputs:
        """The central inputs with this one at a value."""
        return with_values({self.field: value})


def with_values(values: dict[str, Any]) -> Inputs:
    """The central inputs with some at other values."""
    return replace(CENTRAL, **values)


_OF_PRESETS = {"sharer_growth": 0.1, "load_slowdown": LOAD_SLOWDOWN}
INTERVALS = (
    Interval(field="t4_bus_bytes_per_s", declared="T4's lanes", low=5.9e9, high=7.88e9,
             why="75 % of eight lanes' line rate, and all of it"),
    Interval(field="bus_bytes_per_s", declared="coherent rates", low=10.45e9, high=15.75e9,
             why="copies staged through a DGX-1's host (Tartan), and sixteen lanes' line rate"),
    Interval(field="load_slowdown", declared="coherent rates", low=9.0, high=17.0, why="figure 13a, by size"),
    Interval(field="store_slowdown", declared="coherent rates", low=1.25, high=4.0, why="figure 13b, by size"),
    Interval(field="sharer_growth", declared="sharer growth", low=0.0, high=1.0,
             why="sharers cost nothing, or take turns; the paper says that they cost something"),
    Interval(field="compute_speed", declared="compute", low=0.9, high=1.53,
             why="noise, and TensorFlow's container 20.06 over PyTorch's of 2019: 1.34 in fp32, 1.53 mixed"),
    Interval(field="push_overlap", declared="pushes", low=0.0, high=1.0,
             why="after backward, and as backward produces them (III-F)"),
)  # fmt: skip
HEADLINES = (
    "T4 resnet50, 2 workers: COARSE over DENSE", "T4 bert-large, 2 workers: COARSE over DENSE",
    "P100 bert-large, 2 workers: COARSE over DENSE", "P100 bert-large: blocked time of COARSE against all-reduce",
    "V100 bert-large, 1 node, COARSE batch 4", "V100 bert-large, 2 nodes, COARSE over all-reduce",
)  # fmt: skip
"""How the claims begin whose tornados are drawn."""


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


def drawn(num_samples: int) -> list[Inputs]:
    """A Latin hypercube over all intervals."""
    points = LatinHypercube(d=len(INTERVALS), rng=SEED).random(num_samples).tolist()
    return [
        with_values({
            one.field: one.low + share * (one.high - one.low) for one, share in zip(INTERVALS, point, strict=True)
        })
        for point in points
    ]  # fmt: skip


def ends() -> list[Inputs]:
    """Each input alone at its low end, and at its high end."""
    return [one.at(value) for one in INTERVALS for value in (one.low, one.high)]


def rows_under(inputs: Inputs) -> list[ClaimRow]:
    """All rows about training, by the paper's policy."""
    with under(inputs), by_policies(Policy.PAPER):
        return [row for figure in FIGURES for row in figure.rows()]


def cells_under(inputs: Inputs) -> Iterator[Cell]:
    """What they simulate."""
    with under(inputs), by_policies(Policy.PAPER):
        yield from [taken(cell) for figure in (fig2_communication_share, fig16_speedup) for cell in figure.cells()]


def evaluated(num_samples: int) -> list[Found]:
    """Every row that is no input, under everything."""
    edges, samples = ends(), drawn(num_samples)
    wanted = [cell for inputs in (CENTRAL, *edges, *samples) for cell in cells_under(inputs)]
    precompute(missing(wanted), num_processes=len(os.sched_getaffinity(0)), on_done=lambda _: None)
    central, *others = (rows_under(inputs) for inputs in (CENTRAL, *edges, *samples))
    found = []
    for place, row in enumerate(central):
        if row.verdict is Verdict.INPUT:
            continue
        every = [row, *(rows[place] for rows in others)]
        swings = tuple(
            (interval.field, others[2 * number][place].ours[0], others[2 * number + 1][place].ours[0])
            for number, interval in enumerate(INTERVALS)
        )
        values = [value for one in every for value in one.ours]
        found.append(
            Found(row=row, low=min(values), high=max(values), swings=swings,
                  is_met=any(one.verdict is not Verdict.MISSED for one in every))
        )  # fmt: skip
    return found


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


def page(found: Sequence[Found], num_samples: int) -> str:
    """docs/intervals.md."""
    inputs = [
        [one.field, one.declared, f"{one.low:g}", f"{one.central:g}", f"{one.high:g}", one.why] for one in INTERVALS
    ]
    lines = [
        "# What inputs may have been", "",
        f"Made by `{COMMAND} --docs docs/intervals.md`; do not edit. The paper's policy; each input alone at both "
        f"ends, and {num_samples} points of a Latin hypercube over all. All numbers are *simulated*.", "",
        summary(found) + ".", "",
        *markdown([["input", "declared as", "low", "central", "high", "why"], *inputs]), "",
        *markdown(table(found)), "",
    ]  # fmt: skip
    return "\n".join(lines)


def draw(found: Sequence[Found], folder: Path) -> None:
    """A tornado for each headline: our value with each input at its ends, the widest at the top."""
    chosen = [one for start in HEADLINES for one in found if one.row.claim.startswith(start)]
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
    save(figure, folder / "tornado.png")


def run(console: Console, *, out: Path, num_samples: int = 24, docs: Path | None = None) -> int:
    """Evaluate, print, draw, write."""
    found = evaluated(num_samples)
    for line in table(found)[1:]:
        console.print(f"{line[1]}: paper {line[2]}, ours {line[3]}, {line[4]}: {line[5]} (simulated)", highlight=False)
    console.print(summary(found))
    out.mkdir(parents=True, exist_ok=True)
    draw(found, out)
    write_json(out / "intervals.json", {
        "kind": "simulated", "command": COMMAND, "samples": num_samples, "seed": SEED, "rows": table(found)[1:],
    })  # fmt: skip
    console.print(f"written to {out}")
    if docs is not None:
        docs.write_text(page(found, num_samples), encoding="utf-8")
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("results/intervals"))
    parser.add_argument("--docs", type=Path, help="write the tables as this Markdown page")
    given = parser.parse_args()
    return run(Console(), out=given.out, num_samples=given.samples, docs=given.docs)


if __name__ == "__main__":
    raise SystemExit(main())
