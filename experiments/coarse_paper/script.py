"""The command line that every figure's script has: rows to the terminal and as JSON, and the figure."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.coarse_paper.claims import ClaimRow
from experiments.gpt.rows import write_json

WIDTHS = {"source": 8, "claim": None, "paper": 10, "ours": 9, "kind": 9, "deviation": 9, "verdict": 10}
"""Of the table's columns; the claim takes what the terminal has left, at 80 columns too."""


def main(rows: Callable[[], list[ClaimRow]], draw: Callable[[Path], None], doc: str | None) -> None:
    """Run one figure's script."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for rows.json and the figure; by default nothing is written")
    out: Path | None = parser.parse_args().out
    found = rows()
    console = Console()
    console.print(claims_table(found))
    for row in found:
        if row.why:
            console.print(f"{row.claim}: {row.why}", highlight=False)
    if out is not None:
        write_rows(found, out)
        draw(out)
        console.print(f"written to {out}")


def claims_table(rows: Sequence[ClaimRow], title: str = "COARSE (HPCA 2022): claims and ours") -> Table:
    """The rows for a terminal."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, expand=True)
    for name, width in WIDTHS.items():
        table.add_column(name, overflow="fold", width=width)
    for row in rows:
        table.add_row(
            row.source, row.claim, row.paper, row.ours_text, row.kind, row.deviation_text, str(row.verdict)
        )
    return table


def write_rows(rows: Sequence[ClaimRow], folder: Path) -> None:
    """All rows as JSON."""
    write_json(folder / "rows.json", {"kind": "simulated", "rows": [row.document() for row in rows]})
