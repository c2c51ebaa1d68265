"""The steps of runs as a trace that Perfetto opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from coarse.protocol.trace import Trace, merge
from experiments.comparison import Document
from experiments.figures import PHASES
from experiments.gpt.rows import run_path

STEPS_LANE, PHASES_LANE = 0, 1


def step_trace(document: Document, worker: int, name: str) -> Trace:
    """One worker's steps, their phases below them, and its loss as a curve."""
    trace = Trace(worker, name)
    trace.lane(STEPS_LANE, "step")
    trace.lane(PHASES_LANE, "phase")
    for row in document["steps"]:
        begin_s = row["begin_s"]
        trace.span(f"step {row['step'] + 1}", "step", begin_s, begin_s + row["step_s"], lane=STEPS_LANE)
        trace.counter("loss", begin_s + row["step_s"], loss=row["loss"])
        for phase in PHASES:
            end_s = begin_s + row[f"{phase}_s"]
            trace.span(phase, "phase", begin_s, end_s, lane=PHASES_LANE)
            begin_s = end_s
    return trace


def write_traces(runs: Mapping[str, Sequence[Document]], folder: Path, path: Path) -> None:
    """All workers of all runs in one file; each run begins at 0. Single traces stay in `folder`, named by mode."""
    merged = []
    for name, documents in runs.items():
        parts = []
        for worker, document in enumerate(documents):
            parts.append(run_path(folder, document["summary"]["mode"], worker).with_suffix(".trace.json"))
            step_trace(document, worker, f"{name}, worker {worker}").write(parts[-1])
        merged.append(folder / f"{documents[0]['summary']['mode']}.trace.json")
        merge(parts, merged[-1])
    merge(merged, path)
