"""COARSE figure 16: training speed over DENSE (a-d) and over all-reduce (e, f).

    python -m experiments.coarse_paper.fig16_speedup --out results/fig16

Input: compute times, links, coherent rates (inputs.py). Outcome: every iteration's time, by simulating the clients'
and proxies' machines; which gradients go where, by the paper's formula and by our own policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from coarse.hardware.accelerator import Training, max_batch
from coarse.hardware.models import Precision, model_named
from coarse.protocol.units import GIB
from experiments.coarse_paper.cells import Cell, inputs_now, outcome
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.reasons import batch_why, why_ahead, why_behind, why_not
from experiments.coarse_paper.settings import (
    Setting,
    allreduce,
    bar_label,
    dense,
    settings,
    speed_ratio,
    speedup,
    with_baselines,
)
from experiments.validation.bars import Bar, Stated, draw_bars
from experiments.validation.bars import Panel as Axes
from experiments.validation.claims import TOLERANCE, ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

DENSE_INPUTS = ("compute", "precision", "coherent rates", "DENSE", "links")
RING_INPUTS = (
    "compute",
    "precision",
    "links",
    "blocking ring",
    "ring directions",
    "device ring",
    "NVLink",
    "formula's rates",
    "pushes",
    "placement",
)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One of 16a-c, which state one number for each number of workers."""

    letter: str
    base: Cell
    stated: dict[int, float]
    beats_allreduce: bool

    def cells(self, setting: Setting) -> list[Cell]:
        """One for each number of workers."""
        return [setting.applied(replace(self.base, num_workers=workers)) for workers in self.stated]


_RESNET = Cell(platform=Platform.T4, model="resnet50", batch=64)
PANELS = (
    Panel(letter="a", base=_RESNET, stated={2: 3.3, 4: 4.3}, beats_allreduce=False),
    Panel(letter="b", base=Cell(platform=Platform.T4), stated={2: 11.3, 4: 13.3}, beats_allreduce=False),
    Panel(letter="c", base=Cell(platform=Platform.P100), stated={2: 3.4}, beats_allreduce=True),
)
V100 = Cell(platform=Platform.V100)
V100_SIZES = ((2, 2), (2, 1), (4, 4), (4, 2))
"""(workers, devices) of 16d: 1:1 and 2:1."""
ONE_NODE = replace(V100, num_workers=4)
TWO_NODES = replace(V100, num_workers=8, num_nodes=2)


def v100_cells(setting: Setting) -> list[Cell]:
    """The set of 16d."""
    return [setting.applied(replace(V100, num_workers=w, num_devices=d)) for w, d in V100_SIZES]


def node_cells(setting: Setting) -> list[Cell]:
    """The set of 16e and f: one and two nodes, batch 2 and 4."""
    return [setting.applied(replace(base, batch=batch)) for base in (ONE_NODE, TWO_NODES) for batch in (2, 4)]


def cells() -> Iterator[Cell]:
    """All that the rows simulate."""
    for panel in PANELS:
        for setting in settings(panel.base.platform):
            for cell in panel.cells(setting):
                yield from with_baselines(cell)
    for setting in settings(Platform.V100):
        for cell in (*v100_cells(setting), *node_cells(setting)):
            yield from with_baselines(cell)


def rows() -> list[ClaimRow]:
    """Figure 16's claims."""
    found = [row for panel in PANELS for row in panel_rows(panel)]
    found += v100_rows()
    found += memory_rows()
    found += node_rows()
    return found


def panel_rows(panel: Panel) -> Iterator[ClaimRow]:
    """A speed-up over DENSE for each number of workers, and the order against all-reduce."""
    source = f"V-D, Fig. 16{panel.letter}"
    name = f"{panel.base.platform.name} {panel.base.model}"
    for setting in settings(panel.base.platform):
        members = panel.cells(setting)
        for cell, stated in zip(members, panel.stated.values(), strict=True):
            yield claim_row(
                f"{name}, {cell.num_workers} workers: COARSE over DENSE ({setting.label})",
                source,
                f"{stated}x",
                Number(stated, stated),
                [speedup(cell)],
                Unit.TIMES,
                inputs=DENSE_INPUTS,
                why=why_not(cell, stated),
            )
        yield against_allreduce(f"{name} ({setting.label})", source, members, wins=panel.beats_allreduce)


def v100_rows() -> Iterator[ClaimRow]:
    """16d states a range over a set."""
    for setting in settings(Platform.V100):
        members = v100_cells(setting)
        yield claim_row(
            f"V100 bert-large, 2 and 4 workers, 1:1 and 2:1: COARSE over DENSE ({setting.label})",
            "V-D, Fig. 16d",
            "10.8x to 13.8x",
            Number(10.8, 13.8, is_of_set=True),
            [speedup(cell) for cell in members],
            Unit.TIMES,
            inputs=DENSE_INPUTS,
            why=f"2 workers: {why_not(members[0], 10.8)}. 4 workers: {why_not(members[2], 13.8)}",
        )
        yield against_allreduce(f"V100 bert-large ({setting.label})", "V-D, Fig. 16d", members, wins=True)


def against_allreduce(name: str, source: str, members: list[Cell], *, wins: bool) -> ClaimRow:
    """Whether COARSE is faster than all-reduce, or slightly slower, as stated."""
    ratios = [speed_ratio(cell) for cell in members]
    holds = all(ratio > 1 for ratio in ratios) if wins else all(1 - TOLERANCE <= ratio < 1 for ratio in ratios)
    worst = members[ratios.index(min(ratios))]
    return claim_row(
        f"{name}: COARSE against all-reduce, speed",
        source,
        "beats it" if wins else "slightly lower",
        Order(holds),
        ratios,
        Unit.CHANGE,
        inputs=RING_INPUTS,
        why=why_behind(worst) if wins else why_ahead(members[0]),
    )


def memory_rows() -> Iterator[ClaimRow]:
    """The batch limits, an outcome of the memory account."""
    inputs = inputs_now()
    limits = memory_limits(inputs.precision(Platform.V100), round(inputs.v100_memory_gib))
    others = ", ".join(
        f"{memory_gib} GB in {precision} {first} and {second}"
        for precision in (Precision.FP32, Precision.FP16)
        for memory_gib in (16, 32)
        for first, second in [memory_limits(precision, memory_gib)]
    )
    yield claim_row(
        "V100 bert-large: largest batch with optimizer states on the GPU, and in devices",
        "V-D, Fig. 16e",
        "2 or 3, then 4 or more",
        Order(2 <= limits[0] < 4 <= limits[1]),
        limits,
        Unit.COUNT,
        inputs=("memory", "V100's memory", "precision"),
        why=f"batch 4 fits without memory devices too, but for fp32 on 16 GB ({others})",
    )


def memory_limits(precision: Precision, memory_gib: int) -> list[int]:
    """The largest batch of BERT-large with Adam: optimizer states on the GPU, and in memory devices."""
    model = model_named("bert-large")
    return [
        max_batch(Training(model=model, precision=precision, states_on_device=there), memory_gib * GIB)
        for there in (False, True)
    ]


def node_rows() -> Iterator[ClaimRow]:
    """16e and f: all-reduce of batch 2 is what COARSE is held against, in samples per second."""
    for setting in settings(Platform.V100):
        one2, one4, two2, two4 = node_cells(setting)
        one_ring, two_ring = (outcome(cell.baseline("allreduce")) for cell in (one2, two2))
        ratios = {
            cell: outcome(cell).samples_per_s / ring.samples_per_s
            for cell, ring in ((one2, one_ring), (one4, one_ring), (two2, two_ring), (two4, two_ring))
        }
        one_node_big = outcome(one4).samples_per_s / two_ring.samples_per_s
        why = batch_why(ratios[one2], ratios[one4], outcome(one2).compute_s, outcome(one4).compute_s)
        two_why = batch_why(ratios[two2], ratios[two4], outcome(two2).compute_s, outcome(two4).compute_s)
        nodes_why = (
            f"for 16 samples all-reduce on 2 nodes takes {two_ring.iteration_s:.3f} s ({two_ring.exposed_s:.3f} s "
            f"blocked), COARSE on 1 node {outcome(one4).iteration_s:.3f} s ({outcome(one4).exposed_s:.3f} s blocked)"
        )
        for claim, part, stated, ours, reason in (
            ("1 node, COARSE batch 4 over all-reduce batch 2", "e", 1.483, [ratios[one4]], why),
            ("2 nodes, COARSE over all-reduce, best batch", "f", 1.427, [max(ratios[two2], ratios[two4])], two_why),
            ("COARSE batch 4 on 1 node over all-reduce batch 2 on 2", "f", 1.386, [one_node_big], nodes_why),
        ):
            yield claim_row(
                f"V100 bert-large, {claim} ({setting.label})",
                f"V-D, Fig. 16{part}",
                f"{'up to ' if 'best' in claim else ''}{stated - 1:+.1%}",
                Number(stated, stated),
                ours,
                Unit.CHANGE,
                inputs=(*RING_INPUTS, "memory"),
                why=reason,
            )


def draw(folder: Path) -> None:
    """Bars of speed-up over DENSE (a-d), and of speed over all-reduce (e, f)."""
    panels: list[Axes] = []
    for panel in PANELS:
        title = f"16{panel.letter}: {panel.base.platform.name} {panel.base.model}"
        bars = [
            bar(cell, way, panel.stated[cell.num_workers])
            for way in settings(panel.base.platform)
            for cell in panel.cells(way)
        ]
        panels.append(Axes(title, bars))
    bars = [bar(cell, way) for way in settings(Platform.V100) for cell in v100_cells(way)]
    panels.append(Axes("16d: V100 bert-large", bars, [Stated(text="the paper's range of COARSE", low=10.8, high=13.8)]))
    draw_bars(panels, ylabel="speed-up over DENSE", path=folder / "fig16.png")
    draw_bars(list(node_panels()), ylabel="speed over all-reduce, batch 2", path=folder / "fig16_nodes.png")


def bar(cell: Cell, setting: Setting, stated: float | None = None) -> Bar:
    """COARSE and all-reduce side by side."""
    ring = dense(cell).iteration_s / allreduce(cell).iteration_s
    marks = {} if stated is None else {"COARSE": stated}
    return Bar(bar_label(cell, setting), {"all-reduce": ring, "COARSE": speedup(cell)}, marks)


def node_panels() -> Iterator[Axes]:
    """16e, whose batch the paper states, and f, where it states its best."""
    marks = {"COARSE(4)": 1.483}
    yield Axes("16e: V100 bert-large, 1 node", [_node_bar(way, 0, marks) for way in settings(Platform.V100)])
    stated = Stated(text="the paper: up to +42.7 %", low=1.427)
    yield Axes("16f: V100 bert-large, 2 nodes", [_node_bar(way, 2, {}) for way in settings(Platform.V100)], [stated])


def _node_bar(way: Setting, first: int, marks: dict[str, float]) -> Bar:
    small, large = node_cells(way)[first : first + 2]
    ring = allreduce(small).samples_per_s
    speeds = {f"COARSE({cell.batch})": outcome(cell).samples_per_s / ring for cell in (small, large)}
    return Bar(bar_label(small, way), speeds, marks)


if __name__ == "__main__":
    main(rows, draw, __doc__)
