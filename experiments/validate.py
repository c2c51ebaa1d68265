"""Five papers and two of pools, held against simulations: rows, verdicts, and one page.

    python -m experiments.validate [--only coarse,fcdp] [--out results/validation] [--docs docs/validation.md]

Kind of all results: simulated. `coarse validate` is the same, and `--intervals` its inputs as they may have been.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coarse.errors import ConfigError
from experiments.coarse_paper.paper import COARSE
from experiments.cxl_pool.paper import POOLS
from experiments.fcdp_paper.paper import FCDP
from experiments.fsdp_paper.paper import FSDP
from experiments.gpt.rows import write_json
from experiments.luwu_paper.paper import LUWU
from experiments.odc_paper.paper import ODC
from experiments.validation.claims import ClaimRow
from experiments.validation.interval_study import run_studies
from experiments.validation.page import markdown, num_held, num_met, text_of
from experiments.validation.paper import Figure, Paper
from experiments.validation.script import claims_table

PAPERS = (COARSE, FSDP, FCDP, LUWU, ODC, *POOLS)
COMMAND = "coarse validate"
RESULTS = Path("results/validation")
PAGE = Path(__file__).parents[1] / "docs" / "validation.md"
"""Where the last tables are kept."""
Found = dict[Paper, dict[Figure, list[ClaimRow]]]


def chosen(names: str) -> tuple[Paper, ...]:
    """The papers of some names, separated by commas; "" is all.

    Raises:
        ConfigError: a name that none has.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {paper.name: paper for paper in PAPERS}
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"no paper is called {unknown[0]!r}; there are {', '.join(known)}", key="only")
    return tuple(paper for paper in PAPERS if not wanted or paper.name in wanted)


def run(console: Console, *, papers: Sequence[Paper] = PAPERS, out: Path = RESULTS, docs: Path | None = None) -> int:
    """Run everything, print the tables, write results; 0, since a miss is a result and not a failure."""
    found: Found = {}
    for paper in papers:
        paper.prepare(console)
        found[paper] = paper.rows_by_figure()
        rows = rows_of(found[paper])
        for part, own in paper.parts(rows).items():
            title = f"{paper.title}{f', {part}' if part else ''}: claims and ours"
            console.print(claims_table(own, title))
        console.print(f"{paper.title}: {num_met(rows)} of {num_held(rows)} rows met; why: docs/{paper.explained}")
    documents = [
        {"paper": paper.title, "figure": figure.number, "command": figure.command, **row.document()}
        for paper, figures in found.items()
        for figure, rows in figures.items()
        for row in rows
    ]
    write_json(out / "validation.json", {"command": COMMAND, "kind": "simulated", "rows": documents})
    console.print(f"written to {out / 'validation.json'}")
    if docs is not None:
        docs.write_text(page(found), encoding="utf-8")
        console.print(f"written to {docs}")
    return 0


def run_intervals(console: Console, *, papers: Sequence[Paper] = PAPERS, out: Path, docs: Path | None = None) -> int:
    """Run all studies of intervals."""
    return run_studies([study for paper in papers for study in paper.studies], console, out=out, docs=docs)


def rows_of(figures: dict[Figure, list[ClaimRow]]) -> list[ClaimRow]:
    """Those of all figures."""
    return [row for rows in figures.values() for row in rows]


def page(found: Found) -> str:
    """docs/validation.md."""
    head = ["paper", "part", "rows", "held against the paper", "met", "missed", "input"]
    lines = [head]
    for paper, by_figure in found.items():
        for part, rows in paper.parts(rows_of(by_figure)).items():
            met, held = num_met(rows), num_held(rows)
            counts = (len(rows), held, met, held - met, len(rows) - held)
            lines.append([paper.title, part or "-", *map(str, counts)])
    figures = [line for paper, by_figure in found.items() for line in paper.figure_lines(by_figure)]
    text = [
        "# Validation: what papers state, and what comes out",
        "",
        f"Made by `{COMMAND} --docs docs/validation.md`; do not edit. All of ours is *simulated*. [intervals.md]"
        "(intervals.md) has the same rows under all that their inputs may have been, and the input that would have to "
        "be otherwise for each that is missed.",
        "",
        *markdown(lines),
        "",
        "## Figures",
        "",
        "Met: of the rows of the paper's own machines and policy.",
        "",
        *markdown([["paper", "figure", "what", "command", "verdict"], *figures]),
    ]
    for paper, by_figure in found.items():
        text += paper.section(rows_of(by_figure))
    return text_of(text)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some papers, of {', '.join(paper.name for paper in PAPERS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the rows as JSON")
    parser.add_argument("--docs", type=Path, help="write the tables as this Markdown page")
    parser.add_argument("--intervals", action="store_true", help="rows under all that inputs may have been, instead")
    given = parser.parse_args()
    runs = run_intervals if given.intervals else run
    return runs(Console(), papers=chosen(given.only), out=given.out, docs=given.docs)


if __name__ == "__main__":
    raise SystemExit(main())
