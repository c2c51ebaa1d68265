"""All figures of the COARSE paper, simulated, in one table.

    python -m experiments.coarse_paper.validate [--out results/validation] [--docs docs/validation.md]

Kind of all results: simulated. See docs/evaluation.md for what is an input and what an outcome.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.coarse_paper import (
    fig2_communication_share,
    fig3_cci_bandwidth,
    fig8_pairs,
    fig10_deadlock,
    fig13_access_size,
    fig14_dma,
    fig15_routing,
    fig16_speedup,
    fig17_blocked_time,
    solved,
    variations,
)
from experiments.coarse_paper.cells import Cell, missing, precompute
from experiments.coarse_paper.claims import HEAD, ClaimRow, Verdict
from experiments.coarse_paper.inputs import DECLARED, Declared
from experiments.coarse_paper.script import claims_table
from experiments.gpt.rows import write_json

FIGURES = (
    fig2_communication_share,
    fig3_cci_bandwidth,
    fig8_pairs,
    fig10_deadlock,
    fig13_access_size,
    fig14_dma,
    fig15_routing,
    fig16_speedup,
    fig17_blocked_time,
)
COMMAND = "python -m experiments.coarse_paper.validate"
RESULTS = Path("results/validation")
PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
"""Where the last table is kept."""


def run(console: Console, *, out: Path = RESULTS, docs: Path | None = None) -> int:
    """Run everything, print the table, write results; 0, since a miss is a result and not a failure."""
    simulate_all(console)
    rows = all_rows()
    console.print(claims_table(rows))
    console.print(f"the paper's policy: {summary([row for row in rows if not is_of_auto(row)])}")
    console.print(f"by auto, which is ours: {summary([row for row in rows if is_of_auto(row)])}")
    console.print("Why numbers are missed, and how much each input matters: docs/evaluation.md, docs/validation.md")
    found = {
        "command": COMMAND,
        "kind": "simulated",
        "rows": [row.document() for row in rows],
        "variations": variations.table(),
        "put_right": variations.table(variations.PUT_RIGHT),
        "solved": solved.table(),
    }
    write_json(out / "validation.json", found)
    console.print(f"written to {out / 'validation.json'}")
    if docs is not None:
        docs.write_text(page(rows), encoding="utf-8")
        console.print(f"written to {docs}")
    return 0


def all_cells() -> Iterator[Cell]:
    """Every training job that a row or the table of variations rests on."""
    yield from fig2_communication_share.cells()
    yield from fig16_speedup.cells()
    yield from variations.cells()


def all_rows() -> list[ClaimRow]:
    """Every claim, in the order of the figures."""
    return [row for figure in FIGURES for row in figure.rows()]


def simulate_all(console: Console) -> None:
    """Simulate all cells on all cores, with progress."""
    wanted = missing(all_cells())
    num_processes = len(os.sched_getaffinity(0))
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("training jobs"), *columns, console=console, transient=True) as progress:
        task = progress.add_task("jobs", total=len(wanted))
        precompute(wanted, num_processes=num_processes, on_done=lambda _: progress.advance(task))


def is_of_auto(row: ClaimRow) -> bool:
    """Whether a row is of our own policy, which the paper does not have."""
    return "policy auto" in row.claim


def summary(rows: list[ClaimRow]) -> str:
    """How many rows came to what."""
    counts = Counter(row.verdict for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def page(rows: list[ClaimRow]) -> str:
    """docs/validation.md."""
    declared = [[one.name, one.value, one.basis, one.source] for one in DECLARED]
    overlap, blocked = solved.overlap_for_p100()
    ours = [row for row in rows if is_of_auto(row)]
    own = [row for row in rows if not is_of_auto(row)]
    lines = [
        "# Validation",
        "",
        f"Made by `{COMMAND} --docs docs/validation.md`; do not edit. [evaluation.md](evaluation.md) explains it.",
        "",
        summary(own) + ". A row `input` is what our machine was made from, no reproduction.",
        "",
        *markdown([list(HEAD), *(row.cells for row in own)]),
        "",
        "## By a policy that the paper does not have",
        "",
        "`auto` decides by simulating the iteration. " + summary(ours) + ".",
        "",
        *markdown([list(HEAD), *(row.cells for row in ours)]),
        "",
        "## Why",
        "",
        *(f"- {row.claim}. *{row.why}*" for row in rows if row.why),
        "",
        "## Inputs",
        "",
        *markdown([["input", "value", "basis", "source"], *declared]),
        "",
        "## How much the inputs matter",
        "",
        "The paper's policy and two workers where nothing else is said, NVLink on where there is any; one choice "
        "changed at a time.",
        "",
        *markdown(variations.table()),
        "",
        "## What was put right",
        "",
        "Inputs that were wrong, each alone, and together as they are declared now.",
        "",
        *markdown(variations.table(variations.PUT_RIGHT)),
        "",
        "## What DENSE would have to be",
        "",
        "Seconds of DENSE's iteration that give the stated speed-up if COARSE takes what it takes here, and the rate "
        "at which a worker would then store and load all parameters in the time beyond compute.",
        "",
        *markdown(solved.table()),
        "",
        f"Figure 17c's -28 % comes out ({blocked - 1:+.0%}) if every gradient leaves late: when {overlap:.0%} is left "
        "of the time that it had until the end of backward.",
        "",
    ]
    return "\n".join(lines)


def markdown(lines: list[list[str]]) -> Iterator[str]:
    """A table whose first line is its head."""
    head, *body = lines
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for line in body:
        yield "| " + " | ".join(line) + " |"


def section(title: str, rows: list[ClaimRow], declared: Sequence[Declared]) -> Iterator[str]:
    """One source's part of a page: its rows, why some are missed, and its inputs."""
    yield from ("", f"## {title}", "", f"{summary(rows)}. A row `input` is no reproduction.", "")
    yield from markdown([list(HEAD), *(row.cells for row in rows)])
    yield from ("", "Why:", "", *(f"- {row.claim}. *{row.why}*" for row in rows if row.why))
    inputs = [[one.name, one.value, one.basis, one.source] for one in declared]
    yield from ("", "Inputs:", "", *markdown([["input", "value", "basis", "source"], *inputs]))


class Run(Protocol):
    """Validates, prints and writes."""

    def __call__(self, console: Console, *, out: Path, docs: Path | None) -> int:
        """The exit status."""
        ...


def main(run: Run, doc: str | None) -> int:
    """The command line of a validation."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the rows as JSON")
    parser.add_argument("--docs", type=Path, help="write the tables as this Markdown page")
    arguments = parser.parse_args()
    return run(Console(), out=arguments.out, docs=arguments.docs)


if __name__ == "__main__":
    raise SystemExit(main(run, __doc__))
