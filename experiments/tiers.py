"""Draw the three tiers: `python experiments/tiers.py` writes docs/images/tiers.svg, which the README shows."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "tiers.svg"
SIZE = (10.0, 4.7)
NODE, WORKER, CLIENT, DEVICE, PROXY, STORAGE = "#f7f7f7", "#e6effa", "#c3d9f1", "#fdeedd", "#f9d2a9", "#f5bd86"
LINE = "#444444"
LINK = "CXL or PCIe:\nreal, emulated\nor simulated"

Point = tuple[float, float]


def box(axes: Axes, corner: Point, size: Point, colour: str, text: str, *, is_frame: bool = False) -> None:
    """Draw a box; its text is in the middle, or at the top of a frame. Lengths are in inches."""
    (left, bottom), (width, height) = corner, size
    style = "round,pad=0,rounding_size=0.06"
    lines = {"facecolor": colour, "edgecolor": LINE, "linewidth": 0.8}
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, **lines))
    middle = bottom + height - 0.15 if is_frame else bottom + height / 2
    axes.text(left + width / 2, middle, text, ha="center", va="center", fontsize=8.5, linespacing=1.3)


def arrow(axes: Axes, begin: Point, end: Point) -> None:
    """Draw an arrow with a head at both ends."""
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "<->", "color": LINE, "linewidth": 1.2})


def node(axes: Axes, left: float, number: int) -> None:
    """Draw a node with two workers, and a memory device below them."""
    box(axes, (left, 0.2), (4.3, 4.35), NODE, f"node {number}", is_frame=True)
    for place in range(2):
        begin = left + 0.15 + place * 2.05
        box(axes, (begin, 2.95), (1.95, 1.25), WORKER, f"worker {2 * (number - 1) + place}", is_frame=True)
        axes.text(begin + 0.97, 3.78, "model, optimizer", ha="center", va="center", fontsize=8.5)
        box(axes, (begin + 0.1, 3.05), (1.75, 0.52), CLIENT, "client: routes tensors,\ncuts them into shards")
        arrow(axes, (begin + 0.97, 3.05), (begin + 0.97, 1.66))
    for place, text in ((0.64, "push"), (3.66, "pull")):
        axes.text(left + place, 2.35, text, ha="center", va="center", fontsize=8.5, color=LINE)
    axes.text(left + 2.15, 2.4, LINK, ha="center", va="center", fontsize=8, color=LINE, linespacing=1.3)
    box(axes, (left + 0.15, 0.35), (4.0, 1.65), DEVICE, f"memory device {number - 1}", is_frame=True)
    box(axes, (left + 0.25, 1.1), (3.8, 0.56), PROXY, "proxy: a queue for each client,\nsync cores that add gradients")
    kept = "storage: values by key, versions,\nsnapshots, gathers that are kept"
    box(axes, (left + 0.25, 0.45), (3.8, 0.56), STORAGE, kept)


def draw() -> Figure:
    """Return the picture of two nodes, and of the ring between their memory devices."""
    figure = Figure(figsize=SIZE)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, SIZE[0])
    axes.set_ylim(0, SIZE[1])
    axes.axis("off")
    for number, left in ((1, 0.15), (2, 5.55)):
        node(axes, left, number)
    arrow(axes, (4.2, 1.38), (5.8, 1.38))
    axes.text(5.0, 1.66, "ring of the\nsync cores", fontsize=8, ha="center", va="center", color=LINE)
    axes.text(5.0, 1.18, "both ways", fontsize=8, ha="center", va="center", color=LINE)
    return figure


def main() -> None:
    """Write the picture; equal runs write equal bytes."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "coarse"}):
        draw().savefig(PICTURE, metadata={"Date": None})
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
