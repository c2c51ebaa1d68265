"""Trace of an optimizer node's reads, sums, updates and writes in time, to show which hide others."""

from pathlib import Path

from coarse.luwu.steps import StoreWork, WriteRecord
from coarse.luwu.store.instructions import (
    AddSum,
    Assign,
    ClearImage,
    Look,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Sync,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.luwu.store.layout import PagedModel
from coarse.protocol.trace import Span, Trace, in_lanes

STAGES = ("read parameters", "add gradients", "read states", "update", "write states", "commit")
_STAGE = {
    ReadPulled: 0, Look: 0, AddSum: 1, SquareSum: 1, ReadImage: 2, ReadSum: 2, Update: 3, Assign: 3, ClearImage: 3,
    WriteImage: 4, WriteSum: 4, Sync: 5,
}  # fmt: skip
_LANES_EACH = 100
"""Number of lanes of each stage, for spans that overlap."""


class Stages:
    """Collection of spans; `write` makes the file."""

    def __init__(self, node: int, model: PagedModel, folder: str) -> None:
        self._node = node
        self._model = model
        self._path = Path(folder) / f"node-{node}.trace.json"
        self._spans: list[list[Span]] = [[] for _ in STAGES]

    def add(self, work: StoreWork | WriteRecord, begin_s: float, end_s: float) -> None:
        """Add the span of some work that was done."""
        if isinstance(work, WriteRecord):
            self._spans[-1].append(Span(f"record of step {work.commit.step}", begin_s, end_s))
            return
        one = work.instruction
        stage = _STAGE[type(one)]
        name = STAGES[stage]
        if isinstance(one, Sync):
            name = f"sync for step {one.step}"
        elif (unit := getattr(one, "unit", None)) is not None:
            name = f"{self._model.units[unit].name or 'the root'}, chunk {getattr(one, 'chunk', 0)}"
        self._spans[stage].append(Span(name, begin_s, end_s))

    def write(self) -> None:
        """Write the trace.

        Raises:
            OSError: the file cannot be written.
        """
        trace = Trace(self._node, f"optimizer node {self._node}")
        for stage, spans in enumerate(self._spans):
            trace.lane(stage * _LANES_EACH, STAGES[stage])
            for lane, span in in_lanes(spans):
                trace.span(span.name, STAGES[stage], span.begin_s, span.end_s, lane=stage * _LANES_EACH + lane)
        trace.write(self._path)
