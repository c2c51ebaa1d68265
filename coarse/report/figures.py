"""Pictures of a run: comparison bars, the iteration's timeline, and links over time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from coarse.report.run import Run
from coarse.report.timeline import MOVES, PHASES, Timeline

COLOURS = {
    "forward": "#4c78a8",
    "backward": "#72b7b2",
    "idle": "#d3d3d3",
    "wait": "#e45756",
    "exposed": "#e45756",
    "optimizer": "#b0a3c4",
    "push": "#f58518",
    "fetch": "#9d755d",
    "ring": "#54a24b",
    "pull": "#b279a2",
    "add": "#eeca3b",
}
LABELS = {
    "idle": "idle (slower workers)",
    "wait": "wait for the result",
    "exposed": "exposed communication",
    "ring": "ring (sync cores or workers)",
    "fetch": "fetch (sync core)",
    "add": "add (sync core)",
}
MS_PER_S = 1e3
GB = 1e9
DPI = 120


def draw_run(run: Run, folder: Path) -> list[Path]:
    """All pictures of a run; one timeline, and one of links, for each mode."""
    drawn = [_save(comparison(run), folder / "comparison.png")]
    for timeline in run.timelines:
        name = file_stem(timeline.title)
        drawn.append(_save(timeline_figure(timeline, run.kind), folder / f"timeline-{name}.png"))
        if timeline.links:
            drawn.append(_save(links_figure(timeline, run.kind), folder / f"bandwidth-{name}.png"))
    return drawn


def file_stem(title: str) -> str:
    """The part of a file name that stands for a title."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in title.lower()).split())


def comparison(run: Run) -> Figure:
    """A bar per mode, of what its iteration is spent on; the speed-up over the first beside it."""
    figure = Figure(figsize=(9, 1.5 + 0.5 * len(run.results)), layout="constrained")
    axes = figure.subplots()
    for place, (result, speed_up) in enumerate(zip(run.results, run.speed_ups(), strict=True)):
        parts = {"compute": (result.compute_s, COLOURS["forward"]), "idle": (result.idle_s, COLOURS["idle"]),
                 "exposed": (result.exposed_s, COLOURS["exposed"])}  # fmt: skip
        left_ms = 0.0
        for seconds, colour in parts.values():
            axes.barh(place, seconds * MS_PER_S, left=left_ms, height=0.65, color=colour)
            left_ms += seconds * MS_PER_S
        text = f" {result.iteration_s * MS_PER_S:.4g} ms" + (f", {speed_up:.2f}x" if place else "")
        axes.text(left_ms, place, text, va="center", fontsize="small")
    _name_rows(axes, [result.name for result in run.results])
    axes.set_xlim(0, 1.22 * max(result.iteration_s for result in run.results) * MS_PER_S or 1.0)
    axes.set(xlabel="ms")
    axes.set_title(f"An iteration, mean over workers ({run.kind})", loc="left", fontsize="medium")
    labels = {"compute": COLOURS["forward"], LABELS["idle"]: COLOURS["idle"], LABELS["exposed"]: COLOURS["exposed"]}
    handles = [Patch(color=colour, label=label) for label, colour in labels.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def timeline_figure(timeline: Timeline, kind: str) -> Figure:
    """Rows of spans: workers' phases, what they push and pull, and what devices do."""
    figure = Figure(figsize=(11, 1.6 + 0.26 * len(timeline.rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(timeline.rows):
        height = 0.85 if all(span.kind in PHASES for span in row.spans) else 0.6
        for span_kind in dict.fromkeys(span.kind for span in row.spans):
            parts = [(b * MS_PER_S, (e - b) * MS_PER_S) for k, b, e in row.spans if k == span_kind]
            axes.broken_barh(parts, (place - height / 2, height), color=COLOURS.get(span_kind, "black"), linewidth=0)
    _name_rows(axes, [row.name for row in timeline.rows])
    axes.set(xlabel="ms", xlim=(0, timeline.duration_s * MS_PER_S or 1.0))
    axes.set_title(f"{timeline.title}: timeline ({kind})", loc="left", fontsize="medium")
    figure.legend(handles=list(_legend(timeline)), loc="outside lower center", ncols=6, frameon=False, fontsize="small")
    return figure


def links_figure(timeline: Timeline, kind: str) -> Figure:
    """The busiest links, each with its rate over time below its capacity."""
    num_links = len(timeline.links)
    figure = Figure(figsize=(11, 1.0 + 0.95 * num_links), layout="constrained")
    all_axes = figure.subplots(num_links, 1, sharex=True, squeeze=False)[:, 0]
    for axes, use in zip(all_axes, timeline.links, strict=True):
        bin_ms = timeline.duration_s * MS_PER_S / len(use.bytes_per_s)
        edges = [number * bin_ms for number in range(len(use.bytes_per_s) + 1)]
        axes.stairs([rate / GB for rate in use.bytes_per_s], edges, fill=True, color=COLOURS["forward"])
        top = max(use.bytes_per_s) / GB
        capacity = use.capacity_bytes_per_s / GB
        axes.axhline(capacity, color=COLOURS["exposed"], linewidth=1, linestyle="--")
        axes.set_ylim(0, 1.15 * min(max(top, 1e-9) * 4, max(capacity, top)))
        axes.set_xlim(0, edges[-1] or 1.0)
        title = f"{use.name}: {use.nbytes / GB:.3g} GB, capacity {capacity:.3g} GB/s"
        axes.set_title(title, loc="left", fontsize="small", pad=2)
        axes.grid(alpha=0.3)
    all_axes[-1].set_xlabel("ms")
    figure.supylabel("GB/s", fontsize="small")
    figure.suptitle(f"{timeline.title}: links over time ({kind})", x=0.01, ha="left", fontsize="medium")
    return figure


def _legend(timeline: Timeline) -> Iterator[Patch]:
    """The kinds of spans that the rows have, in the order of an iteration."""
    kinds = {span.kind for row in timeline.rows for span in row.spans}
    return (Patch(color=COLOURS[kind], label=LABELS.get(kind, kind)) for kind in (*PHASES, *MOVES) if kind in kinds)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """From top to bottom, with a grid of times behind."""
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=DPI)
    return path
