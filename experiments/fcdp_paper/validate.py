"""All figures and tables of the FCDP paper, and what the FSDP paper states of collectives and overlap, simulated.

    python -m experiments.fcdp_paper.validate [--out results/validation] [--docs docs/sharded_validation.md]

Kind of all results: simulated. See docs/fcdp_evaluation.md for what is an input and what an outcome.
"""

from pathlib import Path
from types import ModuleType

from rich.console import Console

from experiments.coarse_paper.claims import ClaimRow
from experiments.coarse_paper.inputs import Declared
from experiments.coarse_paper.script import claims_table
from experiments.coarse_paper.validate import RESULTS, main, markdown, section, summary
from experiments.fcdp_paper import (
    fig2_networks,
    fig5_fig6_full,
    fig7_fig9_lora,
    fig10_volume,
    inputs,
    memory,
    variations,
)
from experiments.fsdp_paper import fig2_collectives, fig6_overlap, machines
from experiments.gpt.rows import write_json

PAPERS: dict[str, tuple[tuple[ModuleType, ...], tuple[Declared, ...]]] = {
    "FCDP": ((memory, fig2_networks, fig5_fig6_full, fig7_fig9_lora, fig10_volume), inputs.DECLARED),
    "FSDP": ((fig2_collectives, fig6_overlap), machines.DECLARED),
}
"""Paper -> its scripts, and its inputs."""
COMMAND = "python -m experiments.fcdp_paper.validate"
PAGE = Path(__file__).parents[2] / "docs" / "sharded_validation.md"
"""Where the last table is kept."""


def run(console: Console, *, out: Path = RESULTS, docs: Path | None = None) -> int:
    """Run everything, print the tables, write results; 0, since a miss is a result and not a failure."""
    found = all_rows()
    for paper, rows in found.items():
        console.print(claims_table([row for _, row in rows], f"{paper}: claims and ours"))
        console.print(summary([row for _, row in rows]))
    console.print("Why numbers are missed, and what each rests on: docs/fcdp_evaluation.md, docs/sharded_validation.md")
    documents = [
        {"paper": paper, "command": command, **row.document()} for paper, rows in found.items() for command, row in rows
    ]
    results = out / "sharded_validation.json"
    write_json(
        results,
        {"command": COMMAND, "kind": "simulated", "rows": documents, "variations": variations.table()},
    )
    console.print(f"written to {results}")
    if docs is not None:
        docs.write_text(page(found), encoding="utf-8")
        console.print(f"written to {docs}")
    return 0


def all_rows() -> dict[str, list[tuple[str, ClaimRow]]]:
    """Paper -> (command, row), in the order of the scripts."""
    return {
        paper: [(f"python -m {script.__name__}", row) for script in scripts for row in script.rows()]
        for paper, (scripts, _) in PAPERS.items()
    }


def page(found: dict[str, list[tuple[str, ClaimRow]]]) -> str:
    """docs/sharded_validation.md."""
    lines = [
        "# Validation of sharded training",
        "",
        f"Made by `{COMMAND} --docs docs/sharded_validation.md`; do not edit. [fcdp_evaluation.md](fcdp_evaluation.md) "
        "explains it.",
    ]
    for paper, rows in found.items():
        lines += section(paper, [row for _, row in rows], PAPERS[paper][1])
        lines += ["", "Commands:", "", *(f"- `{command}`" for command in dict.fromkeys(one for one, _ in rows))]
    lines += [
        "",
        "## How much FCDP's inputs matter",
        "",
        "GPT-10B at batch 8 on two nodes; one choice changed at a time.",
        "",
        *markdown(variations.table()),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(run, __doc__))
