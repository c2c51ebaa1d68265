"""COARSE figure 14: the access size from which a device's DMA runs at full bandwidth.

    python -m experiments.coarse_paper.fig14_dma --out results/fig14

Input for the prototype: full bandwidth from 2 MiB. Outcome for the machines of training: the partition sizes that the
profiler finds (the smallest size with 95 % of the best bandwidth), which rest on times by size that others measured.
"""

from pathlib import Path

from coarse.protocol.units import MIB
from experiments.coarse_paper.bars import Plot, Stated, draw_curves
from experiments.coarse_paper.claims import ClaimRow, Given, Number, Unit, claim_row
from experiments.coarse_paper.fig15_routing import central, routed
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, full_rate_bytes, prototype
from experiments.coarse_paper.script import main

STATED_MIB = 2.0
"""III-E: smaller tensors do not saturate the bus."""
MEASURED = {Platform.V100: "p3", Platform.P100: "SDSC"}
"""The two systems that III-E speaks of."""


def rows() -> list[ClaimRow]:
    """Figure 14's claims, and III-E's border between latency and bandwidth."""
    fpga = [full_rate_bytes(prototype(), *ends) / MIB for ends in (("memory0", "gpu0"), ("gpu0", "memory0"))]
    return [
        claim_row(
            "prototype: size from which DMA reads and writes reach 95 % of full bandwidth", "V-B, Fig. 14",
            "max from 2 MB", Given(), fpga, Unit.MIB, inputs=("coherent rates",),
            why="the preset's table has its last row at 2 MiB; sizes between its rows come close to the full rate",
        ),
        *(
            claim_row(
                f"{platform.name}: partition size that the profiler finds on {system}", "III-E", "2 MB",
                Number(STATED_MIB, STATED_MIB), [routed(central(platform)).table.partition_bytes / MIB], Unit.MIB,
                inputs=("links",), why="the profiler wants 95 % of the bandwidth at 8 MiB, the largest size it "
                "tries; copies staged through the host of the stand-in, Tartan's DGX-1, have 80 % at 2 MiB, 92 % at 4",
            )
            for platform, system in MEASURED.items()
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Bandwidth by access size."""
    curves = {
        name: [(nbytes, bytes_per_s(Way.DIRECT, nbytes, reads=reads) / 1e9) for nbytes in SIZES]
        for name, reads in (("read", True), ("write", False))
    }
    stated = Stated(text="the paper: full bandwidth from 2 MB on", low=STATED_MIB * MIB, is_size=True)
    plot = Plot("Fig. 14: DMA of the prototype", curves, [stated])
    draw_curves([plot], xlabel="access size", ylabel="GB/s", path=folder / "fig14.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
