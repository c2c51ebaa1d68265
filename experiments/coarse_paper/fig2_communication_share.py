"""COARSE figure 2: the share of training time that communication takes.

    python -m experiments.coarse_paper.fig2_communication_share --out results/fig2

Input: T4's compute times and links, a ring that blocks compute, eight models (eight_models.py) and their batches, which
the paper does not state. Outcome: the shares. II-B's 34 % of a DGX-1's links that a ring uses (of Blink) has no
definition: an aside of docs/evaluation.md, by ring_utilisation.py, and no row.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from experiments.coarse_paper.cells import Cell, Outcome, inputs_now, outcome
from experiments.coarse_paper.eight_models import EIGHT
from experiments.coarse_paper.inputs import Platform
from experiments.validation.bars import Bar, Panel, Stated, draw_bars
from experiments.validation.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.validation.script import main

NUM_GPUS = (2, 3, 4)
INPUTS = ("compute", "eight models", "precision", "blocking ring", "links")
STATED_SHARE = 0.76


def cells() -> Iterator[Cell]:
    """All that the rows simulate."""
    for model in EIGHT:
        yield from (_cell(model, num_gpus) for num_gpus in NUM_GPUS)


def rows() -> list[ClaimRow]:
    """The claims of figure 2."""
    by_model = {model: shares(model) for model in EIGHT}
    grows = all(a < b for share in by_model.values() for a, b in pairwise(share.values()))
    sums = [share_of_ring(model, num_gpus) for model in EIGHT for num_gpus in NUM_GPUS]
    return [
        _largest_row(by_model),
        claim_row(
            "T4: the share grows with the number of GPUs (2, 3, 4; each of eight models)", "II-B, Fig. 2a", "grows",
            Order(grows), [share for one in by_model.values() for share in one.values()], Unit.SHARE, inputs=INPUTS,
        ),
        claim_row(
            "T4: all-reduce's part of the communication; the rest copies inputs to GPUs", "II-B, Fig. 2b",
            "dominates", Order(min(sums) > 0.5), sums, Unit.SHARE, inputs=INPUTS,
            why="copies of inputs take longer than the ring",
        ),
    ]  # fmt: skip


def shares(model: str) -> dict[int, float]:
    """Number of GPUs -> the part of an iteration that its all-reduce and the copies of its inputs take.

    The paper counts both as communication (II-B); that nothing hides the copies is an assumption.
    """
    found, copies_s = {num_gpus: outcome(_cell(model, num_gpus)) for num_gpus in NUM_GPUS}, input_s(model)
    return {
        num_gpus: (one.exposed_s + copies_s) / (one.iteration_s + copies_s) for num_gpus, one in found.items()
    }


def share_of_ring(model: str, num_gpus: int) -> float:
    """The ring's part of all seconds that communication takes."""
    ring_s = outcome(_cell(model, num_gpus)).exposed_s
    return ring_s / (ring_s + input_s(model))


def input_s(model: str) -> float:
    """Seconds of the copies of a batch from the host to its GPU."""
    port = inputs_now().machine(Platform.T4, num_nodes=1, nvlink=True).tree.by_name["gpu0"].wire
    return batch_of(model) * EIGHT[model].sample_bytes / port.bytes_per_s


def batch_of(model: str) -> int:
    """Samples of a GPU."""
    return round(inputs_now().alexnet_batch) if model == "alexnet" else EIGHT[model].batch


def _cell(model: str, num_gpus: int) -> Cell:
    return Cell(platform=Platform.T4, model=model, batch=batch_of(model), mode="allreduce", num_workers=num_gpus)


def _largest_row(by_model: dict[str, dict[int, float]]) -> ClaimRow:
    most = max(NUM_GPUS)
    model = max(by_model, key=lambda name: by_model[name][most])
    found: Outcome = outcome(_cell(model, most))
    communication_s = found.exposed_s + input_s(model)
    needed_s = communication_s * (1 / STATED_SHARE - 1)
    return claim_row(
        "T4, 4 GPUs: largest share of communication in training time over the models",
        "II-B, Fig. 2a",
        "up to 76 % (8 models)",
        Number(STATED_SHARE, STATED_SHARE),
        [by_model[model][most]],
        Unit.SHARE,
        inputs=INPUTS,
        why=f"{model}'s ring and copies take {communication_s:.3f} s and its compute {found.compute_s:.3f} s, where "
        f"76 % needs {needed_s:.3f} s; which of the eight models it is, and their batches, are not stated. By figure "
        "2's own ticks BERT at V-D's batch has at most 47 %, so 76 % is another model's",
    )


def draw(folder: Path) -> None:
    """Shares as bars."""
    panels = [
        Panel(
            f"Fig. 2a: T4, {model}, batch {batch_of(model)} per GPU",
            [Bar(f"{n} GPUs", {"all-reduce": share}) for n, share in shares(model).items()],
            [Stated(text="the paper's largest of 8 models, 4 GPUs", low=STATED_SHARE)],
        )
        for model in EIGHT
    ]
    parts = [
        Bar(f"{model}, {n} GPUs", {"all-reduce": share_of_ring(model, n)}) for model in EIGHT for n in NUM_GPUS
    ]
    panels.append(Panel("Fig. 2b: all-reduce's part of communication", parts))
    draw_bars(panels, ylabel="share of time", path=folder / "fig2.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
