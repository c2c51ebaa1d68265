"""FCDP Table VII and figure 10: what crosses between the nodes in an iteration of LoRA, and how fast.

    python -m experiments.fcdp_paper.fig10_volume --out results/fcdp-fig10

Input: the model (GPT-30B) and the unit (GiB, all nodes together), which the paper doesn't name: the reading in which
ZeRO-3's total agrees. Outcome: bytes by pass and system, and rates over time.
"""

from collections.abc import Iterator
from pathlib import Path

from coarse.protocol.units import GIB
from coarse.simulation.sharded.report import rate_over_time
from experiments.fcdp_paper.cells import Cell, System, report_of
from experiments.fcdp_paper.inputs import TITLE, Network
from experiments.validation.bars import Bar, Panel, draw_bars
from experiments.validation.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

STATED = {
    System.ZERO3: (110.25, 103.48),
    System.ZEROPP: (108.18, 0.1),
    System.SCHED: (108.18, 0.1),
    System.COMM: (0.06, 0.1),
}
"""System -> GB in forward and in backward (Table VII)."""
INPUTS = ("shapes", "ring", "adapters", "warm cache")
WINDOW_S = 1.0
_ROUNDING = {0.06: 0.005, 0.1: 0.05, 0.16: 0.055}
"""The paper writes some with one digit and some with two."""


def rows() -> list[ClaimRow]:
    """Table VII, result 8 and figure 10."""
    return [*_table(), *_peaks()]


def cell_of(system: System) -> Cell:
    """The table's job, as far as it is known."""
    return Cell(model="gpt-30b", network=Network.RDMA, system=system, is_lora=True)


def crossing_gib(system: System) -> tuple[float, float]:
    """Of all nodes together, in forward and in backward; what is gathered after the step counts as forward's."""
    report = report_of(cell_of(system))
    forward = report.crossing_nbytes("forward gather", "gather after the step")
    return forward / GIB, report.crossing_nbytes("backward gather", "reduce-scatter") / GIB


def _table() -> Iterator[ClaimRow]:
    for system, stated in STATED.items():
        ours = crossing_gib(system)
        for name, value, paper in (
            ("forward", ours[0], stated[0]),
            ("backward", ours[1], stated[1]),
            ("in all", sum(ours), sum(stated)),
        ):
            around = _ROUNDING.get(round(paper, 2), 0.0)
            yield claim_row(
                f"LoRA, {system}: between nodes, {name}", "V-E, Table VII", f"{paper:g} GB",
                Number(paper - around, paper + around), [value], Unit.GIB, inputs=INPUTS,
            )  # fmt: skip
    whole = sum(crossing_gib(System.ZERO3))
    for system, reduction in ((System.SCHED, 0.493), (System.COMM, 0.999)):
        yield claim_row(
            f"LoRA, {system}: less between nodes than ZeRO-3", "V-E, R8", f"{reduction:.1%}",
            Number(reduction, reduction), [1 - sum(crossing_gib(system)) / whole], Unit.SHARE, inputs=INPUTS,
        )  # fmt: skip


def peak_gb_per_s(cell: Cell) -> float:
    """The most that leaves a node in any second."""
    report = report_of(cell)
    num_windows = max(1, int(report.iteration_s / WINDOW_S))
    edges = [report.iteration_s * number / num_windows for number in range(num_windows + 1)]
    return max(rate_over_time(report, edges)) / cell.num_nodes / 1e9


def _peaks() -> Iterator[ClaimRow]:
    peaks = {system: peak_gb_per_s(cell_of(system)) for system in (System.ZERO3, System.SCHED, System.COMM)}
    yield claim_row(
        "LoRA, RDMA: peak that leaves a node within a second, ZeRO-3 and FCDP-Comm", "V-E, Fig. 10", "FCDP lower",
        Order(peaks[System.COMM] < peaks[System.ZERO3]), [peaks[System.COMM], peaks[System.ZERO3]], Unit.GB_PER_S,
        inputs=("network", *INPUTS),
    )  # fmt: skip
    sched = report_of(cell_of(System.SCHED)).crossing_nbytes("backward gather")
    yield claim_row(
        "LoRA: bytes of backward's gathers between nodes, FCDP-Sched", "V-E, Fig. 10", "none", Order(sched == 0),
        [sched], Unit.COUNT, inputs=INPUTS,
    )  # fmt: skip


def draw(folder: Path) -> None:
    """Bytes by pass, and peaks."""
    bars = [
        Bar(str(system), dict(zip(("forward", "backward"), crossing_gib(system), strict=True))) for system in STATED
    ]
    peaks = [Bar(str(system), {"peak within a second, GB/s": peak_gb_per_s(cell_of(system))}) for system in STATED]
    panels = [Panel("Table VII: GiB between nodes, LoRA, GPT-30B, 2 nodes", bars), Panel("Fig. 10: RDMA", peaks)]
    draw_bars(panels, ylabel="GiB; GB/s", path=folder / "fig10.png")


if __name__ == "__main__":
    main(rows, draw, __doc__, title=TITLE)
