"""COARSE figure 14: the access size from which a device's DMA runs at full bandwidth.

    python -m experiments.coarse_paper.fig14_dma --out results/fig14

Input for the prototype: full bandwidth from 2 MiB. Outcome for the machines of training: the partition sizes that the
profiler finds (the smallest size with 95 % of the best bandwidth), which rest on times by size that others measured.
"""

from pathlib import Path

from coarse.units import KIB, MIB
from experiments.coarse_paper.bars import draw_curves
from experiments.coarse_paper.claims import ClaimRow, Unit, input_row, number_row
from experiments.coarse_paper.fig15_routing import central, routed
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, full_rate_bytes, prototype
from experiments.coarse_paper.script import main

STATED_MIB = (2.0, 2.0)
"""III-E: smaller tensors do not saturate the bus."""


def rows() -> list[ClaimRow]:
    """Figure 14's claims, and III-E's border between latency and bandwidth."""
    fpga = [full_rate_bytes(prototype(), *ends) / MIB for ends in (("memory0", "gpu0"), ("gpu0", "memory0"))]
    found = [routed(central(platform)).table.partition_bytes / MIB for platform in Platform]
    sizes = ", ".join(f"{platform.name} {size:.0f} MiB" for platform, size in zip(Platform, found, strict=True))
    return [
        input_row(
            "prototype: size from which DMA reads and writes reach 95 % of full bandwidth", "V-B, Fig. 14",
            "max from 2 MB", fpga, Unit.MIB, inputs=("coherent rates",),
            why="the preset's table has its last row at 2 MiB; sizes between its rows come close to the full rate",
        ),
        number_row(
            "T4, V100, P100: partition size that the profiler finds", "III-E", "2 MB", STATED_MIB, found, Unit.MIB,
            inputs=("links",),
            why="copies that are staged through the host on Tartan's DGX-1, the stand-in for p3, need longer "
            f"transfers to fill the way: {sizes}",
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Bandwidth by access size."""
    curves = {
        name: [(nbytes / KIB, bytes_per_s(Way.DIRECT, nbytes, reads=reads) / 1e9) for nbytes in SIZES]
        for name, reads in (("read", True), ("write", False))
    }
    draw_curves({"Fig. 14": curves}, xlabel="access size (KiB)", ylabel="GB/s", path=folder / "fig14.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
