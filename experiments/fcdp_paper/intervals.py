"""FCDP's rows under all that their inputs may have been: see experiments/validation/interval_study.py."""

from functools import partial

from experiments.fcdp_paper import fig2_networks, fig5_fig6_full, fig7_fig9_lora, fig10_volume, memory
from experiments.fcdp_paper.cells import under
from experiments.fcdp_paper.inputs import CENTRAL, DECLARED
from experiments.validation.claims import ClaimRow
from experiments.validation.interval_study import Study, Values, interval_of, with_values

FIGURES = (memory, fig2_networks, fig5_fig6_full, fig7_fig9_lora, fig10_volume)


_interval = partial(interval_of, CENTRAL, DECLARED)
INTERVALS = (
    _interval("border_step_s", "border", 0.0, 1.8e-3, "no time of its own, and twice the fitted one"),
    _interval("peak_share", "compute", 0.126, 0.44, "BERT-large on a V100 at batch 4, and what others reach on an A40"),
    _interval("sequence", "activations", 128, 384, "half and one and a half times; no length is stated"),
    _interval("secondary_growth", "secondary shards", 1.0, 1.816, "the paper's formula, and its own measurement"),
    _interval("full_on_ipoib", "network of figures 5 to 8", 0, 1, "0: RDMA; 1: IPoIB, of figures 5 and 6",
              is_choice=True),
    _interval("staging_bytes_per_s", "ports", 0, 26.1e9, "0: copies of a socket's GPUs share nothing, or its memory's "
              "rate (nccl-tests issue 74 has 19 to 21 GB/s of A40 both ways)", is_choice=True),
)  # fmt: skip


def rows_under(values: Values) -> list[ClaimRow]:
    """All rows of the paper."""
    with under(with_values(CENTRAL, values)):
        return [row for figure in FIGURES for row in figure.rows()]


STUDY = Study(
    title="FCDP",
    what="All rows.",
    intervals=INTERVALS,
    rows_under=rows_under,
    headlines=(
        "ZeRO-3, GPT-10B, batch 8, 4 nodes, rdma", "FCDP over ZeRO-3, batch 8, largest over models and nodes, ipoib",
        "FCDP over ZeRO-3 at the largest batch, GPT-10B on 32 GPUs, ipoib",
        "LoRA: FCDP-Comm over ZeRO-3, largest over models and both batches, ipoib",
        "LoRA: FCDP over ZeRO++, smallest and largest over models and both batches, ipoib",
        "LoRA, GPT-10B, batch 8: FCDP-Comm keeps from RDMA to 1 Gbit/s",
    ),
)  # fmt: skip
