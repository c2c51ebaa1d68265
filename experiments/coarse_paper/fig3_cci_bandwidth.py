"""COARSE figure 3: copying directly between GPU and device memory against coherent loads and stores.

    python -m experiments.coarse_paper.fig3_cci_bandwidth --out results/fig3

Input: these very ratios; the prototype's coherent rates are 13 GB/s over them. So nothing here is reproduced: the
rows show that the model of the links gives back what it was given, and the training figures rest on it.
"""

from pathlib import Path

from experiments.coarse_paper.bars import Bar, draw_bars
from experiments.coarse_paper.claims import ClaimRow, Unit, input_row
from experiments.coarse_paper.inputs import SERIAL_BUS_BYTES_PER_S
from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, gain, prototype
from experiments.coarse_paper.script import main

INPUTS = ("coherent rates",)


def rows() -> list[ClaimRow]:
    """Figure 3's claims."""
    why = "coherent rates are 13 GB/s over these ratios; nobody has published absolute ones"
    cci = prototype().cci_wire
    share = cci.bytes_per_s / SERIAL_BUS_BYTES_PER_S if cci is not None else 0.0
    return [
        input_row(
            "prototype: GPU Direct over CCI, read", "II-C, Fig. 3", "17x", [gain(SIZES[-1], reads=True)],
            Unit.TIMES, inputs=INPUTS, why=why,
        ),
        input_row(
            "prototype: GPU Direct over CCI, write", "II-C, Fig. 3", "4x", [gain(SIZES[-1], reads=False)],
            Unit.TIMES, inputs=INPUTS, why=why,
        ),
        input_row(
            "CCI's sustained share of the serial bus", "II-C", "90 %", [share], Unit.SHARE, inputs=("links",),
            why="the presets' CCI links are 90 % of 13 GB/s",
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Bandwidth normalised to CCI, as in the paper."""
    panels = {}
    for title, reads in (("read", True), ("write", False)):
        cci = bytes_per_s(Way.CCI, SIZES[-1], reads=reads)
        bars = [Bar(way.value, {"bandwidth": bytes_per_s(way, SIZES[-1], reads=reads) / cci}) for way in Way]
        panels[f"Fig. 3: {title}"] = bars
    draw_bars(panels, ylabel="over CCI", path=folder / "fig3.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
