"""Runs of one training side by side: how far their losses lie apart, and the table that says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

EARLY_STEPS = 20
"""For so many steps the loss must agree; afterwards rounding may grow with training, and is only stated."""

TOLERANCE = 1e-4
"""Largest relative difference of loss in the early steps."""

EXPOSED = (
    "Exposed communication: the time of an iteration less that of one without synchronisation; "
    "a median of few values, so below 0 is noise."
)
"""Stands below the table."""

Document = Mapping[str, Any]
"""What a worker's run left behind (experiments/gpt/rows.py)."""


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """The largest relative difference to a reference, in the early steps and after them."""

    early: float
    later: float | None
    """None where the run ended before."""

    @property
    def agrees(self) -> bool:
        """Whether the runs are the same training, but for rounding; a loss that is no number never agrees."""
        return self.early <= TOLERANCE


def losses_of(document: Document) -> list[float]:
    """The loss of every step."""
    return [row["loss"] for row in document["steps"]]


def relative_differences(losses: Sequence[float], reference: Sequence[float]) -> list[float]:
    """|loss - reference| / |reference| of each step; infinite where a loss is no number, which a maximum would hide."""
    if len(losses) != len(reference):
        raise ValueError(f"wanted as many losses as the reference has, {len(reference)}, got {len(losses)}")
    differences = [abs(loss - wanted) / abs(wanted) for loss, wanted in zip(losses, reference, strict=True)]
    return [math.inf if math.isnan(difference) else difference for difference in differences]


def loss_difference(losses: Sequence[float], reference: Sequence[float]) -> LossDifference:
    """How far two runs lie apart."""
    differences = relative_differences(losses, reference)
    later = differences[EARLY_STEPS:]
    return LossDifference(early=max(differences[:EARLY_STEPS]), later=max(later) if later else None)


def comparison_rows(runs: Mapping[str, Document], reference: str) -> list[dict[str, Any]]:
    """A row per run: its summary, and its difference to the run named `reference`."""
    wanted = losses_of(runs[reference])
    rows = []
    for name, document in runs.items():
        difference = loss_difference(losses_of(document), wanted)
        rows.append(
            {
                "name": name,
                **document["summary"],
                "loss_difference_early": difference.early,
                "loss_difference_later": difference.later,
                "agrees": difference.agrees,
            }
        )
    return rows


def comparison_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows for a terminal of 80 columns: a column per run."""
    table = Table(title=title, title_justify="left", caption=EXPOSED, caption_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row["name"], justify="right")
    for label, text in CELLS.items():
        table.add_row(label, *(text(row) for row in rows))
    return table


def exposed_text(exposed_s: float | None, exposed_share: float | None) -> str:
    """Milliseconds of a step and their share in it; a dash where nothing is synchronised."""
    if exposed_s is None or exposed_share is None:
        return "-"
    return f"{exposed_s * 1e3:.1f} ms ({exposed_share:.1%})"


def bytes_text(num_bytes: int | None) -> str:
    """Bytes in the largest unit that keeps the number above one; a dash where they were not counted."""
    if num_bytes is None:
        return "-"
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def difference_text(difference: float | None) -> str:
    """A relative difference of loss; a dash where there was no step to compare."""
    if difference is None:
        return "-"
    return f"{difference:.1e}" if difference else "0"


CELLS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "loss at the end": lambda row: f"{row['last_loss']:.4f}",
    "validation loss": lambda row: f"{row['validation_loss']:.4f}",
    "iterations/s": lambda row: f"{row['iterations_per_s']:.2f}",
    "exposed communication": lambda row: exposed_text(row["exposed_s"], row["exposed_share"]),
    "bytes moved per step": lambda row: bytes_text(row["bytes_per_step"]),
    f"difference, steps 1-{EARLY_STEPS}": lambda row: difference_text(row["loss_difference_early"]),
    "difference after that": lambda row: difference_text(row["loss_difference_later"]),
    "kind": lambda row: row["kind"],
}
"""The table's lines, and how each is read from a run's row."""
