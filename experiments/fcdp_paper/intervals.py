"""FCDP's rows under all that their inputs may have been: see experiments/coarse_paper/interval_study.py.

    python -m experiments.fcdp_paper.intervals [--samples 24] [--docs docs/sharded_intervals.md]
"""

from dataclasses import replace
from typing import Any

from coarse.errors import ConfigError
from experiments.coarse_paper.claims import ClaimRow
from experiments.coarse_paper.interval_study import Interval, Study, Values
from experiments.fcdp_paper import fig2_networks, fig5_fig6_full, fig7_fig9_lora, fig10_volume, memory
from experiments.fcdp_paper.cells import under
from experiments.fcdp_paper.inputs import CENTRAL, DECLARED

FIGURES = (memory, fig2_networks, fig5_fig6_full, fig7_fig9_lora, fig10_volume)


def _interval(field: str, declared: str, low: float, high: float, why: str) -> Interval:
    if declared not in {one.name for one in DECLARED}:
        raise ConfigError(f"no declared input is called {declared!r}; add it to DECLARED in inputs.py")
    central = float(getattr(CENTRAL, field))
    return Interval(field=field, declared=declared, low=low, central=central, high=high, why=why)


INTERVALS = (
    _interval("border_step_s", "border", 0.0, 1.8e-3, "no time of its own, and twice the fitted one"),
    _interval("peak_share", "compute", 0.126, 0.44, "BERT-large on a V100 at batch 4, and what others reach on an A40"),
    _interval("sequence", "activations", 128, 384, "half and one and a half times; no length is stated"),
    _interval("secondary_growth", "secondary shards", 1.0, 1.816, "the paper's formula, and its own measurement"),
)


def rows_under(values: Values) -> list[ClaimRow]:
    """All rows of the paper."""
    whole: dict[str, Any] = {key: round(value) if key == "sequence" else value for key, value in values.items()}
    with under(replace(CENTRAL, **whole)):
        return [row for figure in FIGURES for row in figure.rows()]


STUDY = Study(
    title="What FCDP's inputs may have been",
    command="python -m experiments.fcdp_paper.intervals",
    page_name="sharded_intervals.md",
    what="All rows of FCDP's evaluation.",
    intervals=INTERVALS,
    rows_under=rows_under,
    headlines=(
        "ZeRO-3, GPT-10B, batch 8, 4 nodes, rdma", "FCDP over ZeRO-3, batch 8, largest over models and nodes, rdma",
        "FCDP over ZeRO-3 at the largest batch, GPT-10B on 32 GPUs, rdma",
        "LoRA: FCDP-Comm over ZeRO-3, largest over models and both batches, ipoib",
        "LoRA: FCDP over ZeRO++, smallest and largest over models and both batches, ipoib",
        "LoRA, GPT-10B, batch 8: FCDP-Comm keeps from RDMA to 1 Gbit/s",
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(STUDY.main(__doc__))
