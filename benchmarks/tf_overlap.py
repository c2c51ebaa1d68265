"""How far pushing overlaps backward, from what `tf_step.py` recorded of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.rendering import milliseconds

Step = Mapping[str, Any]
"""What a worker says of one step: backward_ended_s, end_s and transfers, in seconds since its begin."""


@dataclass(frozen=True, kw_only=True)
class OverlapRow:
    """Medians over workers and steps, with one number of inter-op threads; seconds count from the step's begin."""

    num_inter_op_threads: int
    rows_per_worker: int
    num_steps: int
    num_buckets: int
    first_push_s: float
    """When the first bucket's push begins."""
    backward_ended_s: float
    """When the last gradient is there."""
    last_push_s: float
    """When the last bucket's push begins."""
    first_result_s: float
    """When TensorFlow has the first bucket's results."""
    end_s: float
    share_begun: float
    """Of the bytes, those whose push begins before the last gradient is there."""
    share_pushed: float
    """Of the bytes, those whose push has ended by then: memory devices may be adding them."""
    push_s: float
    """In pushes: copies into device memory."""
    take_s: float
    """In takes: waiting, and copies of results."""
    pushes: tuple[tuple[int, float, float], ...]
    """Each push in order: bytes, begin and end, as medians."""

    def as_json(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return asdict(self)


def overlap_row(num_inter_op_threads: int, rows_per_worker: int, steps: Sequence[Step]) -> OverlapRow:
    """The row of all workers' steps, which have the same buckets."""

    def median_of(values: Sequence[float]) -> float:
        return float(np.median(values))

    pushes = [_of_kind(step, "push") for step in steps]
    takes = [_of_kind(step, "take") for step in steps]
    return OverlapRow(
        num_inter_op_threads=num_inter_op_threads,
        rows_per_worker=rows_per_worker,
        num_steps=len(steps),
        num_buckets=len(pushes[0]),
        first_push_s=median_of([of[0]["begin_s"] for of in pushes]),
        backward_ended_s=median_of([step["backward_ended_s"] for step in steps]),
        last_push_s=median_of([of[-1]["begin_s"] for of in pushes]),
        first_result_s=median_of([of[0]["end_s"] for of in takes]),
        end_s=median_of([step["end_s"] for step in steps]),
        share_begun=median_of([share_before(step, "begin_s") for step in steps]),
        share_pushed=median_of([share_before(step, "end_s") for step in steps]),
        push_s=median_of([sum(push["end_s"] - push["begin_s"] for push in of) for of in pushes]),
        take_s=median_of([sum(take["end_s"] - take["begin_s"] for take in of) for of in takes]),
        pushes=tuple(
            (same[0]["nbytes"], median_of([push["begin_s"] for push in same]), median_of([p["end_s"] for p in same]))
            for same in zip(*pushes, strict=True)
        ),
    )


def share_before(step: Step, when: str) -> float:
    """Of a step's bytes, those whose push begins ("begin_s") or ends ("end_s") before backward ends."""
    pushes = _of_kind(step, "push")
    early = sum(push["nbytes"] for push in pushes if push[when] < step["backward_ended_s"])
    return early / sum(push["nbytes"] for push in pushes)


def overlap_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines: a line for each number of inter-op threads."""
    columns = ["inter-op threads", "batch", "first push", "last gradient", "last push", "first result", "step"]
    columns += ["begun before last gradient", "pushed before it", "in pushes", "in takes"]
    times = ("first_push_s", "backward_ended_s", "last_push_s", "first_result_s", "end_s")
    lines = []
    for row in rows:
        line = [str(row["num_inter_op_threads"]), str(row["rows_per_worker"])]
        line += [milliseconds(row[key]) for key in times]
        line += [f"{row[key] * 100:.0f} %" for key in ("share_begun", "share_pushed")]
        lines.append([*line, milliseconds(row["push_s"]), milliseconds(row["take_s"])])
    return columns, lines


def pushes_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines: a line for each bucket, with what its push took at each number of inter-op threads."""
    columns = ["bucket", "MiB", *(f"{row['num_inter_op_threads']} inter-op" for row in rows)]
    lines = []
    for bucket, (nbytes, _, _) in enumerate(rows[0]["pushes"] if rows else ()):
        times = [row["pushes"][bucket][1:] for row in rows]
        cells = [f"{milliseconds(begin_s)} to {milliseconds(end_s)}" for begin_s, end_s in times]
        lines.append([str(bucket), f"{nbytes / 2**20:.2f}", *cells])
    return columns, lines


def _of_kind(step: Step, kind: str) -> list[Mapping[str, Any]]:
    """A step's pushes or takes in the order in which they began."""
    return sorted((of for of in step["transfers"] if of["kind"] == kind), key=lambda of: float(of["begin_s"]))
