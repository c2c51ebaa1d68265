"""How much each open choice of inputs.py matters: the key results of figures 16 and 17 with one choice changed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from experiments.coarse_paper.cells import Cell, outcome
from experiments.coarse_paper.inputs import CENTRAL, Inputs, Platform
from experiments.coarse_paper.settings import allreduce, blocked_ratio, dense, speedup

VARIATIONS: dict[str, Inputs] = {
    "as declared": CENTRAL,
    "fp32 everywhere": replace(CENTRAL, mixed_precision=False),
    "workers' ring overlaps backward": replace(CENTRAL, hold_back=False),
    "workers' ring one way round": replace(CENTRAL, rings_both_ways=False),
    "all-reduce between GPUs of one switch": replace(CENTRAL, neighbours_reduce=True),
    "the profiler sees NVLink": replace(CENTRAL, profiler_sees_nvlink=True),
    "pushes and pulls over PCIe, NVLink on": replace(CENTRAL, copies_over_nvlink=False),
    "BERT by TensorFlow, container 20.06": replace(CENTRAL, bert_container="20.06"),
    "T4 with sixteen lanes": replace(CENTRAL, wide_t4=True, own_bus=False),
    "device ring on CCI links": replace(CENTRAL, device_ring="cci"),
    "V100 copies directly, 13 and 25 GB/s": replace(CENTRAL, direct_copies=True),
    "pushes after backward": replace(CENTRAL, push_overlap=0.0),
    "sharers cost nothing": replace(CENTRAL, sharer_growth=0.0),
    "sharers take turns (growth 100 %)": replace(CENTRAL, sharer_growth=1.0),
    "loads 9x slower than direct, not 17x": replace(CENTRAL, load_slowdown=9.0),
    "DENSE stores after backward": replace(CENTRAL, stores_overlap=False),
    "DENSE loads follow each sum": replace(CENTRAL, loads_wait=False),
}
_BEFORE = replace(CENTRAL, wide_t4=True, own_bus=False, copies_over_nvlink=False, sharer_growth=0.1)
PUT_RIGHT: dict[str, Inputs] = {
    "before": _BEFORE,
    "T4's ports have eight lanes (6.3 GB/s, not 9.93)": replace(_BEFORE, wide_t4=False),
    "DENSE copies at T4's own bus (6.3 GB/s, not 13)": replace(_BEFORE, own_bus=True),
    "pushes and pulls take NVLink": replace(_BEFORE, copies_over_nvlink=True),
    "a further sharer adds 20 %, not 10 %": replace(_BEFORE, sharer_growth=None),
    "all: as declared": CENTRAL,
}
"""Inputs that were otherwise, each put right alone."""
_RESNET = Cell(platform=Platform.T4, model="resnet50", batch=64, policy="paper")
_T4 = Cell(platform=Platform.T4, policy="paper")
_P100 = Cell(platform=Platform.P100, policy="paper")
_V100 = Cell(platform=Platform.V100, policy="paper")
_V100_AUTO = Cell(platform=Platform.V100, num_workers=4, policy="auto")


@dataclass(frozen=True)
class Quantity:
    """A key result, with NVLink on."""

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
    Quantity("16b T4 BERT, auto", "11.3x", replace(_T4, policy="auto"), _gain),
    Quantity("16b T4 BERT", "11.3x", _T4, _gain),
    Quantity("the most 16b can be", "-", _T4, _most),
    Quantity("16c P100 BERT", "3.4x", _P100, _gain),
    Quantity("16d V100 BERT", "10.8x to 13.8x", _V100, _gain),
    Quantity("16d, auto, 4 workers", "10.8x to 13.8x", _V100_AUTO, _gain),
    Quantity("16e, auto, 4 workers", "+48.3 %", _V100_AUTO, _larger_batch),
    Quantity("17b T4", "+18 % to +20 %", _T4, _blocked),
    Quantity("17c P100", "-28 %", _P100, _blocked),
    Quantity("17d V100", "-20 % to -42 %", _V100, _blocked),
    Quantity("17d, auto, 4 workers", "-20 % to -42 %", _V100_AUTO, _blocked),
)


def cells() -> Iterator[Cell]:
    """All that the table simulates."""
    for inputs in (*VARIATIONS.values(), *PUT_RIGHT.values()):
        for quantity in QUANTITIES:
            cell = replace(quantity.cell, inputs=inputs)
            yield from (cell, cell.baseline("allreduce"), cell.baseline("dense"))
        yield replace(_V100_AUTO, batch=4, inputs=inputs)


def table(variations: dict[str, Inputs] = VARIATIONS) -> list[list[str]]:
    """A header, the paper's values, and a line per variation."""
    lines = [["input", *(quantity.name for quantity in QUANTITIES)], ["paper", *(q.paper for q in QUANTITIES)]]
    for name, inputs in variations.items():
        lines.append([name, *(q.value(replace(q.cell, inputs=inputs)) for q in QUANTITIES)])
    return lines
