"""Fine-tuning of the three families by several workers, with and without LoRA, beside the same in one process."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

import coarse
from experiments.finetune import QUESTIONS as SHIPPED
from experiments.finetuning.checkpoint import CheckpointFileError
from experiments.finetuning.features import RowShape
from experiments.finetuning.models import FAMILIES, Lora
from experiments.finetuning.report import Summary
from experiments.finetuning.run import NOWHERE, Places, Run
from experiments.finetuning.squad import read_squad
from experiments.finetuning.teams import AloneTeam, DifferentRanksError, ReplicatedTeam, ShardedTeam, Team
from experiments.finetuning.training import FineTuning
from tests.mpi.experiments import library_claims
from tests.support.claims import raises, report_claims, takes_all
from tests.support.layouts import choices, covering

QUESTIONS = read_squad(SHIPPED)[:10]
STEPS = 4
EVERY_WAY = choices(
    {"family": FAMILIES, "trained": ("all", "lora"), "mode": ("fsdp", "fcdp")}, lambda **_: True
)
WAYS = [tuple(EVERY_WAY[number].values()) for number in covering(EVERY_WAY, 2 if takes_all() else 1)]
"""Few: each two of a family, what is trained, and a mode are in one, or in `make test` each."""
"""Whose losses are compared with those of one process."""


def settings(family: str, trained: str, **changes: object) -> FineTuning:
    chosen = {
        "family": family,
        "lora": Lora() if trained == "lora" else None,
        "row": RowShape(length=48, doc_stride=24),
        "vocabulary": 300,
        "steps": STEPS,
        "batch": 8,
        "accumulate": 2,
        "learning_rate": 5e-3,
        **changes,
    }
    return FineTuning(**chosen)  # type: ignore[arg-type]


def finished(chosen: FineTuning, team: Team, mode: str, places: Places = NOWHERE) -> tuple[Run, Summary]:
    """A run from its first step to its scores."""
    ticks = iter(range(1_000_000))
    run = Run(chosen, team, mode, QUESTIONS, lambda: float(next(ticks)), places)
    run.train(lambda record: None)
    return run, run.summary(QUESTIONS)


@cache
def alone(family: str, trained: str) -> tuple[Run, Summary]:
    """The run in this process alone."""
    return finished(settings(family, trained), AloneTeam(), "single")


def compare(family: str, trained: str, mode: str) -> None:
    """Losses, norms and scores of a run in `mode` are those of one process."""
    team = ReplicatedTeam() if mode == "coarse" else ShardedTeam(mode, "hierarchical")
    run, summary = finished(settings(family, trained), team, mode)
    wanted, wanted_summary = alone(family, trained)
    for name in ("loss", "gradient_norm"):
        found, reference = ([getattr(record, name) for record in each.records] for each in (run, wanted))
        assert np.allclose(found, reference, rtol=1e-5, atol=0), f"{name}: {found} for {reference}"
    assert summary.scores.num_questions == len(QUESTIONS)
    assert abs(summary.scores.f1 - wanted_summary.scores.f1) < 1e-9, f"{summary.scores} for {wanted_summary.scores}"
    assert summary.workers == coarse.size()
    if trained == "lora":
        assert summary.num_trainable < summary.num_parameters / 10


def claim(family: str, trained: str, mode: str) -> Callable[[], None]:
    def holds() -> None:
        compare(family, trained, mode)

    holds.__name__ = f"{family}_{trained}_{mode}"
    return holds


def replicas_on_memory_devices_train_alike() -> None:
    compare("gpt2", "lora", "coarse")


def a_sharded_run_goes_on_from_the_folder_of_another_mode() -> None:
    """Weights and optimizer state come back: the losses are those of a file of weights only at the first step."""
    folder, file = FOLDER / "state", FOLDER / "weights.safetensors"
    first, _ = finished(settings("opt", "all"), ShardedTeam("fsdp", "ring"), "fsdp", Places(save=folder))
    assert {path.suffix for path in folder.iterdir()} == {"", ".distcp"}
    again, _ = finished(settings("opt", "all"), ShardedTeam("fcdp", "ring"), "fcdp", Places(load=folder, save=file))
    assert again.records[0].loss < first.records[0].loss - 0.1
    whole, _ = finished(settings("opt", "all"), ShardedTeam("fsdp", "ring"), "fsdp", Places(load=file))
    coarse.barrier()
    single, _ = finished(settings("opt", "all"), AloneTeam(), "single", Places(load=file))
    found, reference = ([record.loss for record in run.records] for run in (whole, single))
    assert np.allclose(found, reference, rtol=1e-5, atol=0), f"{found} for {reference}"
    assert whole.records[0].loss < again.records[0].loss


def a_folder_that_lacks_a_file_is_refused_by_all_workers() -> None:
    folder = FOLDER / "torn"
    finished(settings("gpt2", "lora", steps=1), ShardedTeam("fsdp", "ring"), "fsdp", Places(save=folder))
    for name in ("__1_0.distcp", ".metadata"):
        coarse.barrier()
        if coarse.rank() == 0:
            (folder / name).unlink()
        coarse.barrier()
        with raises(CheckpointFileError, "torn can't be read into this model"):
            finished(settings("gpt2", "lora"), ShardedTeam("fsdp", "ring"), "fsdp", Places(load=folder))


def workers_with_different_weights_are_told_before_training() -> None:
    chosen = settings("gpt2", "all", seed=1 + (coarse.rank() == 0))
    with raises(DifferentRanksError, "first weights differ between the 2 workers"):
        finished(chosen, ShardedTeam("fsdp", "ring"), "fsdp")


def frozen_weights_cross_to_other_nodes_in_the_first_step_alone_with_fcdp() -> None:
    fsdp, fcdp = (
        finished(settings("bert", "lora"), ShardedTeam(mode, "hierarchical"), mode)[0].records
        for mode in ("fsdp", "fcdp")
    )
    for of_fsdp, of_fcdp in zip(fsdp, fcdp, strict=True):
        theirs, ours = of_fsdp.bytes_between_nodes, of_fcdp.bytes_between_nodes
        assert theirs["backward gather"] > ours["backward gather"] == 0, f"{theirs} and {ours}"
        assert theirs["gradient reduce-scatter"] == ours["gradient reduce-scatter"] > 0, f"{theirs} and {ours}"
        if of_fcdp.step > 0:
            assert theirs["forward gather"] > 10 * ours["forward gather"] > 0, f"{theirs} and {ours}"


CLAIMS = [
    *(claim(*way) for way in WAYS),
    replicas_on_memory_devices_train_alike,
    a_sharded_run_goes_on_from_the_folder_of_another_mode,
    a_folder_that_lacks_a_file_is_refused_by_all_workers,
    workers_with_different_weights_are_told_before_training,
    frozen_weights_cross_to_other_nodes_in_the_first_step_alone_with_fcdp,
    *library_claims.CLAIMS,
]


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    coarse.init({"mode": "coarse"})
    report_claims(CLAIMS, FOLDER)
    coarse.shutdown()
