"""Results as a table that can be pasted into a document, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

RESULTS_FOLDER = Path(__file__).parent / "results"
_NO_VALUE = "-"


def print_table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A Markdown table on standard output, its first column to the left and all others to the right."""
    table = Table(box=box.MARKDOWN, header_style="")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console = Console(width=sum(_column_width(columns, lines, index) + 3 for index in range(len(columns))) + 1)
    console.print(f"\n{title}\n", highlight=False, soft_wrap=True)
    console.print(table)


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose first column stands to the left and all others to the right."""
    head = [columns, ["---", *("---:" for _ in columns[1:])]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*head, *lines])


def write_json(name: str, report: Mapping[str, object], folder: Path = RESULTS_FOLDER) -> Path:
    """The file that now holds the report."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return path


def milliseconds(seconds: float | None) -> str:
    """Three digits that matter, in ms."""
    return _NO_VALUE if seconds is None else _three_digits(seconds * 1e3)


def times(ratio: float | None) -> str:
    """A ratio, like 6.12x."""
    return _NO_VALUE if ratio is None else f"{ratio:.2f}x"


def percent(share: float | None) -> str:
    """A share with its sign, like +3.1 %."""
    return _NO_VALUE if share is None else f"{share * 100:+.1f} %"


def _three_digits(value: float) -> str:
    for limit, digits in ((0.1, 4), (1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _column_width(columns: Sequence[str], lines: Sequence[Sequence[str]], index: int) -> int:
    return max(len(columns[index]), *(len(line[index]) for line in lines), 0)
