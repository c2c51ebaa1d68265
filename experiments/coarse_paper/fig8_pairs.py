"""COARSE figure 8: bandwidth between pairs of GPUs, both directions at once.

    python -m experiments.coarse_paper.fig8_pairs --out results/fig8

Input: times by size of single wires, measured by others on machines of the same wiring; on SDSC one local pair, which
III-E states. Outcome: the matrices.
"""

from pathlib import Path

import numpy as np

from coarse.emulation.pair_matrix import bandwidth_matrix, pair_s
from coarse.emulation.presets import load_preset
from coarse.units import KIB, MIB
from experiments.coarse_paper.bars import new_figure, save
from experiments.coarse_paper.claims import ClaimRow, Unit, input_row, ordering_row
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.script import main

LARGE_BYTES = (2 * MIB, 8 * MIB, 64 * MIB)
PAIRS = {
    Platform.V100: ("gpu0", "gpu1", "gpu2"),
    Platform.P100: ("gpu0", "gpu1", "gpu2"),
    Platform.T4: ("gpu0", "gpu1", "gpu2"),
}
"""A GPU, one under its switch, one under another."""
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
    small = [remote_over_local(Platform.V100, nbytes) for nbytes in (16 * KIB, 64 * KIB)]
    p100 = load_preset(Platform.P100.value)
    local_rates = [
        n * (2 if both else 1) / pair_s(p100, "gpu0", "gpu1", n, bidirectional=both, kind="pcie") / 1e9
        for n, both in ((64 * MIB, False), (64 * MIB, True))
    ]
    return [
        ordering_row(
            "V100: bidirectional bandwidth, remote over local, 2 to 64 MiB", "III-E, Fig. 8a", "remote higher",
            min(large[Platform.V100]) > 1 + SAME, large[Platform.V100], Unit.TIMES, inputs=("links",),
        ),
        ordering_row(
            "V100: the same below 128 KiB", "III-E", "latency-critical", max(small) < 1 + SAME, small, Unit.TIMES,
            inputs=("links", "local latency"),
        ),
        ordering_row(
            "P100: bidirectional bandwidth, remote over local, 2 to 64 MiB", "III-E, Fig. 8b", "local higher",
            max(large[Platform.P100]) < 1 - SAME, large[Platform.P100], Unit.TIMES, inputs=("links",),
        ),
        ordering_row(
            "T4: bidirectional bandwidth, remote over local, 2 to 64 MiB", "V-C, Fig. 15a", "no difference",
            all(abs(ratio - 1) < SAME for ratio in large[Platform.T4]), large[Platform.T4], Unit.TIMES,
            inputs=("links",),
        ),
        input_row(
            "P100: a local pair, one direction and both", "III-E", "13 and 25 GB/s", local_rates, Unit.GB_PER_S,
            inputs=("links",), why="the preset's port has these two rates",
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Both matrices."""
    figure = new_figure(height=4)
    for axes, platform in zip(figure.subplots(1, 2), (Platform.V100, Platform.P100), strict=True):
        matrix: np.ndarray = bandwidth_matrix(load_preset(platform.value), 64 * MIB, bidirectional=True) / 1e9
        image = axes.imshow(matrix, vmin=0)
        axes.set_title(f"Fig. 8: {platform.name}, GB/s both ways (simulated)", fontsize="small")
        figure.colorbar(image, ax=axes, shrink=0.7)
    save(figure, folder / "fig8.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
