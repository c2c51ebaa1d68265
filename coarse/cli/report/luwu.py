"""Answer of `coarse predict` for LuWu and its baselines: a row per mode, and the largest models."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coarse.cli.report.luwu_inputs import Input, inputs_of
from coarse.errors import CapacityError
from coarse.luwu.simulation.capacity import LargestModel, MemoryNeed
from coarse.luwu.simulation.scenario import ModeStep, PagedScenario
from coarse.protocol.units import GIB

HEAD = ("mode", "fits", "step s", "TFLOPS", "tokens/s", "slowest", "bound s", "idle", "out GB", "in GB")
"""Heads of the table's columns."""
PLACES = {
    "a GPU": "GPU", "a host": "host", "a worker's disks": "worker's disks",
    "the optimizer node's disks": "optimizer's disks",
}  # fmt: skip
"""Heads of the table of what fits, by place."""
ROWS, PICTURE = "luwu.json", "luwu.png"
_COLOURS = {
    "gpu": "#0072b2", "up": "#d55e00", "down": "#e69f00", "pcie out": "#f0e442", "pcie in": "#999933",
    "reads": "#009e73", "writes": "#56b4e9", "cpu": "#cc79a7", "node reads": "#7a4b00", "node writes": "#c49a6c",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LuwuRow:
    """Step of one mode."""

    mode: str
    needs: tuple[MemoryNeed, ...]
    """Needed memory, place by place."""
    step_s: float = 0.0
    """Seconds of a step; 0 if the mode does not fit."""
    flops_per_s: float = 0.0
    """FLOP/s of a worker, by the model's own operations."""
    tokens_per_s: float = 0.0
    """Tokens per second of all workers."""
    slowest: str = ""
    bound_s: float = 0.0
    idle_share: float = 0.0
    sent_bytes: float = 0.0
    """Bytes of a worker and step."""
    received_bytes: float = 0.0
    busy_s: dict[str, float] | None = None
    note: str = ""
    kind: str = "simulated"

    @property
    def cells(self) -> list[str]:
        """Cells of its row in the table."""
        if not self.step_s:
            return [self.mode, "no", *"--------"]
        volume = [f"{nbytes / 1e9:.4g}" for nbytes in (self.sent_bytes, self.received_bytes)]
        return [
            self.mode, "yes", f"{self.step_s:.4g}", f"{self.flops_per_s / 1e12:.4g}", f"{self.tokens_per_s:,.0f}",
            self.slowest, f"{self.bound_s:.4g}", f"{self.idle_share:.0%}", *volume,
        ]  # fmt: skip

    @property
    def places(self) -> list[str]:
        """Cells of the table of places: what each place must hold."""
        cells = {need.place: f"{_gib(need.nbytes)}{'' if need.is_met else ' !'}" for need in self.needs}
        return [self.mode, *(cells.get(place, "-") for place in PLACES)]


def predicted(scenario: PagedScenario, mode: str) -> LuwuRow:
    """Predict one mode; one that does not fit becomes an empty row with the reason."""
    needs = scenario.capacity.needs(mode, scenario.model, scenario.batch)
    try:
        scenario.require_fit(mode)
    except CapacityError as error:
        return LuwuRow(mode=mode, needs=needs, note=str(error))
    step: ModeStep = scenario.step(mode)
    tokens = scenario.training.tokens * scenario.num_workers
    return LuwuRow(
        mode=mode, needs=needs, step_s=step.step_s, flops_per_s=step.flops_per_s, slowest=step.slowest,
        tokens_per_s=tokens / step.step_s, bound_s=step.bound_s, idle_share=step.idle_share,
        sent_bytes=step.sent_bytes, received_bytes=step.received_bytes, busy_s=step.busy_s,
    )  # fmt: skip


def largest_models(scenario: PagedScenario, modes: Sequence[str]) -> Iterator[tuple[int, dict[str, LargestModel]]]:
    """Yield each mode's largest model for 1, 2, 4 and so on up to the scenario's number of workers."""
    counts = [1 << power for power in range(scenario.num_workers.bit_length())]
    for count in sorted({*counts, scenario.num_workers}):
        capacity = replace(scenario, num_workers=count).capacity
        yield count, {mode: capacity.limit(mode) for mode in modes}


def draw_steps(rows: Sequence[LuwuRow], title: str, path: Path) -> None:
    """Draw bars: each mode's step, and below it the busy time of each resource."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, so that help and other commands do without
    from matplotlib.figure import Figure

    from coarse.cli.report.figures import DPI

    shown = [row for row in rows if row.busy_s]
    figure = Figure(figsize=(8, 1.2 + 1.1 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    labelled: set[str] = set()
    for place, row in enumerate(shown):
        assert row.busy_s is not None
        axes.barh(place - 0.3, row.step_s, 0.28, color="#d3d3d3", label=None if labelled else "step")
        labelled.add("step")
        height = 0.55 / len(row.busy_s)
        for number, name in enumerate(name for name in _COLOURS if name in row.busy_s):
            label = None if name in labelled else f"{name} busy"
            labelled.add(name)
            at = place - 0.12 + (number + 0.5) * height
            axes.barh(at, row.busy_s[name], 0.9 * height, color=_COLOURS[name], label=label)
    axes.set_yticks(range(len(shown)), [row.mode for row in shown])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(f"{title}\na step and its resources, simulated", loc="left", fontsize=10)
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI)


def show_luwu(scenario: PagedScenario, modes: Sequence[str], out: Path, console: Console) -> None:
    """Print the tables and their basis; write rows, inputs and picture into the folder `out`."""
    rows = [predicted(scenario, mode) for mode in modes]
    largest = list(largest_models(scenario, modes))
    title = (
        f"{scenario.model_name}, micro-batch {scenario.batch} of {scenario.sequence} tokens, {scenario.num_workers} "
        f"workers of {scenario.machine.name}"
    )
    console.print(_table(f"{title}, simulated", HEAD, [row.cells for row in rows]))
    console.print(_places_table(rows))
    for row in rows:
        if row.note:
            console.print(row.note, highlight=False, markup=False)
    _show_largest(largest, modes, console)
    pace = f"{scenario.peak_share:.3g} of {scenario.machine.accelerator.name}'s fp16 peak"
    way = "comes while another is computed" if scenario.prefetch else "comes when the one before was computed"
    disk_share = scenario.baseline_cluster.disk_share
    rests = (
        f"Compute: {pace} (--peak-share). Baselines: a unit {way} (--prefetch); their disks attain {disk_share:.0%} of "
        f"their rate, calibrated on LuWu 2.1. {ROWS} has every input and its source; docs/luwu.md says what the "
        "paper's figures say."
    )
    console.print(rests, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    asked = {"command": shlex.join(["coarse", *sys.argv[1:]]), "title": title, "compute": pace, "baselines": way}
    text = json.dumps(document(rows, largest, asked, inputs_of(scenario)), indent=1)
    (out / ROWS).write_text(text + "\n", encoding="utf-8")
    if any(row.busy_s for row in rows):
        draw_steps(rows, title, out / PICTURE)
    else:
        (out / PICTURE).unlink(missing_ok=True)  # an earlier prediction's
    console.print(f"wrote {(out / ROWS).as_posix()}", highlight=False, markup=False, soft_wrap=True)


def _places_table(rows: Sequence[LuwuRow]) -> Table:
    """Return a table of what each place must hold, above its capacity; "!" marks more than that."""
    has = {need.place: _gib(need.capacity_bytes) for row in rows for need in row.needs}
    cells = [*(row.places for row in rows), ["there is", *(has.get(place, "-") for place in PLACES)]]
    return _table("What a place must hold, GiB (!: does not fit)", ("mode", *PLACES.values()), cells)


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:,.1f}" if nbytes < 100 * GIB else f"{nbytes / GIB:,.0f}"


def _show_largest(
    largest: Sequence[tuple[int, dict[str, LargestModel]]], modes: Sequence[str], console: Console
) -> None:
    """Print the answer to Fig. 10's question: the largest OPT, and beside it the most parameters."""
    cells = [[str(count), *(_limit_text(found[mode]) for mode in modes)] for count, found in largest]
    title = "The largest OPT, and the most parameters, at one sample a worker"
    console.print(_table(title, ("workers", *modes), cells))
    count, found = largest[-1]
    bound = "; ".join(f"{mode} by {limit.bound_by}" for mode, limit in found.items())
    console.print(f"Bound at {count} workers: {bound}.", highlight=False, markup=False)


def _limit_text(limit: LargestModel) -> str:
    """Return a limit such as "175b, 252B".

    OPT-175B is then the largest of its family, and a deeper model may have 252e9 parameters.
    """
    named = limit.named.removeprefix("opt-") or "none"
    unit, letter = (1e12, "T") if limit.num_parameters >= 1e12 else (1e9, "B")
    return f"{named}, {limit.num_parameters / unit:.3g}{letter}"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    return table


def document(
    rows: Sequence[LuwuRow],
    largest: Sequence[tuple[int, dict[str, LargestModel]]],
    asked: dict[str, str],
    inputs: Sequence[Input],
) -> dict[str, Any]:
    """Return the prediction as values for JSON."""
    models = [
        {"workers": count, "largest": {mode: asdict(limit) for mode, limit in found.items()}}
        for count, found in largest
    ]
    return {
        "kind": "simulated", "asked": asked, "inputs": [asdict(each) for each in inputs],
        "rows": [asdict(row) for row in rows], "largest_models": models,
    }  # fmt: skip
