"""How much each open choice of inputs.py matters: the key results of figures 16 and 17 with one choice changed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from coarse.simulation.scenario import Mode
from experiments.coarse_paper.cells import Cell, outcome
from experiments.coarse_paper.inputs import CENTRAL, Inputs, Platform
from experiments.coarse_paper.settings import allreduce, blocked_ratio, dense, speedup

VARIATIONS: dict[str, Inputs] = {
    "as declared": CENTRAL,
    "fp32 everywhere": replace(CENTRAL, mixed_precision=False),
    "workers' ring overlaps backward": replace(CENTRAL, ring_blocks_compute=False),
    "device ring on CCI links": replace(CENTRAL, device_ring="cci"),
    "sharers cost nothing": replace(CENTRAL, sharer_growth=0.0),
    "sharers take turns (growth 100 %)": replace(CENTRAL, sharer_growth=1.0),
    "loads 9x slower than direct, not 17x": replace(CENTRAL, load_slowdown=9.0),
    "DENSE stores after backward": replace(CENTRAL, dense_overlaps=False),
}
_RESNET = Cell(platform=Platform.T4, model="resnet50", batch=64)
_T4 = Cell(platform=Platform.T4)
_P100 = Cell(platform=Platform.P100)
_V100 = Cell(platform=Platform.V100)


@dataclass(frozen=True)
class Quantity:
    """A key result: policy auto, two workers, NVLink on."""

    name: str
    paper: str
    cell: Cell
    value: Callable[[Cell], str]


def _gain(cell: Cell) -> str:
    return f"{speedup(cell):.2f}x"


def _blocked(cell: Cell) -> str:
    return f"{blocked_ratio(cell) - 1:+.0%}"


def _larger_batch(cell: Cell) -> str:
    return f"{outcome(replace(cell, batch=4)).samples_per_s / allreduce(cell).samples_per_s - 1:+.0%}"


def _most(cell: Cell) -> str:
    return f"{dense(cell).iteration_s / dense(cell).compute_s:.1f}x"


QUANTITIES = (
    Quantity("16a T4 ResNet-50", "3.3x", _RESNET, _gain),
    Quantity("16b T4 BERT", "11.3x", _T4, _gain),
    Quantity("the most 16b can be", "-", _T4, _most),
    Quantity("16c P100 BERT", "3.4x", _P100, _gain),
    Quantity("16d V100 BERT", "10.8x to 13.8x", _V100, _gain),
    Quantity("16e batch 4 over 2", "+48.3 % (4 workers)", _V100, _larger_batch),
    Quantity("17b T4", "+18 % to +20 %", _T4, _blocked),
    Quantity("17c P100", "-28 %", _P100, _blocked),
    Quantity("17d V100", "-20 % to -42 %", _V100, _blocked),
)


def cells() -> Iterator[Cell]:
    """All that the table simulates."""
    for inputs in VARIATIONS.values():
        for quantity in QUANTITIES:
            cell = replace(quantity.cell, inputs=inputs)
            yield from (cell, cell.baseline(Mode.ALLREDUCE), cell.baseline(Mode.DENSE))
        yield replace(_V100, batch=4, inputs=inputs)


def table() -> list[list[str]]:
    """A header, the paper's values, and a line per variation."""
    lines = [["input", *(quantity.name for quantity in QUANTITIES)], ["paper", *(q.paper for q in QUANTITIES)]]
    for name, inputs in VARIATIONS.items():
        lines.append([name, *(q.value(replace(q.cell, inputs=inputs)) for q in QUANTITIES)])
    return lines
