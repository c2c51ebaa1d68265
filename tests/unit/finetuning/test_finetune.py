"""The command line of the fine-tuning: what it takes, what it refuses, and what it leaves."""

import json
import re
from pathlib import Path

import pytest

from coarse.protocol import config
from experiments.finetune import main, parse_arguments, settings_from
from experiments.finetuning import teams
from experiments.finetuning.models import Lora
from experiments.finetuning.training import FineTuning

PAGE = (Path(__file__).parents[3] / "docs" / "finetune.md").read_text()
QUICK = ["--mode", "single", "--steps", "2", "--batch", "2", "--length", "64", "--doc-stride", "40"]


@pytest.fixture(autouse=True)
def _no_mode_of_a_launcher(monkeypatch):
    monkeypatch.delenv("COARSE_MODE", raising=False)


def test_the_defaults_are_those_of_the_settings():
    assert settings_from(parse_arguments([])) == FineTuning()
    assert settings_from(parse_arguments(["--lora"])) == FineTuning(lora=Lora(rank=8))


def test_the_page_names_all_options_and_no_other(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    launcher = {"--cluster", "--rate", "--workers", "--devices"}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) - launcher == options - launcher - {"--help"}


def test_the_replicated_modes_are_those_of_coarse():
    assert set(teams.REPLICATED_MODES) == set(config.MODES)


@pytest.mark.parametrize("mode", teams.MODES)
def test_every_mode_is_taken_and_a_collective_by_the_sharded_ones(mode, capsys):
    given = ["--mode", mode, "--collective", "ring", *(["--storage", "disk"] if mode == "luwu" else [])]
    if mode in teams.SHARDED_MODES:
        assert parse_arguments(given).collective == "ring"
        return
    with pytest.raises(SystemExit):
        parse_arguments(given)
    assert f"not for {mode}; leave it out" in capsys.readouterr().err


def test_a_quantised_gather_is_taken_by_zeropp_alone(capsys):
    assert parse_arguments(["--mode", "zeropp", "--quantised"]).quantised
    with pytest.raises(SystemExit):
        parse_arguments(["--mode", "fcdp", "--quantised"])
    assert "--quantised is for the mode zeropp, not for fcdp" in capsys.readouterr().err


def test_the_launchers_mode_is_taken_and_another_one_refused(capsys, monkeypatch):
    monkeypatch.setenv("COARSE_MODE", "dense")
    assert parse_arguments([]).mode == "dense"
    with pytest.raises(SystemExit):
        parse_arguments(["--mode", "coarse"])
    assert "--mode is coarse but COARSE_MODE=dense" in capsys.readouterr().err


def test_a_rank_of_adapters_needs_adapters(capsys):
    assert settings_from(parse_arguments(["--lora", "--lora-rank", "4"])).lora == Lora(rank=4)
    with pytest.raises(SystemExit):
        parse_arguments(["--lora-rank", "4"])
    assert "--lora-rank is for --lora" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "{path}"], "wanted the JSON of SQuAD 1.1"),
        (["--data", "{path}.missing"], "No such file"),
        (["--steps", "0"], "at least 1 step"),
        (["--doc-stride", "1000"], "some of the context would be in none"),
        (["--lora", "--lora-rank", "-1"], "Lora.rank must be at least 1"),
        (["--save", "{path}"], r"names a folder, which is for the modes fsdp"),
        (["--load", "{path}.safetensors"], "does not exist; give a checkpoint"),
    ],
)
def test_wrong_input_ends_in_one_line(arguments, message, tmp_path):
    path = tmp_path / "torn"
    path.write_text('{"data": [')
    with pytest.raises(SystemExit, match=message) as ended:
        main([*QUICK, *(argument.format(path=path) for argument in arguments)])
    assert str(ended.value).startswith("finetune.py: ")


def test_a_run_prints_its_losses_and_scores_and_leaves_its_rows(tmp_path, capsys):
    main([*QUICK, "--family", "opt", "--lora", "--out", str(tmp_path)])
    printed = capsys.readouterr().out.splitlines()
    rows = json.loads((tmp_path / "single-worker0.json").read_text())
    losses = [step["loss"] for step in rows["steps"]]
    assert [line.split("  ")[:2] for line in printed[:2]] == [
        [f"step {index}/2", f"loss {loss:.6f}"] for index, loss in enumerate(losses, start=1)
    ]
    assert "exact match" in printed[-1]
    assert "on 57 questions of everyday_questions.json" in printed[-1]
    assert rows["kind"] == "measured"
    assert rows["settings"]["lora"] == {"rank": 8, "alpha": 16}
    assert rows["summary"]["scores"]["num_questions"] == 57
