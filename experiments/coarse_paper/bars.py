"""Groups of bars and curves, as the paper draws its results; matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.coarse_paper.cells import Cell
from experiments.coarse_paper.settings import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#4c78a8", "#f58518", "#72b7b2", "#e45756")


@dataclass(frozen=True)
class Bar:
    """Values that stand side by side, by the name of their series."""

    label: str
    values: Mapping[str, float]


def bar_label(cell: Cell, setting: Setting) -> str:
    """Workers and devices, and how the cell was run."""
    return f"{cell.num_workers}+{cell.num_devices or cell.num_workers}, {setting.label.removeprefix('policy ')}"


def draw_bars(panels: Mapping[str, Sequence[Bar]], *, ylabel: str, path: Path) -> None:
    """One panel under the other."""
    figure = new_figure(height=3.0 * len(panels))
    for axes, (title, bars) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True):
        names = list(dict.fromkeys(name for bar in bars for name in bar.values))
        width = 0.8 / len(names)
        for number, (name, color) in enumerate(zip(names, COLORS, strict=False)):
            left = [position + (number - (len(names) - 1) / 2) * width for position in range(len(bars))]
            axes.bar(left, [bar.values[name] for bar in bars], width, label=name, color=color)
        axes.set_xticks(range(len(bars)), [bar.label for bar in bars], rotation=30, ha="right", fontsize="x-small")
        axes.set(title=f"{title} (simulated)", ylabel=ylabel)
        axes.margins(y=0.3)
        axes.legend(fontsize="small", ncols=len(names), loc="upper left")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    save(figure, path)


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], *, xlabel: str, ylabel: str, path: Path
) -> None:
    """Panels of named curves over a logarithmic axis."""
    figure = new_figure(height=3.0 * len(panels))
    for axes, (title, curves) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True):
        for name, points in curves.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker=".", label=name)
        axes.set(title=f"{title} (simulated)", xlabel=xlabel, ylabel=ylabel, xscale="log", ylim=(0, None))
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    save(figure, path)


def new_figure(*, height: float) -> Figure:
    """An empty figure of the usual width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(8, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=120)
