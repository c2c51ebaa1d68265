"""Picture of a sweep: time or rate over the first varied number, a line per mode, marked crossings."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coarse.cli.report.figures import COLOURS, DPI, MS_PER_S
from coarse.cli.report.sweep.lines import Lines, Panel

MAX_PANELS = 12
_COLUMNS = 3
_STYLES = {
    "dense": (COLOURS["exposed"], "s", ":"),
    "allreduce": (COLOURS["forward"], "o", "--"),
    "coarse": (COLOURS["ring"], "^", "-"),
}
"""Colour, mark and dash of each mode; other modes are grey."""


def draw_lines(lines: Lines, title: str, path: Path) -> Path:
    """Write the picture; the title says if only the first MAX_PANELS panels are drawn."""
    panels = lines.panels[:MAX_PANELS]
    num_columns = min(_COLUMNS, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    width, height = (7.5, 4.6) if len(panels) == 1 else (4.2 * num_columns, 1.0 + 3.0 * num_rows)
    figure = Figure(figsize=(width, height), layout="constrained")
    all_axes = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False).flat
    for number, axes in enumerate(all_axes):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        _draw_panel(axes, lines, panels[number])
        if number + num_columns >= len(panels):
            axes.set_xlabel(lines.x_key)
            axes.tick_params(axis="x", labelbottom=True)
    left_out = f"; {MAX_PANELS} of {len(lines.panels)} combinations" if len(lines.panels) > MAX_PANELS else ""
    what = "an iteration, mean over workers" if lines.low_is_fast else "samples in a second, of all workers"
    figure.suptitle(f"{title}\n{what} (simulated){left_out}", x=0.01, ha="left", fontsize="medium")
    figure.supylabel("ms" if lines.low_is_fast else "samples/s", fontsize="medium")
    named = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes)
    handles = {label: handle for pairs in named for handle, label in pairs}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    FigureCanvasAgg(figure).print_figure(path, dpi=DPI)
    return path


def _draw_panel(axes: Axes, lines: Lines, panel: Panel) -> None:
    """Draw a panel; lines break where a point is impossible."""
    scale = MS_PER_S if lines.low_is_fast else 1.0
    for number, (name, line) in enumerate(zip(panel.names, panel.lines, strict=True)):
        colour, mark, dash = _STYLES.get(name, (COLOURS["idle"], "d", "-"))
        ys = [math.nan if y is None else scale * y for y in line]
        axes.plot(panel.xs, ys, color=colour, marker=mark, linestyle=dash, markersize=4, linewidth=1.4, label=name)
        if (band := panel.band(number)) is not None:
            low, high = ([math.nan if ends is None else scale * ends[end] for ends in band] for end in (0, 1))
            axes.fill_between(panel.xs, low, high, color=colour, alpha=0.15, linewidth=0)
    if lines.axes.log_x:
        axes.set_xscale("log")
    if lines.axes.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    for number, crossing in enumerate(lines.crossings(panel)):
        label = "crossing" if number == 0 else None
        axes.plot([crossing.x], [scale * crossing.y], "o", color="black", fillstyle="none", markersize=10, label=label,
                  linestyle="none")  # fmt: skip
        axes.annotate(f"{crossing.x:.4g}", (crossing.x, scale * crossing.y), (0, 9), textcoords="offset points",
                      ha="center", fontsize="small")  # fmt: skip
    axes.grid(alpha=0.3)
    axes.set_title(panel.title, fontsize="small", loc="left")
