"""COARSE figure 8: bandwidth between pairs of GPUs, both directions at once.

    python -m experiments.coarse_paper.fig8_pairs --out results/fig8

Input: times by size of single wires, measured by others on machines of the same wiring; on SDSC one local pair, which
III-E states. Outcome: the matrices.
"""

from pathlib import Path

import numpy as np

from coarse.hardware.machine import bandwidth_matrix, pair_s
from coarse.hardware.presets import load_preset
from coarse.protocol.units import MIB
from experiments.coarse_paper.inputs import Platform
from experiments.validation.bars import new_figure, save
from experiments.validation.claims import ClaimRow, Given, Order, Unit, claim_row
from experiments.validation.script import main

LARGE_BYTES = (2 * MIB, 8 * MIB, 64 * MIB)
PAIRS = {
    Platform.V100: ("gpu0", "gpu1", "gpu2"),
    Platform.P100: ("gpu0", "gpu1", "gpu2"),
    Platform.T4: ("gpu0", "gpu1", "gpu2"),
}
"""A GPU, one under its switch, one under another."""
T4_WHY = "an assumption: the preset's uplinks carry twice a port, so that ways through them are like any others"
SAME = 0.10
"""The profiler's tolerance for a tie."""


def remote_over_local(platform: Platform, nbytes: int) -> float:
    """Bidirectional bandwidth to a GPU of another switch over that to one of the same switch."""
    machine = load_preset(platform.value)
    gpu, local, remote = PAIRS[platform]
    local_s, remote_s = (
        pair_s(machine, gpu, there, nbytes, bidirectional=True, kind="pcie") for there in (local, remote)
    )
    return local_s / remote_s


def rows() -> list[ClaimRow]:
    """Figure 8's claims, and 15a's for the T4."""
    large = {platform: [remote_over_local(platform, nbytes) for nbytes in LARGE_BYTES] for platform in PAIRS}
    p100 = load_preset(Platform.P100.value)
    local_rates = [
        n * (2 if both else 1) / pair_s(p100, "gpu0", "gpu1", n, bidirectional=both, kind="pcie") / 1e9
        for n, both in ((64 * MIB, False), (64 * MIB, True))
    ]
    return [
        claim_row(
            "V100: bidirectional bandwidth, remote over local, 2 to 64 MiB", "III-E, Fig. 8a", "remote higher",
            Order(min(large[Platform.V100]) > 1 + SAME), large[Platform.V100], Unit.TIMES, inputs=("links",),
        ),
        claim_row(
            "V100: latency, remote over local", "III-E, V-C", "local is always better", Given(),
            [latency_ratio(Platform.V100)], Unit.TIMES, inputs=("local latency",),
            why="an assumption: crossing the root complex adds 2 us; the stand-in measured both alike",
        ),
        claim_row(
            "P100: bidirectional bandwidth, remote over local, 2 to 64 MiB", "III-E, Fig. 8b", "local higher",
            Order(max(large[Platform.P100]) < 1 - SAME), large[Platform.P100], Unit.TIMES, inputs=("links",),
        ),
        claim_row(
            "T4: bidirectional bandwidth, remote over local, 2 to 64 MiB", "V-C, Fig. 15a", "no difference",
            Given(), large[Platform.T4], Unit.TIMES, inputs=("links",), why=T4_WHY,
        ),
        claim_row(
            "P100: a local pair, one direction and both", "III-E", "13 and 25 GB/s", Given(), local_rates,
            Unit.GB_PER_S, inputs=("links",), why="the preset's port has these two rates",
        ),
    ]  # fmt: skip


def latency_ratio(platform: Platform) -> float:
    """Start-up of a copy to a GPU of another switch over that to one of the same switch."""
    machine = load_preset(platform.value)
    gpu, local, remote = PAIRS[platform]
    local_s, remote_s = (
        sum(machine.links[link].latency_s for link in machine.path(gpu, there, kind="pcie"))
        for there in (local, remote)
    )
    return remote_s / local_s


def draw(folder: Path) -> None:
    """Both matrices."""
    figure = new_figure(height=5)
    for axes, letter, platform in zip(figure.subplots(1, 2), "ab", (Platform.V100, Platform.P100), strict=True):
        matrix: np.ndarray = bandwidth_matrix(load_preset(platform.value), 64 * MIB, bidirectional=True) / 1e9
        image = axes.imshow(np.where(matrix > 0, matrix, np.nan), vmin=0, cmap="Blues")
        for row, column in np.argwhere(matrix > 0):
            color = "white" if matrix[row, column] > 0.6 * matrix.max() else "black"
            axes.text(column, row, f"{matrix[row, column]:.1f}", ha="center", va="center", fontsize=8, color=color)
        axes.set_xticks(range(len(matrix)))
        axes.set_yticks(range(len(matrix)))
        axes.set(xlabel="GPU", ylabel="GPU")
        axes.set_title(f"Fig. 8{letter}: {platform.name} over PCIe, 64 MiB each way (simulated)", fontsize="small")
        figure.colorbar(image, ax=axes, shrink=0.7, label="GB/s, both directions together")
    save(figure, folder / "fig8.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
