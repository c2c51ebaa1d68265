"""The picture of the TensorFlow demo: one process beside workers with memory devices, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from experiments.comparison import Document, relative_differences
from experiments.figures import LINES, SMALLEST_DIFFERENCE, save_figure


def draw_comparison(runs: Mapping[str, Document], reference: str, tolerance: float, path: Path) -> None:
    """Losses and accuracies of both runs, and the relative differences of their losses to the run `reference`."""
    figure = Figure(figsize=(8, 7.2), layout="constrained")
    loss_axes, accuracy_axes, difference_axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    wanted = runs[reference]["history"]["loss"]
    epochs = range(1, len(wanted) + 1)
    for (name, document), line in zip(runs.items(), (LINES[0], LINES[2]), strict=True):
        history = document["history"]
        loss_axes.plot(epochs, history["loss"], label=name, **line)
        accuracy_axes.plot(epochs, [100 * share for share in history["accuracy"]], label=name, **line)
        if name != reference:
            differences = relative_differences(history["loss"], wanted)
            shown = [max(difference, SMALLEST_DIFFERENCE) for difference in differences]
            difference_axes.plot(epochs, shown, label=f"{name} against {reference}", marker="o", **line)
    difference_axes.hlines(tolerance, 1, len(epochs), colors="#e45756", label="allowed")
    loss_axes.set(yscale="log", ylabel="training loss (nats)", title="The same training on the digits in two ways")
    accuracy_axes.set(ylabel="accuracy (%)")
    difference_axes.set(
        yscale="log", ylim=(SMALLEST_DIFFERENCE / 3, 1e-2), xlabel="epoch", ylabel="relative difference\nof loss"
    )
    difference_axes.legend(loc="upper left", ncols=2, fontsize="small")
    loss_axes.legend(loc="upper right")
    for axes in (loss_axes, accuracy_axes, difference_axes):
        axes.grid(alpha=0.3)
    save_figure(figure, path)
