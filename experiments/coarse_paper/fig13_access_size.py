"""COARSE figure 13: bandwidth to the prototype's memory by access size.

    python -m experiments.coarse_paper.fig13_access_size --out results/fig13

Input: flat coherent rates, and the ends of the ranges of GPU Direct's gain (at 64 KiB and from 2 MiB; which sizes the
ends belong to is an assumption). Outcome: that a copy through the host is bounded by the coherent rate.
"""

from pathlib import Path

from coarse.units import KIB
from experiments.coarse_paper.bars import draw_curves
from experiments.coarse_paper.claims import ClaimRow, Unit, input_row, ordering_row
from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, gain
from experiments.coarse_paper.script import main

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
        input_row(
            "prototype: CCI read bandwidth by access size", "V-B, Fig. 13a", "stable", read, Unit.GB_PER_S,
            inputs=INPUTS, why="the coherent rate is one number",
        ),
        ordering_row(
            "prototype: GPU Indirect over CCI, read, all sizes", "V-B, Fig. 13a", "not visible",
            all(abs(ratio - 1) < VISIBLE for ratio in indirect), indirect, Unit.TIMES, inputs=INPUTS,
        ),
        input_row(
            "prototype: GPU Direct over CCI, read, 64 KiB up", "V-B, Fig. 13a", "9x to 17x",
            [gain(nbytes, reads=True) for nbytes in SIZES], Unit.TIMES, inputs=INPUTS, why=ends,
        ),
        input_row(
            "prototype: GPU Direct over CCI, write, 64 KiB up", "V-B, Fig. 13b", "1.25x to 4x",
            [gain(nbytes, reads=False) for nbytes in SIZES], Unit.TIMES, inputs=INPUTS, why=ends,
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Curves normalised to CCI."""
    panels = {
        f"Fig. 13: {title}": {
            way.value: [
                (nbytes / KIB, bytes_per_s(way, nbytes, reads=reads) / bytes_per_s(Way.CCI, nbytes, reads=reads))
                for nbytes in SIZES
            ]
            for way in Way
        }
        for title, reads in (("read", True), ("write", False))
    }
    draw_curves(panels, xlabel="access size (KiB)", ylabel="bandwidth over CCI", path=folder / "fig13.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
