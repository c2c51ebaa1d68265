"""Pictures of a run: comparison bars, the iteration's timeline, and links over time."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from coarse.cli.report.run import Picture, Run
from coarse.cli.report.timeline import MOVES, PHASES, LinkUse, Row, Timeline

COLOURS = {
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "compute": "#0072b2",
    "idle": "#d3d3d3",
    "wait": "#d55e00",
    "exposed": "#d55e00",
    "optimizer": "#cc79a7",
    "push": "#e69f00",
    "fetch": "#7a4b00",
    "ring": "#009e73",
    "pull": "#cc79a7",
    "add": "#000000",
    "together": "#009e73",
    "load": "#f0e442",
    "store": "#8c8c3a",
}
"""Palette of Okabe and Ito, which people with any kind of colour vision can tell apart, plus a grey and a brown."""
LABELS = {
    "idle": "idle (slower workers)",
    "wait": "wait for the result",
    "exposed": "exposed communication",
    "ring": "ring (sync cores or workers)",
    "fetch": "fetch (sync core)",
    "add": "add (sync core)",
    "together": "together (groups of workers)",
    "load": "load (device memory)",
    "store": "store (device memory)",
}
MS_PER_S = 1e3
GB = 1e9
DPI = 120
_LINE = 150
"""Letters in a line of a panel's title."""
_MAX_NAMED = 3
"""Links beside the drawn one that a panel's title names."""
_TEXT_INCHES = 0.075
"""Largest inches of a letter in a bar's text."""
_BARS_INCHES = 7.2
"""Smallest width of the bars' axes."""
_ROW_PIXELS = 1000
"""Smallest number of pixels in a timeline's row. A shorter span is drawn one pixel long, or some would be invisible."""

_ENDPOINT = re.compile(r"\b(?:node\d+ )?(?:gpu|memory)\d+\b")
"""Name of a GPU or a memory device within names of links and places."""

_BARS = (
    "An iteration of each mode, mean over workers: forward and backward, waiting for slower workers, and communication "
    "that nothing hides. Beside each bar stands how much faster the mode is than {first}."
)
_ROWS = "Each worker's phases, one after the other."
_MOVES_BELOW = " Below them stands what it sends or takes, and then what memory devices do at the same time."
_LINKS = (
    "Of each kind of link the one that uses most of its capacity, the busiest kind first. The dashed line is the "
    "capacity. A transfer's bytes are spread evenly over its time, so a rate may seem to be a little above it."
)


def draw_run(run: Run, folder: Path) -> list[Picture]:
    """Draw all pictures of a run; one timeline, and one of links, for each mode."""
    first = run.results[0].name
    drawn = [Picture(_save(comparison(run), folder / "comparison.png"), None, _BARS.format(first=first))]
    for timeline in run.timelines:
        drawn += _mode_pictures(run, timeline, folder)
    return drawn


def _mode_pictures(run: Run, timeline: Timeline, folder: Path) -> Iterator[Picture]:
    name = file_stem(timeline.title)
    path = _save(timeline_figure(run, timeline), folder / f"timeline-{name}.png")
    yield Picture(path, timeline.title, _ROWS + (_MOVES_BELOW if timeline.links else ""))
    if timeline.links:
        path = _save(links_figure(run, timeline), folder / f"bandwidth-{name}.png")
        yield Picture(path, timeline.title, _LINKS)


def file_stem(title: str) -> str:
    """Return the part of a file name that stands for a title."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in title.lower()).split())


def comparison(run: Run) -> Figure:
    """Draw a bar per mode with the parts of its iteration, and beside it its speed-up over the first."""
    figure = Figure(figsize=(9, 1.7 + 0.5 * len(run.results)), layout="constrained")
    axes = figure.subplots()
    most_ms = 0.0
    for place, (result, speed_up) in enumerate(zip(run.results, run.speed_ups(), strict=True)):
        parts = {"compute": (result.compute_s, COLOURS["forward"]), "idle": (result.idle_s, COLOURS["idle"]),
                 "exposed": (result.exposed_s, COLOURS["exposed"])}  # fmt: skip
        left_ms = 0.0
        for seconds, colour in parts.values():
            axes.barh(place, seconds * MS_PER_S, left=left_ms, height=0.65, color=colour)
            left_ms += seconds * MS_PER_S
        if (range_s := run.range_s(result)) is not None:
            ends_ms = [end * MS_PER_S for end in range_s]
            axes.plot(ends_ms, [place, place], color="black", marker="|", markersize=9, linewidth=1.0)
            left_ms = max(left_ms, ends_ms[1])
        ratio = f", {speed_up:.2f}x the speed of {run.results[0].name}" if place else ""
        text = f" {result.iteration_s * MS_PER_S:.4g} ms{ratio}"
        axes.text(left_ms, place, text, va="center", fontsize="small")
        most_ms = max(most_ms, left_ms / (1 - min(0.8, len(text) * _TEXT_INCHES / _BARS_INCHES)))
    _name_rows(axes, [result.name for result in run.results])
    axes.set_xlim(0, most_ms or 1.0)
    axes.set(xlabel="ms")
    _title(figure, run, "an iteration, mean over workers")
    labels = {"compute": COLOURS["forward"], LABELS["idle"]: COLOURS["idle"], LABELS["exposed"]: COLOURS["exposed"]}
    handles = [Patch(color=colour, label=label) for label, colour in labels.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def timeline_figure(run: Run, timeline: Timeline) -> Figure:
    """Draw rows of spans: workers' phases, their pushes and pulls, and the devices' work."""
    figure = Figure(figsize=(11, 1.9 + 0.26 * len(timeline.rows)), layout="constrained")
    axes = figure.subplots()
    duration_ms = timeline.duration_s * MS_PER_S or 1.0
    least_ms = duration_ms / _ROW_PIXELS
    for place, row in enumerate(timeline.rows):
        height = 0.85 if all(span.kind in PHASES for span in row.spans) else 0.6
        for span_kind in dict.fromkeys(span.kind for span in row.spans):
            parts = [(b * MS_PER_S, max(least_ms, (e - b) * MS_PER_S)) for k, b, e in row.spans if k == span_kind]
            axes.broken_barh(parts, (place - height / 2, height), color=COLOURS.get(span_kind, "black"), linewidth=0)
    places = dict(timeline.places)
    _name_rows(axes, [_row_name(row, places) for row in timeline.rows])
    is_widened = any((span.end_s - span.begin_s) * MS_PER_S < least_ms for row in timeline.rows for span in row.spans)
    note = f"; what is shorter than 1/{_ROW_PIXELS} of the time is drawn that long" if is_widened else ""
    axes.set(xlabel=f"ms{note}", xlim=(0, duration_ms))
    _title(figure, run, f"mode {timeline.title}, {_what_is_shown(timeline)}")
    figure.legend(handles=list(_legend(timeline)), loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure


def links_figure(run: Run, timeline: Timeline) -> Figure:
    """Draw a link of each kind, the busiest first, each with its rate over time below its capacity."""
    num_links = len(timeline.links)
    figure = Figure(figsize=(11, 1.6 + 1.15 * num_links), layout="constrained")
    all_axes = figure.subplots(num_links, 1, sharex=True, squeeze=False)[:, 0]
    duration_ms = timeline.duration_s * MS_PER_S or 1.0
    for axes, use in zip(all_axes, timeline.links, strict=True):
        num_bins = len(use.bytes_per_s)
        edges = [number * duration_ms / num_bins for number in range(num_bins + 1)]
        axes.stairs([rate / GB for rate in use.bytes_per_s], edges, fill=True, color=COLOURS["forward"])
        at_ms = [*(each.from_s * MS_PER_S for each in use.capacity), duration_ms]
        most = [each.bytes_per_s / GB for each in use.capacity]
        axes.step(at_ms, [*most, most[-1]], where="post", color=COLOURS["exposed"], linewidth=1.2, linestyle="--")
        axes.set_ylim(0, 1.18 * max(*most, *(rate / GB for rate in use.bytes_per_s)))
        axes.set_xlim(0, duration_ms)
        axes.set_title(_panel_title(use, timeline), loc="left", fontsize="small", pad=3)
        axes.tick_params(labelsize="small")
        axes.grid(alpha=0.3)
    all_axes[-1].set_xlabel("ms")
    figure.supylabel("GB/s", fontsize="small")
    _title(figure, run, f"mode {timeline.title}, {_which_iteration(timeline)}: the busiest link of each kind")
    handles = [
        Patch(color=COLOURS["forward"], label=f"rate, mean over 1/{len(timeline.links[0].bytes_per_s)} of the time"),
        Line2D([], [], color=COLOURS["exposed"], linewidth=1.2, linestyle="--", label="capacity of the link"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure


def _title(figure: Figure, run: Run, what: str) -> None:
    """Set a title: the job and its machine, then the content and the kind of its numbers."""
    figure.suptitle(f"{run.title}\n{what} ({run.kind})", x=0.01, ha="left", fontsize="medium")


def _what_is_shown(timeline: Timeline) -> str:
    """Return which iteration is shown, and of how many ranks if some have no row."""
    placed = [who for who, _ in timeline.places]
    shown = {" ".join(row.name.split()[:2]) for row in timeline.rows}
    texts = []
    for role, plural in (("worker", "workers"), ("device", "memory devices")):
        num_placed = sum(who.startswith(role) for who in placed)
        num_shown = sum(who.startswith(role) for who in shown)
        if num_shown < num_placed:
            texts.append(f"{num_shown} of {num_placed} {plural}")
    return ": ".join((_which_iteration(timeline), *([" and ".join(texts)] if texts else [])))


def _which_iteration(timeline: Timeline) -> str:
    """Return which iteration is shown.

    A simulated timeline has one iteration; a live one, which has no places, several.
    """
    return "the last iteration" if timeline.places else "some iterations"


def _row_name(row: Row, places: Mapping[str, str]) -> str:
    """Return a row's name with the part of the machine that plays its role."""
    who = " ".join(row.name.split()[:2])
    return row.name.replace(who, f"{who} ({places[who]})", 1) if who in places else row.name


def _panel_title(use: LinkUse, timeline: Timeline) -> str:
    """Return a link's name and kind, its traffic, and its share of the capacity."""
    capacity = ", then ".join(f"{each.bytes_per_s / GB:.3g}" for each in use.capacity)
    share = f"{use.nbytes / GB:.3g} GB, {use.share(timeline.duration_s):.0%} of what {capacity} GB/s would carry"
    what = "NVLink " if use.kind.startswith("NVLink") else ""
    text = f"{what}{_with_players(use.name, timeline)}: {', '.join(use.carries)}; {share}"
    if not use.others:
        return text
    rest = f"also in use: {', '.join(_with_players(name, timeline) for name in use.others)}"
    if len(use.others) > _MAX_NAMED:
        rest = f"busiest of {len(use.others) + 1} of its kind ({use.kind})"
    return f"{text}; {rest}" if len(text) + len(rest) < _LINE else f"{text}\n{rest}"


def _with_players(link: str, timeline: Timeline) -> str:
    """Return the name of a link, with the ranks at the GPUs and memories that it names."""
    players = {where: who for who, where in timeline.places}

    def with_player(found: re.Match[str]) -> str:
        return f"{found[0]} ({players[found[0]]})" if found[0] in players else found[0]

    return _ENDPOINT.sub(with_player, link)


def _legend(timeline: Timeline) -> Iterator[Patch]:
    """Return the kinds of spans in the rows, in the order of an iteration."""
    kinds = {span.kind for row in timeline.rows for span in row.spans}
    return (Patch(color=COLOURS[kind], label=LABELS.get(kind, kind)) for kind in (*PHASES, *MOVES) if kind in kinds)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label rows from top to bottom, with a grid of times behind."""
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=DPI)
    return path
