"""COARSE's rows about training under all that their inputs may have been: see interval_study.py.

    python -m experiments.coarse_paper.intervals [--samples 24] [--out results/intervals] [--docs docs/intervals.md]
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from coarse.cli.progress import shown_tasks
from experiments.coarse_paper import fig2_communication_share, fig16_speedup, fig17_blocked_time
from experiments.coarse_paper.cells import Cell, missing, precompute, taken, under
from experiments.coarse_paper.claims import ClaimRow
from experiments.coarse_paper.inputs import CENTRAL, LOAD_SLOWDOWN, Inputs, require_declared
from experiments.coarse_paper.interval_study import NUM_SAMPLES, Found, Interval, Study, Values
from experiments.coarse_paper.settings import by_policies

FIGURES = (fig2_communication_share, fig16_speedup, fig17_blocked_time)
_OF_PRESETS = {"sharer_growth": 0.1, "load_slowdown": LOAD_SLOWDOWN}


def _interval(field: str, declared: str, low: float, high: float, why: str) -> Interval:
    require_declared((declared,))
    value = getattr(CENTRAL, field)
    central = float(_OF_PRESETS[field] if value is None else value)
    return Interval(field=field, declared=declared, low=low, central=central, high=high, why=why)


INTERVALS = (
    _interval("t4_bus_bytes_per_s", "T4's lanes", 5.9e9, 7.88e9, "75 % of eight lanes' line rate, and all of it"),
    _interval("bus_bytes_per_s", "coherent rates", 10.45e9, 15.75e9,
              "copies staged through a DGX-1's host (Tartan), and sixteen lanes' line rate"),
    _interval("load_slowdown", "coherent rates", 9.0, 17.0, "figure 13a, by size"),
    _interval("store_slowdown", "coherent rates", 1.25, 4.0, "figure 13b, by size"),
    _interval("sharer_growth", "sharer growth", 0.0, 1.0,
              "sharers cost nothing, or take turns; the paper says that they cost something"),
    _interval("compute_speed", "compute", 0.9, 1.53,
              "noise, and TensorFlow's container 20.06 over PyTorch's of 2019: 1.34 in fp32, 1.53 mixed"),
    _interval("push_overlap", "pushes", 0.0, 1.0, "after backward, and as backward produces them (III-F)"),
)  # fmt: skip


def inputs_with(values: dict[str, Any]) -> Inputs:
    """The central inputs with some at other values."""
    return replace(CENTRAL, **values)


def rows_under(values: Values) -> list[ClaimRow]:
    """All rows about training, by the paper's policy."""
    with under(inputs_with(values)), by_policies("paper"):
        return [row for figure in FIGURES for row in figure.rows()]


def cells_under(values: Values) -> Iterator[Cell]:
    """What they simulate."""
    with under(inputs_with(values)), by_policies("paper"):
        yield from [taken(cell) for figure in (fig2_communication_share, fig16_speedup) for cell in figure.cells()]


class CoarseStudy(Study):
    """With all that rows need simulated on all cores beforehand."""

    def found(self, num_samples: int = NUM_SAMPLES) -> list[Found]:
        """See Study."""
        wanted = missing([cell for values in self.points(num_samples) for cell in cells_under(values)])
        with shown_tasks() as tasks:
            tell = tasks.begin(f"{len(wanted)} training jobs")
            num_done = count(1)
            precompute(
                wanted, num_processes=len(os.sched_getaffinity(0)), on_done=lambda _: tell(next(num_done) / len(wanted))
            )
        return super().found(num_samples)


STUDY = CoarseStudy(
    title="What inputs may have been",
    command="python -m experiments.coarse_paper.intervals",
    page_name="intervals.md",
    what="COARSE's rows about training, by the paper's policy.",
    intervals=INTERVALS,
    rows_under=rows_under,
    headlines=(
        "T4 resnet50, 2 workers: COARSE over DENSE", "T4 bert-large, 2 workers: COARSE over DENSE",
        "P100 bert-large, 2 workers: COARSE over DENSE", "P100 bert-large: blocked time of COARSE against all-reduce",
        "V100 bert-large, 1 node, COARSE batch 4", "V100 bert-large, 2 nodes, COARSE over all-reduce",
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(STUDY.main(__doc__))
