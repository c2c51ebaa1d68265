"""COARSE figure 13: bandwidth to the prototype's memory by access size.

    python -m experiments.coarse_paper.fig13_access_size --out results/fig13

Input: flat coherent rates, and the ends of the ranges of GPU Direct's gain (at 64 KiB and from 2 MiB; which sizes the
ends belong to is an assumption). Outcome: that a copy through the host is bounded by the coherent rate.
"""

from pathlib import Path

from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, gain
from experiments.validation.bars import Plot, Stated, draw_curves
from experiments.validation.claims import ClaimRow, Given, Order, Unit, claim_row
from experiments.validation.script import main

INPUTS = ("coherent rates",)
VISIBLE = 0.02
"""Relative difference from which two curves would be told apart."""


def rows() -> list[ClaimRow]:
    """Figure 13's claims."""
    read = [bytes_per_s(Way.CCI, nbytes, reads=True) / 1e9 for nbytes in SIZES]
    indirect = [
        bytes_per_s(Way.INDIRECT, nbytes, reads=True) / bytes_per_s(Way.CCI, nbytes, reads=True) for nbytes in SIZES
    ]
    ends = "both ends of the range are the preset's, at 64 KiB and from 2 MiB; between them seconds are linear"
    return [
        claim_row(
            "prototype: CCI read bandwidth by access size", "V-B, Fig. 13a", "stable", Given(), read, Unit.GB_PER_S,
            inputs=INPUTS, why="the coherent rate is one number",
        ),
        claim_row(
            "prototype: GPU Indirect over CCI, read, all sizes", "V-B, Fig. 13a", "not visible",
            Order(all(abs(ratio - 1) < VISIBLE for ratio in indirect)), indirect, Unit.TIMES, inputs=INPUTS,
        ),
        claim_row(
            "prototype: GPU Direct over CCI, read, 64 KiB up", "V-B, Fig. 13a", "9x to 17x", Given(),
            [gain(nbytes, reads=True) for nbytes in SIZES], Unit.TIMES, inputs=INPUTS, why=ends,
        ),
        claim_row(
            "prototype: GPU Direct over CCI, write, 64 KiB up", "V-B, Fig. 13b", "1.25x to 4x", Given(),
            [gain(nbytes, reads=False) for nbytes in SIZES], Unit.TIMES, inputs=INPUTS, why=ends,
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Curves normalised to CCI."""
    plots = [
        Plot(
            f"Fig. 13{letter}: {title}",
            {
                way.value: [
                    (nbytes, bytes_per_s(way, nbytes, reads=reads) / bytes_per_s(Way.CCI, nbytes, reads=reads))
                    for nbytes in SIZES
                ]
                for way in Way
            },
            [Stated(text="the paper's range of GPU Direct", low=low, high=high)],
        )
        for letter, title, reads, low, high in (("a", "read", True, 9.0, 17.0), ("b", "write", False, 1.25, 4.0))
    ]
    draw_curves(plots, xlabel="access size", ylabel="bandwidth over CCI's", path=folder / "fig13.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
