"""Rows and tables of `tf_step.py`: what synchronisation adds to a step, and how far it is hidden by backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.rendering import milliseconds, times
from benchmarks.tf_contenders import PACKED_PEER, PEER, Turn

Row = Mapping[str, Any]
"""A StepRow as JSON holds it."""


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One contender's step at one batch size; a step takes as long as on the slower worker."""

    rows_per_worker: int
    contender: str
    loop: str
    label: str
    gradient_bytes: int
    median_step_s: float
    fastest_step_s: float
    slowest_step_s: float
    median_cpu_s: float
    """Of all processes of the contender together, one step."""
    added_s: float
    """What its step takes longer than the same loop's without synchronisation."""
    added_low_s: float
    """The lower quartile of that, round by round."""
    added_high_s: float
    """The upper one."""
    num_rounds: int

    def as_json(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return asdict(self)


def step_rows(
    rows_per_worker: int,
    gradient_bytes: int,
    turns: Sequence[Turn],
    elapsed_s: np.ndarray,  # (num_rounds, num_turns) float64, a step's seconds
    cpu_s: np.ndarray,  # (num_rounds, num_turns) float64, a step's CPU seconds over all processes
) -> list[StepRow]:
    """A row for each turn; every turn's baseline must be among them."""
    rows = []
    for index, turn in enumerate(turns):
        base = elapsed_s[:, turns.index(turn.baseline)]
        low_s, high_s = np.percentile(elapsed_s[:, index] - base, [25, 75])
        rows.append(
            StepRow(
                rows_per_worker=rows_per_worker,
                contender=turn.contender,
                loop=turn.loop,
                label=turn.label,
                gradient_bytes=gradient_bytes,
                median_step_s=float(np.median(elapsed_s[:, index])),
                fastest_step_s=float(elapsed_s[:, index].min()),
                slowest_step_s=float(elapsed_s[:, index].max()),
                median_cpu_s=float(np.median(cpu_s[:, index])),
                added_s=float(np.median(elapsed_s[:, index]) - np.median(base)),
                added_low_s=float(low_s),
                added_high_s=float(high_s),
                num_rounds=len(elapsed_s),
            )
        )
    return rows


def share_of_peer(rows: Sequence[Row], peer: str, label: str) -> dict[int, float]:
    """Rows a worker -> what `label` adds to a step, over what the peer adds; left out where the peer adds nothing."""
    added = {(row["rows_per_worker"], row["label"]): row["added_s"] for row in rows}
    return {
        size: added[size, label] / added[size, peer]
        for size in dict.fromkeys(row["rows_per_worker"] for row in rows)
        if (size, label) in added and added.get((size, peer), 0) > 0
    }


def step_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines: a line for each contender at each batch size, with what it adds and its quartiles."""
    columns = ["", "batch", "step", "CPU", "adds", "quartiles", f"of {PEER}'s", f"of {PACKED_PEER}'s"]
    lines = []
    for row in rows:
        line = [row["label"], str(row["rows_per_worker"])]
        line += [milliseconds(row["median_step_s"]), milliseconds(row["median_cpu_s"])]
        turn = Turn(row["contender"], row["loop"])
        if turn == turn.baseline:
            lines.append([*line, "-", "-", "-", "-"])
            continue
        shares = [share_of_peer(rows, peer, row["label"]).get(row["rows_per_worker"]) for peer in (PEER, PACKED_PEER)]
        quartiles = f"{milliseconds(row['added_low_s'])} to {milliseconds(row['added_high_s'])}"
        lines.append([*line, milliseconds(row["added_s"]), quartiles, *(times(share) for share in shares)])
    return columns, lines
