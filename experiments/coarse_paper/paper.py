"""The COARSE paper (HPCA 2022), figure by figure; see docs/evaluation.md for what is an input and what an outcome."""

import os
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.coarse_paper import (
    fig2_communication_share,
    fig3_cci_bandwidth,
    fig8_pairs,
    fig10_deadlock,
    fig13_access_size,
    fig14_dma,
    fig15_routing,
    fig16_speedup,
    fig17_blocked_time,
    solved,
    variations,
)
from experiments.coarse_paper.cells import Cell, missing, precompute
from experiments.coarse_paper.inputs import DECLARED
from experiments.coarse_paper.intervals import STUDY, part_of
from experiments.validation.paper import Paper, Tables, figure
from experiments.validation.paper import missing as left_out


def all_cells() -> Iterator[Cell]:
    """Every training job that a row or a table of variations rests on."""
    yield from fig2_communication_share.cells()
    yield from fig16_speedup.cells()
    yield from variations.cells()


def simulate_all(console: Console) -> None:
    """Simulate all cells on all cores, with progress."""
    wanted = missing(all_cells())
    num_processes = len(os.sched_getaffinity(0))
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("training jobs"), *columns, console=console, transient=True) as progress:
        task = progress.add_task("jobs", total=len(wanted))
        precompute(wanted, num_processes=num_processes, on_done=lambda _: progress.advance(task))


def tables() -> Tables:
    """How much inputs matter, what was put right, and what DENSE would have to be."""
    overlap, blocked = solved.overlap_for_p100()
    yield (
        "How much the inputs matter",
        "The paper's policy and two workers where nothing else is said, NVLink on where there is any; one choice "
        "changed at a time.",
        variations.table(),
    )
    yield (
        "What was put right",
        "Inputs that were otherwise, each put right alone, and all of them.",
        variations.table(variations.PUT_RIGHT),
    )
    yield (
        "What DENSE would have to be",
        "Seconds of DENSE's iteration that give the stated speed-up if COARSE takes what it takes here, and the rate "
        "at which a worker would then store and load all parameters in the time beyond compute. Figure 17c's -28 % "
        f"comes out ({blocked - 1:+.0%}) if every gradient leaves late: when {overlap:.0%} is left of the time that it "
        "had until the end of backward.",
        solved.table(),
    )


COARSE = Paper(
    name="coarse",
    title="COARSE (HPCA 2022)",
    explained="evaluation.md",
    figures=(
        left_out("1, 4 to 7, 11, 12", "designs", "they state no result; tests hold the design"),
        figure("2", "share of communication", fig2_communication_share),
        figure("3", "loads, stores and copies over CCI", fig3_cci_bandwidth),
        figure("8", "bandwidth between pairs of GPUs", fig8_pairs),
        left_out("9", "timeline of pushes, sums and pulls", "it is a sketch without numbers"),
        figure("10", "deadlock", fig10_deadlock),
        figure("13", "CCI's rates by size", fig13_access_size),
        figure("14", "DMA by size", fig14_dma),
        figure("15", "routes", fig15_routing),
        figure("16", "training speed, and batch limits", fig16_speedup),
        figure("17", "blocked communication", fig17_blocked_time),
    ),
    declared=DECLARED,
    prepare=simulate_all,
    part_of=part_of,
    tables=tables,
    studies=(STUDY,),
)
