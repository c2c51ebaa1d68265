"""COARSE figure 2: the share of training time that communication takes.

    python -m experiments.coarse_paper.fig2_communication_share --out results/fig2

Input: T4's compute times and links, a ring that blocks compute. Outcome: the shares. The paper trained eight models and
names neither their batches nor which has the largest share; we have two of them. II-B's 34 % of a DGX-1's links that a
ring uses (of Blink) has no definition: an aside of docs/evaluation.md, by ring_utilisation.py, and no row.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from coarse.hardware.presets import load_preset
from experiments.coarse_paper.bars import Bar, Panel, Stated, draw_bars
from experiments.coarse_paper.cells import Cell, Outcome, outcome
from experiments.coarse_paper.claims import ClaimRow, Number, Order, Unit, claim_row
from experiments.coarse_paper.inputs import Platform
from experiments.coarse_paper.script import main

NUM_GPUS = (2, 3, 4)
MODELS = {"resnet50": 64, "bert-large": 2}
"""And the batch per GPU of V-D."""
SAMPLE_BYTES = {"resnet50": 4 * 3 * 224 * 224, "bert-large": 4 * 3 * 384}
"""What the host copies to a GPU for one sample: an image in fp32; tokens, mask and types as 4-byte numbers."""
INPUTS = ("compute", "precision", "blocking ring", "links")
STATED_SHARE = 0.76


def cells() -> Iterator[Cell]:
    """All that the rows simulate."""
    for model in MODELS:
        yield from (_cell(model, num_gpus) for num_gpus in NUM_GPUS)


def rows() -> list[ClaimRow]:
    """The claims of figure 2."""
    by_model = {model: shares(model) for model in MODELS}
    grows = all(a < b for share in by_model.values() for a, b in pairwise(share.values()))
    sums = [share_of_ring(model, num_gpus) for model in MODELS for num_gpus in NUM_GPUS]
    return [
        _largest_row(by_model),
        claim_row(
            "T4: the share grows with the number of GPUs (2, 3, 4; both models)", "II-B, Fig. 2a", "grows",
            Order(grows), [share for one in by_model.values() for share in one.values()], Unit.SHARE, inputs=INPUTS,
        ),
        claim_row(
            "T4: all-reduce's part of the communication; the rest copies inputs to GPUs", "II-B, Fig. 2b",
            "dominates", Order(min(sums) > 0.5), sums, Unit.SHARE, inputs=INPUTS,
            why="copies of inputs take longer than the ring",
        ),
    ]  # fmt: skip


def shares(model: str) -> dict[int, float]:
    """Number of GPUs -> the part of an iteration that its all-reduce takes."""
    found = {num_gpus: outcome(_cell(model, num_gpus)) for num_gpus in NUM_GPUS}
    return {num_gpus: one.exposed_s / one.iteration_s for num_gpus, one in found.items()}


def share_of_ring(model: str, num_gpus: int) -> float:
    """The ring's part of all seconds that communication takes."""
    port = load_preset(Platform.T4.value).tree.by_name["gpu0"].wire
    ring_s = outcome(_cell(model, num_gpus)).exposed_s
    return ring_s / (ring_s + MODELS[model] * SAMPLE_BYTES[model] / port.bytes_per_s)


def _cell(model: str, num_gpus: int) -> Cell:
    return Cell(
        platform=Platform.T4, model=model, batch=MODELS[model], mode="allreduce", num_workers=num_gpus
    )


def _largest_row(by_model: dict[str, dict[int, float]]) -> ClaimRow:
    most = max(NUM_GPUS)
    model = max(by_model, key=lambda name: by_model[name][most])
    found: Outcome = outcome(_cell(model, most))
    needed_s = found.exposed_s * (1 / STATED_SHARE - 1)
    return claim_row(
        "T4, 4 GPUs: largest share of communication in training time over the models",
        "II-B, Fig. 2a",
        "up to 76 % (8 models)",
        Number(STATED_SHARE, STATED_SHARE),
        [by_model[model][most]],
        Unit.SHARE,
        inputs=INPUTS,
        why=f"{model}'s ring takes {found.exposed_s:.3f} s and its compute {found.compute_s:.3f} s, where 76 % needs "
        f"{needed_s:.3f} s; the paper's model and batch are not stated, and we have two of its eight. By figure "
        "2's own ticks BERT at V-D's batch has at most 47 %, so 76 % is another model's",
    )


def draw(folder: Path) -> None:
    """Shares as bars."""
    panels = [
        Panel(
            f"Fig. 2a: T4, {model}, batch {MODELS[model]} per GPU",
            [Bar(f"{n} GPUs", {"all-reduce": share}) for n, share in shares(model).items()],
            [Stated(text="the paper's largest of 8 models, 4 GPUs", low=STATED_SHARE)],
        )
        for model in MODELS
    ]
    parts = [
        Bar(f"{model}, {n} GPUs", {"all-reduce": share_of_ring(model, n)}) for model in MODELS for n in NUM_GPUS
    ]
    panels.append(Panel("Fig. 2b: all-reduce's part of communication", parts))
    draw_bars(panels, ylabel="share of time", path=folder / "fig2.png")


if __name__ == "__main__":
    main(rows, draw, __doc__)
