"""COARSE figure 14: the access size from which a device's DMA runs at full bandwidth.

    python -m experiments.coarse_paper.fig14_dma --out results/fig14

Input for the prototype: full bandwidth from 2 MiB. Outcome for the machines of training: from which size on latency no
longer matters (III-E: below 2 MB a transfer is critical in latency), which rests on times by size that others measured.
The size that III-E's profiler splits tensors at, S', has no number in the paper.
"""

from pathlib import Path

from coarse.hardware.links import path_alone_s
from coarse.protocol.units import KIB, MIB
from experiments.coarse_paper.fig8_pairs import PAIRS
from experiments.coarse_paper.fig15_routing import central
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, full_rate_bytes, prototype
from experiments.validation.bars import Plot, Stated, draw_curves
from experiments.validation.claims import ClaimRow, Given, Order, Unit, claim_row
from experiments.validation.script import main

STATED_MIB = 2.0
"""III-E: below it a transfer is critical in latency, above it in bandwidth."""
LATENCY_CRITICAL = 0.10
"""Share of a copy's time from which its latency is taken to matter: an assumption."""
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
                f"{platform.name}: latency's share of a copy's time on {system}, 64 KiB and 2 MiB", "III-E",
                "critical below 2 MB", Order(small > LATENCY_CRITICAL >= large), [small, large], Unit.SHARE,
                inputs=("links",), why="a copy between GPUs under two switches, by the preset's wires; latency is "
                f"taken to matter where it is more than {LATENCY_CRITICAL:.0%} of the time",
            )
            for platform, system in MEASURED.items()
            for small, large in [latency_shares(platform)]
        ),
    ]  # fmt: skip


def latency_shares(platform: Platform) -> tuple[float, float]:
    """Latency's share of a copy of 64 KiB, and of 2 MiB, to a GPU of another switch."""
    machine = central(platform)
    gpu, _, remote = PAIRS[platform]
    links = [machine.links[link] for link in machine.path(gpu, remote, kind="pcie")]
    latency_s = path_alone_s(links, 0)
    small, large = (latency_s / path_alone_s(links, nbytes) for nbytes in (64 * KIB, int(STATED_MIB * MIB)))
    return small, large


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
