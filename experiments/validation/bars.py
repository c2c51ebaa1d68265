"""Groups of bars and curves, as the paper draws its results; matplotlib is imported when something is drawn.

What the paper's text states is drawn in black: a diamond on the bar that it speaks of, a line, or a grey band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coarse.protocol.units import KIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MANY_BARS = 8
COLORS = ("#4c78a8", "#f58518", "#72b7b2", "#e45756")


@dataclass(frozen=True)
class Bar:
    """Values that stand side by side, by the name of their series."""

    label: str
    values: Mapping[str, float]
    stated: Mapping[str, float] = field(default_factory=dict)
    """What the paper states of some of them."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What the paper's text states of a whole panel."""

    text: str
    low: float
    high: float | None = None
    """None for a line at `low`, else a band."""
    is_size: bool = False
    """Along the axis of sizes."""


@dataclass(frozen=True)
class Panel:
    """One set of axes of bars."""

    title: str
    bars: Sequence[Bar]
    stated: Sequence[Stated] = ()


@dataclass(frozen=True)
class Plot:
    """One set of axes of curves: name -> (bytes, value)."""

    title: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    stated: Sequence[Stated] = ()


def draw_bars(panels: Sequence[Panel], *, ylabel: str, path: Path) -> None:
    """One panel under the other, each bar with its value."""
    figure = new_figure(height=3.2 * len(panels))
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        names = list(dict.fromkeys(name for bar in panel.bars for name in bar.values))
        width = 0.8 / len(names)
        for number, (name, color) in enumerate(zip(names, COLORS, strict=False)):
            _draw_series(axes, panel.bars, name, left=(number - (len(names) - 1) / 2) * width, width=width, color=color)
        axes.set_xticks(range(len(panel.bars)), [bar.label for bar in panel.bars], fontsize="x-small")
        axes.set_title(f"{panel.title} (simulated)", loc="left", fontsize="medium")
        axes.set_ylabel(ylabel)
        axes.margins(y=0.15)
        _finish(axes, panel.stated)
    save(figure, path)


def _draw_series(axes: Axes, bars: Sequence[Bar], name: str, *, left: float, width: float, color: str) -> None:
    places = [(number + left, bar) for number, bar in enumerate(bars) if name in bar.values]
    drawn = axes.bar([x for x, _ in places], [bar.values[name] for _, bar in places], width, label=name, color=color)
    digits = 3 if len(bars) <= _MANY_BARS else 2
    axes.bar_label(drawn, fmt=f"%.{digits}g", fontsize="x-small", padding=5)
    marks = [(x, bar.stated[name]) for x, bar in places if name in bar.stated]
    if marks:
        axes.plot([x for x, _ in marks], [y for _, y in marks], "kD", markersize=5, label=f"the paper's {name}")


def draw_curves(plots: Sequence[Plot], *, xlabel: str, ylabel: str, path: Path) -> None:
    """Panels of named curves over sizes on a logarithmic axis."""
    figure = new_figure(height=3.2 * len(plots))
    for axes, plot in zip(figure.subplots(len(plots), 1, squeeze=False)[:, 0], plots, strict=True):
        sizes = sorted({x for points in plot.curves.values() for x, _ in points})
        for name, points in plot.curves.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker=".", label=name)
        axes.set_title(f"{plot.title} (simulated)", loc="left", fontsize="medium")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_ylim(0, 1.1 * max(y for points in plot.curves.values() for _, y in points))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [size_text(nbytes) for nbytes in sizes], fontsize="x-small")
        _finish(axes, plot.stated)
    save(figure, path)


def size_text(nbytes: float) -> str:
    """A size as an axis shows it."""
    return f"{nbytes / MIB:g} MiB" if nbytes >= MIB else f"{nbytes / KIB:g} KiB"


def _finish(axes: Axes, stated: Sequence[Stated]) -> None:
    for one in stated:
        line, band = (axes.axvline, axes.axvspan) if one.is_size else (axes.axhline, axes.axhspan)
        if one.high is None:
            line(one.low, label=one.text, color="black", linestyle="--", linewidth=1)
        else:
            band(one.low, one.high, label=one.text, color="black", alpha=0.15, linewidth=0)
    axes.legend(fontsize="x-small", ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def new_figure(*, height: float) -> Figure:
    """An empty figure of the usual width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(10, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=120)
