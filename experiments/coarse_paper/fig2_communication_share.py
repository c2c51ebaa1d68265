"""COARSE figure 2: the share of training time that communication takes, by the number of GPUs.

    python -m experiments.coarse_paper.fig2_communication_share --out results/fig2

Input: T4's compute times and links, a ring that blocks compute. Outcome: the shares. The paper trained eight models
and names neither their batches nor which has the largest share; we have two of them.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from coarse.simulation.scenario import Mode
from experiments.coarse_paper.bars import Bar, draw_bars
from experiments.coarse_paper.cells import Cell, outcome
from experiments.coarse_paper.claims import ClaimRow, Unit, number_row, ordering_row
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.script import main

NUM_GPUS = (2, 3, 4)
MODELS = {"resnet50": 64, "bert-large": 2}
"""And the batch per GPU of V-D."""
INPUTS = ("compute", "precision", "blocking ring", "links")


def cells() -> Iterator[Cell]:
    """All that the rows simulate."""
    for model, batch in MODELS.items():
        for num_gpus in NUM_GPUS:
            yield Cell(platform=Platform.T4, model=model, batch=batch, mode=Mode.ALLREDUCE, num_workers=num_gpus)


def shares(model: str) -> dict[int, float]:
    """Number of GPUs -> the part of an iteration that its all-reduce takes."""
    found = {cell.num_workers: outcome(cell) for cell in cells() if cell.model == model}
    return {num_gpus: one.exposed_s / one.iteration_s for num_gpus, one in found.items()}


def rows() -> list[ClaimRow]:
    """Figure 2's claims."""
    by_model = {model: shares(model) for model in MODELS}
    largest = max(share[max(NUM_GPUS)] for share in by_model.values())
    grows = all(a < b for share in by_model.values() for a, b in pairwise(share.values()))
    return [
        number_row(
            "T4, 4 GPUs: largest share of communication in training time over the models",
            "II-B, Fig. 2a",
            "up to 76 % (8 models)",
            (0.76, 0.76),
            [largest],
            Unit.SHARE,
            inputs=INPUTS,
            why="the largest of our two models; which of the paper's eight reached 76 %, and at which batch, isn't "
            "stated. A share of 76 % needs compute of a third of the ring's time",
        ),
        ordering_row(
            "T4: the share grows with the number of GPUs (2, 3, 4; both models)",
            "II-B, Fig. 2a",
            "grows",
            grows,
            [share for one in by_model.values() for share in one.values()],
            Unit.SHARE,
            inputs=INPUTS,
        ),
    ]


def draw(folder: Path) -> None:
    """Shares as bars."""
    panels = {
        f"Fig. 2a: T4, {model}": [Bar(f"{n} GPUs", {"all-reduce": share}) for n, share in shares(model).items()]
        for model in MODELS
    }
    draw_bars(panels, ylabel="share of the iteration", path=folder / "fig2.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
