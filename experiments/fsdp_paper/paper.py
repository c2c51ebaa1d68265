"""The PyTorch FSDP paper (VLDB 2023), as far as notes on it were at hand; see docs/fcdp_evaluation.md."""

from functools import partial

from experiments.fsdp_paper import fig2_collectives, fig6_overlap
from experiments.fsdp_paper.machines import CENTRAL, DECLARED, under
from experiments.validation.claims import ClaimRow
from experiments.validation.interval_study import Study, Values, interval_of, with_values
from experiments.validation.paper import Paper, figure, missing

_interval = partial(interval_of, CENTRAL, DECLARED)


def rows_under(values: Values) -> list[ClaimRow]:
    """All rows."""
    with under(with_values(CENTRAL, values)):
        return [*fig2_collectives.rows(), *fig6_overlap.rows()]


STUDY = Study(
    title="FSDP",
    what="All rows.",
    intervals=(
        _interval("nvlink_bytes_per_s", "A100 host", 230e9, 300e9, "what NCCL reaches of it, and the data sheet's"),
        _interval("nvlink_latency_s", "A100 host", 1e-6, 5e-6, "two fifths, and twice; no number is published"),
        _interval("network_latency_s", "RoCE", 2e-6, 1e-5, "two fifths, and twice; no number is published"),
        _interval("flops_per_s", "A100 compute", 173e12, 186e12, "figure 7b at batch 1, and at batch 2"),
    ),
    rows_under=rows_under,
    headlines=("GPT-175B, 128 GPUs, batch 1", "GPT-175B, 128 GPUs, batch 2"),
)

FSDP = Paper(
    name="fsdp",
    title="PyTorch FSDP (VLDB 2023)",
    explained="fcdp_evaluation.md",
    figures=(
        figure("2", "collectives by size and evenness; 3.2.2's formulas", fig2_collectives),
        missing("6a, 7c", "T5's TFLOPS", "the pace of a model is an input here, and T5 is not modelled"),
        figure("6b", "backward's prefetch, and 3.4's limit in flight", fig6_overlap),
        missing("6c", "rate limiter, T5 and DeepViT", "what an allocator loses to fragments is not modelled"),
        missing("7a, 8a", "DHEN", "768 billion sparse parameters are not modelled"),
        missing("7b, 8b", "GPT-175B's TFLOPS and memory", "its pace at batch 2 is the input of figure 6b"),
    ),
    declared=DECLARED,
    studies=(STUDY,),
)
