"""Cutting a batch over workers, and probing, leave the training as it is."""

import numpy as np
import pytest
import torch

from coarse.protocol import config
from experiments.gpt import teams
from experiments.gpt.corpus import Corpus
from experiments.gpt.model import Gpt, GptShape, num_parameters
from experiments.gpt.teams import AloneTeam, bytes_total, place_of, rendezvous_port
from experiments.gpt.train import Trainer, Training, learning_rate_at
from experiments.train_gpt import parse_arguments

SHAPE = GptShape(layers=1, width=8, heads=2, context=8)
TEXT = np.arange(600, dtype=np.int64).astype(np.uint8)
CORPUS = Corpus(train=TEXT, validation=TEXT[:100], digest="")


class CountingClock:
    """Each look at it takes a second."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


class ProbedTeam(AloneTeam):
    """A team of one that is probed as if it had something to synchronise."""

    synchronises = True


def train(team, **changes):
    training = Training(
        **{"mode": "single", "steps": 12, "global_rows": 4, "shape": SHAPE, "warmup_steps": 2, **changes}
    )
    reports = []
    summary, records = Trainer(training, team, CORPUS, CountingClock()).run(reports.append)
    return summary, records, reports


def test_probing_does_not_change_the_training():
    summary, bare, _ = train(AloneTeam(0, 1))
    probed_summary, probed, _ = train(ProbedTeam(0, 1), probe_every=3)
    assert [record.loss for record in probed] == [record.loss for record in bare]
    assert probed_summary.validation_loss == summary.validation_loss


def test_a_step_after_a_probe_does_not_count():
    _, records, _ = train(ProbedTeam(0, 1), probe_every=4)
    assert [record.step for record in records if not record.settled] == [0, 1, 4, 8]


def test_exposed_communication_is_a_step_minus_a_step_of_the_twin():
    summary, _, reports = train(ProbedTeam(0, 1), probe_every=4)
    assert summary.step_s == 4.0  # four phases of one look at the clock each
    assert summary.unsynchronised_step_s == 1.0
    assert summary.exposed_s == 3.0
    assert reports[-1].exposed_s == 3.0


def test_a_team_with_nothing_to_synchronise_is_not_probed():
    assert train(AloneTeam(0, 1), probe_every=1)[0].exposed_s is None


def test_the_loss_over_all_workers_is_that_of_the_whole_batch():
    whole = train(AloneTeam(0, 1), steps=1)[1][0].loss
    cuts = [train(AloneTeam(rank, 2), steps=1)[1][0].loss for rank in range(2)]
    assert sum(cuts) / 2 == pytest.approx(whole, rel=1e-6)


def test_a_loss_that_is_no_number_ends_the_run():
    with pytest.raises(FloatingPointError, match=r"step [1-5]: the loss is nan"):
        train(AloneTeam(0, 1), learning_rate=float("nan"))


def test_every_step_has_a_record_and_the_last_one_a_report():
    summary, records, reports = train(AloneTeam(0, 1), steps=7)
    assert [record.step for record in records] == list(range(7))
    assert [report.step for report in reports] == [5, 7]
    assert reports[-1].loss == records[-1].loss == summary.last_loss


def test_workers_that_cannot_share_the_batch_equally_are_refused():
    with pytest.raises(ValueError, match="choose a multiple of 3"):
        train(AloneTeam(0, 3))


def test_the_learning_rate_rises_and_then_falls_to_a_tenth():
    training = Training(mode="single", steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [learning_rate_at(step, training) for step in range(101)]
    assert max(rates) == pytest.approx(rates[10]) == pytest.approx(1.0)
    assert rates[0] == pytest.approx(0.1) == pytest.approx(rates[100])


def test_the_default_model_has_several_million_parameters():
    assert 3e6 < num_parameters(Gpt(GptShape())) < 1e7


def test_a_later_byte_does_not_change_an_earlier_prediction():
    torch.manual_seed(0)
    model = Gpt(SHAPE)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    embedded = model.tokens(tokens).detach().requires_grad_()
    block = model.blocks[0](embedded)
    block[0, 3].sum().backward()
    assert torch.count_nonzero(embedded.grad[0, 4:]) == 0
    assert torch.count_nonzero(embedded.grad[0, :4]) > 0


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "RANK": "1", "WORLD_SIZE": "2"}
            | {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"},
            (1, 2),
        ),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "COARSE_JOB": "1,3,1,3"}, (1, 2)),
    ],
)
def test_a_process_finds_its_place_from_its_launcher(environ, place):
    assert place_of(environ) == place


def test_ranks_of_one_job_meet_at_one_port():
    assert rendezvous_port({"PMIX_NAMESPACE": "job@1"}) == rendezvous_port({"PMIX_NAMESPACE": "job@1"})
    assert rendezvous_port({"MASTER_PORT": "4321", "PMIX_NAMESPACE": "job@1"}) == 4321


def test_bytes_moved_are_those_that_coarse_counts_for_this_worker():
    assert bytes_total({"rank": 1, "bytes": 12, "keys": {"w": {"bytes": 12}}}) == 12


def test_the_scripts_know_the_modes_and_policies_of_coarse():
    assert (teams.COARSE_MODES, teams.POLICIES) == (config.MODES, config.POLICIES)


@pytest.mark.parametrize("mode", teams.MODES)
def test_every_mode_is_taken_and_a_policy_by_coarse_alone(mode, capsys, monkeypatch):
    monkeypatch.delenv("COARSE_MODE", raising=False)
    needed = ["--storage", "disk"] if mode in ("luwu", "zero-infinity") else []
    assert parse_arguments(["--mode", mode, *needed]).mode == mode
    given = ["--mode", mode, *needed, "--policy", "paper"]
    if mode == "coarse":
        assert parse_arguments(given).policy == "paper"
        return
    with pytest.raises(SystemExit):
        parse_arguments(given)
    assert f"--policy is for --mode coarse, which is {mode}" in capsys.readouterr().err


def test_modes_with_states_elsewhere_have_options_that_no_other_takes(capsys, monkeypatch):
    monkeypatch.delenv("COARSE_MODE", raising=False)
    for mode in ("luwu", "zero-infinity"):
        with pytest.raises(SystemExit):
            parse_arguments(["--mode", mode])
        assert "keeps states in --storage DIR" in capsys.readouterr().err
    both, alone, added = "luwu and zero-infinity", "luwu", "luwu and switchml and sharp"
    for mode, option, whose in (
        ("dense", ["--storage", "disk"], both), ("dense", ["--resume"], both), ("dense", ["--meta"], alone),
        ("zero-offload", ["--storage", "disk"], both), ("zero-infinity", ["--timeline", "folder"], alone),
        ("dense", ["--switch", "0"], added), ("sharp", ["--memory", "9"], f"{both} and zero-offload"),
        ("dense", ["--loss", "0.1"], added), ("switchml", ["--optimizer", "0"], alone),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            parse_arguments(["--mode", mode, *option])
        assert f"{option[0]} is for --mode {whose}, which is {mode}" in capsys.readouterr().err


def test_the_launchers_mode_is_taken_and_another_one_refused(capsys, monkeypatch):
    monkeypatch.setenv("COARSE_MODE", "dense")
    assert parse_arguments([]).mode == "dense"
    with pytest.raises(SystemExit):
        parse_arguments(["--mode", "coarse"])
    assert "--mode is coarse but COARSE_MODE=dense" in capsys.readouterr().err
