"""The command line that every figure's script has: rows to the terminal and as JSON, and the figure."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.gpt.rows import write_json
from experiments.validation.claims import HEAD, ClaimRow

WIDTHS = (8, None, 10, 9, 9, 9, 10)
"""Of the table's columns; the claim takes what the terminal has left, at 80 columns too."""


COARSE_TITLE = "COARSE (HPCA 2022): claims and ours"


def main(
    rows: Callable[[], list[ClaimRow]],
    draw: Callable[[Path], None] | None,
    doc: str | None,
    *,
    title: str = COARSE_TITLE,
) -> None:
    """Run one figure's or table's script."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for rows.json and the figure; by default nothing is written")
    out: Path | None = parser.parse_args().out
    found = rows()
    console = Console()
    console.print(claims_table(found, title))
    for row in found:
        if row.why:
            console.print(f"{row.claim}: {row.why}", highlight=False)
    if out is not None:
        write_rows(found, out)
        if draw is not None:
            draw(out)
        console.print(f"written to {out}")


def claims_table(rows: Sequence[ClaimRow], title: str = COARSE_TITLE) -> Table:
    """The rows for a terminal."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, expand=True)
    for name, width in zip(HEAD, WIDTHS, strict=True):
        table.add_column(name, overflow="fold", width=width)
    for row in rows:
        table.add_row(*row.cells)
    return table


def write_rows(rows: Sequence[ClaimRow], folder: Path) -> None:
    """All rows as JSON."""
    write_json(folder / "rows.json", {"kind": "simulated", "rows": [row.document() for row in rows]})
