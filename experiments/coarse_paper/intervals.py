"""COARSE's rows about training under all that their inputs may have been; see experiments/validation."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count

from coarse.cli.progress import shown_tasks
from coarse.hardware.coherence import SNOOP_OVER_LINE
from experiments.coarse_paper import fig2_communication_share, fig16_speedup, fig17_blocked_time
from experiments.coarse_paper.cells import Cell, missing, precompute, taken, under
from experiments.coarse_paper.inputs import CENTRAL, DECLARED, LOAD_SLOWDOWN
from experiments.coarse_paper.settings import by_policies
from experiments.validation.claims import ClaimRow
from experiments.validation.interval_study import Found, Interval, Study, Values, interval_of, with_values

FIGURES = (fig2_communication_share, fig16_speedup, fig17_blocked_time)
_interval = partial(
    interval_of, replace(CENTRAL, sharer_growth=SNOOP_OVER_LINE, load_slowdown=LOAD_SLOWDOWN), DECLARED
)  # presets state two of them


def _choice(field: str, declared: str, why: str, ends: tuple[float, float] = (0.0, 1.0)) -> Interval:
    return _interval(field, declared, *ends, why, is_choice=True)


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
    _interval("alexnet_batch", "eight models", 64.0, 512.0, "V-D's batch of images, and TensorFlow's own of AlexNet"),
    _choice("loads_wait", "DENSE", "0: a load follows each sum, as the GPU goes on meanwhile (III-B); 1: TensorFlow's "
            "ParameterServer (V-D)"),
    _choice("mixed_precision", "precision", "the paper states none"),
    _choice("copies_over_nvlink", "pushes' links", "0: PCIe, as is profiled (IV-B); 1: NVLink"),
    _choice("v100_memory_gib", "V100's memory", "p3's, and p3dn's", (16.0, 32.0)),
)  # fmt: skip


def rows_under(values: Values) -> list[ClaimRow]:
    """All rows about training, by the paper's policy."""
    with under(with_values(CENTRAL, values)), by_policies("paper"):
        return [row for figure in FIGURES for row in figure.rows()]


def cells_under(values: Values) -> Iterator[Cell]:
    """What they simulate."""
    with under(with_values(CENTRAL, values)), by_policies("paper"):
        yield from [taken(cell) for figure in (fig2_communication_share, fig16_speedup) for cell in figure.cells()]


def part_of(row: ClaimRow) -> str:
    """Whose policy and which machine a row is of."""
    if "policy auto" in row.claim:
        return "by a policy that the paper does not have: auto simulates the iteration to decide"
    if "NVLink off" in row.claim:
        return "V100 without NVLink, which is not the paper's machine"
    return "the paper's policy and machines"


class CoarseStudy(Study):
    """With all that rows need simulated on all cores beforehand."""

    def found(self) -> list[Found]:
        """See Study."""
        wanted = missing([cell for values in self.points() for cell in cells_under(values)])
        with shown_tasks() as tasks:
            tell = tasks.begin(f"{len(wanted)} training jobs")
            num_done = count(1)
            precompute(
                wanted, num_processes=len(os.sched_getaffinity(0)), on_done=lambda _: tell(next(num_done) / len(wanted))
            )
        return super().found()


STUDY = CoarseStudy(
    title="COARSE (HPCA 2022)",
    what="Rows about training, by the paper's policy.",
    intervals=INTERVALS,
    rows_under=rows_under,
    part_of=part_of,
    headlines=(
        "T4 resnet50, 2 workers: COARSE over DENSE", "T4 bert-large, 2 workers: COARSE over DENSE",
        "P100 bert-large, 2 workers: COARSE over DENSE",
        "P100 bert-large: blocked time of COARSE against all-reduce",
        "V100 bert-large, 1 node, COARSE batch 4", "V100 bert-large, 2 nodes, COARSE over all-reduce",
    ),
)  # fmt: skip
