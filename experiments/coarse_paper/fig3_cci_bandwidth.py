"""COARSE figure 3: copying directly between GPU and device memory against coherent loads and stores.

    python -m experiments.coarse_paper.fig3_cci_bandwidth --out results/fig3

Input: these very ratios; the prototype's coherent rates are 13 GB/s over them. So nothing here is reproduced: the
rows show that the model of the links gives back what it was given, and the training figures rest on it.
"""

from pathlib import Path

from experiments.coarse_paper.inputs import SERIAL_BUS_BYTES_PER_S
from experiments.coarse_paper.prototype import SIZES, Way, bytes_per_s, gain, prototype
from experiments.validation.bars import Bar, Panel, draw_bars
from experiments.validation.claims import ClaimRow, Given, Unit, claim_row
from experiments.validation.script import main

INPUTS = ("coherent rates",)


def rows() -> list[ClaimRow]:
    """Figure 3's claims."""
    why = "coherent rates are 13 GB/s over these ratios; nobody has published absolute ones"
    cci = prototype().cci_wire
    share = cci.bytes_per_s / SERIAL_BUS_BYTES_PER_S if cci is not None else 0.0
    return [
        claim_row(
            "prototype: GPU Direct over CCI, read", "II-C, Fig. 3", "17x", Given(), [gain(SIZES[-1], reads=True)],
            Unit.TIMES, inputs=INPUTS, why=why,
        ),
        claim_row(
            "prototype: GPU Direct over CCI, write", "II-C, Fig. 3", "4x", Given(), [gain(SIZES[-1], reads=False)],
            Unit.TIMES, inputs=INPUTS, why=why,
        ),
        claim_row(
            "CCI's sustained share of the serial bus", "II-C", "90 %", Given(), [share], Unit.SHARE, inputs=("links",),
            why="the presets' CCI links are 90 % of 13 GB/s",
        ),
    ]  # fmt: skip


def draw(folder: Path) -> None:
    """Bandwidth normalised to CCI, as in the paper."""
    panels = []
    for title, reads, stated in (("read", True, 17.0), ("write", False, 4.0)):
        cci = bytes_per_s(Way.CCI, SIZES[-1], reads=reads)
        bars = [
            Bar(
                way.value,
                {"bandwidth": bytes_per_s(way, SIZES[-1], reads=reads) / cci},
                stated={"bandwidth": stated} if way is Way.DIRECT else {},
            )
            for way in Way
        ]
        panels.append(Panel(f"Fig. 3: {title}, 64 MiB", bars))
    draw_bars(panels, ylabel="bandwidth over CCI's", path=folder / "fig3.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
