"""The PyTorch FSDP paper (VLDB 2023), as far as notes on it were at hand; see docs/fcdp_evaluation.md."""

from experiments.fsdp_paper import fig2_collectives, fig6_overlap
from experiments.fsdp_paper.machines import DECLARED
from experiments.validation.paper import Paper, figure, missing

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
)  # fmt: skip
