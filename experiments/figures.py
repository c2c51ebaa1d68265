"""The demo's pictures: losses of several runs, and what each spends its iterations on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.comparison import EARLY_STEPS, TOLERANCE, Document, losses_of, relative_differences

PHASES = {
    "forward": "#4c78a8",
    "backward": "#72b7b2",
    "wait": "#e45756",
    "optimizer": "#b0a3c4",
}
"""The phases of a step in their order, and their colours."""

LINES = (
    {"color": "#999999", "linewidth": 5.0},
    {"color": "#f58518", "linewidth": 2.5, "linestyle": "--"},
    {"color": "#1f4e9c", "linewidth": 1.2},
)
"""Styles that stay visible where curves lie on one another."""

SHOWN_STEPS = 4
SMALLEST_DIFFERENCE = 1e-9
"""Where a logarithmic axis shows runs that are equal."""


def draw_losses(runs: Mapping[str, Document], reference: str, path: Path) -> None:
    """The losses of all runs above their relative differences to the run `reference`."""
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    loss_axes, difference_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    wanted = losses_of(runs[reference])
    for (name, document), line in zip(runs.items(), cycle(LINES), strict=False):
        losses = losses_of(document)
        steps = range(1, len(losses) + 1)
        loss_axes.plot(steps, losses, label=name, **line)
        if name != reference:
            differences = relative_differences(losses, wanted)
            shown = [max(difference, SMALLEST_DIFFERENCE) for difference in differences]
            difference_axes.plot(steps, shown, label=f"{name} against {reference}", **line)
    title = f"{subject_of(runs[reference])}\ntrained in {len(runs)} ways"
    loss_axes.set(ylabel="training loss (nats per byte)", title=title)
    loss_axes.legend(loc="upper right")
    _draw_tolerance(difference_axes)
    difference_axes.set(yscale="log", ylim=(SMALLEST_DIFFERENCE, 3e-2), xlabel="step", ylabel="relative difference")
    difference_axes.legend(loc="upper left", ncols=3, fontsize="small")
    for axes in (loss_axes, difference_axes):
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def subject_of(document: Document) -> str:
    """The model, the machine and the kind of a recorded run, for a title; no more than the record holds."""
    shape, machine = document.get("settings", {}).get("shape"), document.get("machine")
    model = f"GPT of {shape['layers']} layers of width {shape['width']}" if shape else "One model"
    where = f" on {machine['processor']}, {machine['num_cores']} cores" if machine else ""
    kind = document.get("kind")
    return f"{model}{where}" + (f" ({kind})" if kind else "")


def _draw_tolerance(axes: Axes) -> None:
    """The largest difference that is allowed, over the steps where it holds."""
    axes.hlines(TOLERANCE, 1, EARLY_STEPS, colors="#e45756", label=f"allowed in the first {EARLY_STEPS} steps")


def draw_timeline(runs: Mapping[str, Sequence[Document]], path: Path) -> None:
    """A few successive iterations of every worker, and the median iteration of every run, phase by phase.

    A bar reaches beyond its black line by the exposed communication of the table, or ends before it where that is
    negative.
    """
    num_lanes = sum(len(documents) for documents in runs.values())
    figure = Figure(figsize=(10, 2.6 + 0.42 * (num_lanes + len(runs))), layout="constrained")
    lanes_axes, median_axes = figure.subplots(2, 1, height_ratios=(num_lanes + 1, len(runs) + 1))
    steps = shown_steps([document for documents in runs.values() for document in documents])
    _draw_lanes(lanes_axes, runs, steps)
    _draw_medians(median_axes, runs)
    first = next(iter(runs.values()))[0]
    figure.suptitle(f"{subject_of(first)}: where the time goes")
    handles: list[Artist] = [Patch(color=color, label=phase) for phase, color in PHASES.items()]
    handles.append(Line2D([], [], color="black", linewidth=2, label="the same iteration without synchronisation"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    save_figure(figure, path)


def shown_steps(documents: Sequence[Document], count: int = SHOWN_STEPS) -> range:
    """Successive steps near the middle of the run, in none of which any worker was disturbed by a probe."""
    settled = [all(rows) for rows in zip(*([row["settled"] for row in d["steps"]] for d in documents), strict=True)]
    count = min(count, len(settled))
    firsts = [first for first in range(len(settled) - count + 1) if all(settled[first : first + count])]
    middle = (len(settled) - count) // 2
    first = min(firsts or [middle], key=lambda step: abs(step - middle))
    return range(first, first + count)


def _draw_lanes(axes: Axes, runs: Mapping[str, Sequence[Document]], steps: range) -> None:
    """A lane per worker; each run starts at 0."""
    labels: list[str] = []
    for name, documents in runs.items():
        begin_s = min(document["steps"][steps.start]["begin_s"] for document in documents)
        for worker, document in enumerate(documents):
            for step in steps:
                _draw_step(axes, len(labels), document["steps"][step], begin_s, has_gap=step != steps.start)
            labels.append(name if len(documents) == 1 else f"{name}, worker {worker}")
    _finish_lanes(axes, labels, f"Iterations {steps.start + 1} to {steps.stop}, a white gap between two")


def _draw_step(axes: Axes, lane: int, row: Mapping[str, Any], begin_s: float, *, has_gap: bool) -> None:
    """One iteration: its phases end to end, after a gap or none."""
    left_ms = (row["begin_s"] - begin_s) * 1e3
    if has_gap:
        axes.vlines(left_ms, lane - 0.35, lane + 0.35, colors="white", linewidth=1.8, zorder=3)
    for phase, color in PHASES.items():
        width_ms = row[f"{phase}_s"] * 1e3
        axes.barh(lane, width_ms, left=left_ms, height=0.7, color=color)
        left_ms += width_ms


def _draw_medians(axes: Axes, runs: Mapping[str, Sequence[Document]]) -> None:
    """The median iteration's phases, and where the same step without synchronisation ends."""
    for lane, documents in enumerate(runs.values()):
        left_ms = 0.0
        for phase, phase_s in median_phases_s(documents).items():
            axes.barh(lane, phase_s * 1e3, left=left_ms, height=0.6, color=PHASES[phase])
            left_ms += phase_s * 1e3
        alone_s = documents[0]["summary"]["unsynchronised_step_s"]
        if alone_s is not None:
            axes.vlines(alone_s * 1e3, lane - 0.45, lane + 0.45, colors="black", linewidth=2)
    _finish_lanes(axes, list(runs), "Median iteration")


def median_phases_s(documents: Sequence[Document]) -> dict[str, float]:
    """Seconds of each phase in the run's median step, which they fill.

    Medians of phases do not add up to the median of steps, so it is divided in their proportion.
    """
    medians = {phase: mean(_median_s(document, phase) for document in documents) for phase in PHASES}
    step_s = float(documents[0]["summary"]["step_s"])
    return {phase: step_s * median_s / sum(medians.values()) for phase, median_s in medians.items()}


def _median_s(document: Document, phase: str) -> float:
    """The median seconds of a phase over the steps that count."""
    settled = [row for row in document["steps"] if row["settled"]] or document["steps"]
    return median([float(row[f"{phase}_s"]) for row in settled])


def _finish_lanes(axes: Axes, labels: Sequence[str], title: str) -> None:
    """Name the lanes from top to bottom, and the axis."""
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("ms")
    axes.set_title(title, loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def save_figure(figure: Figure, path: Path) -> None:
    """The figure as a PNG, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=130)
