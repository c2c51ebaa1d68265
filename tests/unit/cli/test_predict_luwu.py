"""`coarse predict` of LuWu and its baselines, from the command line to the files."""

import json

import pytest
from typer.testing import CliRunner

from coarse.cli import predict
from coarse.hardware.gpt import gpt
from coarse.hardware.presets import preset_path
from coarse.luwu.simulation.capacity import MODES


def called(*arguments):
    return CliRunner().invoke(predict.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """The folder and the output of one prediction."""
    out = tmp_path_factory.mktemp("luwu")
    done = called("--modes", ",".join(MODES), "--model", "opt-13b", "--batch", 8, "--workers", 8, "--out", out)
    assert done.exit_code == 0, done.output
    return out, done.output


def test_every_mode_has_a_row(predicted):
    out, output = predicted
    found = json.loads((out / "luwu.json").read_text())
    assert [row["mode"] for row in found["rows"]] == list(MODES)
    assert {row["kind"] for row in found["rows"]} == {"simulated"}
    assert "simulated" in output
    for row in found["rows"]:
        if not row["step_s"]:
            continue
        assert row["tokens_per_s"] * row["step_s"] == pytest.approx(8 * 8 * 1024)
        assert row["bound_s"] <= row["step_s"] * (1 + 1e-9)
        assert max(row["busy_s"], key=row["busy_s"].get) == row["slowest"]
    assert (out / "luwu.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_says_so(predicted):
    out, output = predicted
    rows = {row["mode"]: row for row in json.loads((out / "luwu.json").read_text())["rows"]}
    assert rows["switchml"]["step_s"] == 0
    assert "switchml needs of a GPU" in " ".join(output.split())


def test_each_place_is_shown_and_what_lacks_is_marked(predicted):
    out, output = predicted
    rows = {row["mode"]: row for row in json.loads((out / "luwu.json").read_text())["rows"]}
    assert [need["place"] for need in rows["luwu"]["needs"]] == ["a GPU", "a host", "the optimizer node's disks"]
    assert [need["place"] for need in rows["sharp"]["needs"]] == ["a GPU", "a host", "a worker's disks"]
    gpu = rows["switchml"]["needs"][0]
    assert gpu["nbytes"] > gpu["capacity_bytes"]
    assert f"{gpu['nbytes'] / 2**30:,.0f} !" in output
    assert f"{(gpu['nbytes'] - gpu['capacity_bytes']) / 2**30:,.1f} too many" in " ".join(output.split())


def test_each_input_has_a_source(predicted):
    out, _ = predicted
    inputs = json.loads((out / "luwu.json").read_text())["inputs"]
    assert len({each["name"] for each in inputs}) == len(inputs) > 20
    known = ("paper", "data sheet", "assumed", "calibrated on ", "by ")
    assert all(each["source"].startswith(known) for each in inputs)
    assert sum(each["source"].startswith("calibrated on ") for each in inputs) == 3


def test_what_the_user_changed_is_stated(tmp_path):
    text = preset_path("luwu").read_text().replace("host_memory_gb = 256", "host_memory_gb = 512")
    (tmp_path / "mine.toml").write_text(text)
    done = called(
        "--machine", tmp_path / "mine.toml", "--model", "opt-1.3b", "--batch", 1, "--peak-share", 0.4,
        "--modes", "zero3", "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    inputs = json.loads((tmp_path / "luwu.json").read_text())["inputs"]
    stated = {each["name"] for each in inputs if each["source"] == "stated"}
    assert stated == {"a host's memory", "share of a GPU's peak that it attains"}


def test_without_workers_there_is_one_on_each_node(tmp_path):
    assert called("--model", "opt-1.3b", "--modes", "zero3", "--batch", 1, "--out", tmp_path).exit_code == 0
    found = json.loads((tmp_path / "luwu.json").read_text())
    assert [row["workers"] for row in found["largest_models"]] == [1, 2, 4, 8]
    assert "8 workers of luwu" in found["asked"]["title"]


def test_the_largest_models_stand_by_workers(predicted):
    out, _ = predicted
    found = json.loads((out / "luwu.json").read_text())["largest_models"]
    assert [row["workers"] for row in found] == [1, 2, 4, 8]
    for mode, places in (("luwu", {"the optimizer node's disks"}), ("zero-infinity", {"a host"}), ("zero3", {"a GPU"})):
        limits = [row["largest"][mode] for row in found]
        assert {limit["bound_by"] for limit in limits} == places
        assert all(gpt(limit["named"], 1024).num_parameters <= limit["num_parameters"] for limit in limits)
    assert {row["largest"]["luwu"]["named"] for row in found} == {"opt-1t"}


def test_an_opt_model_needs_no_modes(tmp_path):
    done = called("--model", "opt-1.3b", "--batch", 1, "--workers", 1, "--out", tmp_path)
    assert done.exit_code == 0
    assert len(json.loads((tmp_path / "luwu.json").read_text())["rows"]) == len(MODES)


def test_a_picture_of_an_earlier_prediction_does_not_stay(tmp_path):
    asked = ("--model", "opt-1.3b", "--modes", "switchml", "--workers", 1, "--out", tmp_path)
    assert called(*asked, "--batch", 1).exit_code == 0
    assert (tmp_path / "luwu.png").exists()
    assert called(*asked, "--batch", 4096).exit_code == 0
    assert not (tmp_path / "luwu.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--modes", "luwu"), "unknown GPT 'resnet50'"),
        (("--modes", "zero3,dense", "--model", "resnet50"), "got 'dense'; ask for other modes by themselves"),
        (("--modes", "zero3", "--model", "bert-large"), "unknown GPT 'bert-large'; there are"),
        (("--modes", "luwu", "--model", "8x512x7"), "hidden must be a multiple of the heads, got 512 and 7"),
        (("--model", "opt-30b", "--nodes", 2), "--nodes means nothing for LuWu's modes; leave it out"),
        (("--modes", "luwu,dense", "--model", "opt-30b"), "--modes must be of luwu"),
        (("--modes", "dense", "--model", "opt-30b"), "--modes must be of luwu"),
        (("--model", "opt-30b", "--batch", 0), "batch must lie in"),
        (("--model", "opt-30b", "--workers", 0), "workers must lie in"),
        (("--model", "opt-30b", "--machine", "aws-p3"), "states no [disks]"),
        (("--model", "opt-30b", "--policy", "paper"), "--policy means nothing for LuWu's modes"),
        (("--model", "opt-30b", "--peak-share", 2), "peak_share must lie in"),
        (("--prefetch",), "--prefetch means nothing for these modes"),
    ],
)
def test_what_makes_no_sense_ends_with_2(arguments, words, tmp_path):
    done = called(*arguments, "--out", tmp_path)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_luwu_stands_in_one_table_with_modes_of_all_kinds(tmp_path):
    disks = preset_path("luwu").read_text().partition("[disks]")[2].partition("\n\n")[0]
    machine = tmp_path / "mine.toml"
    machine.write_text(f"{preset_path('aws-p3').read_text()}\n[disks]{disks}\n")
    own = "experiments/strategies/hierarchical.py:HierarchicalServer"
    asked = ("--modes", f"coarse,fcdp,luwu,odc,{own}", "--samples", 0, "--workers", 4, "--nodes", 2, "--out", tmp_path)
    done = called("--machine", machine, "--model", "resnet50", "--policy", "devices", *asked)
    assert done.exit_code == 0, done.output
    results = {row["name"]: row for row in json.loads((tmp_path / "run.json").read_text())["rows"]}
    assert list(results) == ["coarse", "fcdp", "luwu", "odc", "HierarchicalServer"]
    assert results["luwu"]["compute_s"] == pytest.approx(results["fcdp"]["compute_s"])
    assert results["luwu"]["iteration_s"] >= results["luwu"]["compute_s"]
    assert "luwu moves bfloat16" in " ".join(done.output.split())


def test_luwu_beside_others_wants_a_machine_with_disks(tmp_path):
    done = called("--machine", "aws-p3", "--model", "resnet50", "--modes", "coarse,luwu", "--out", tmp_path)
    assert done.exit_code == 2
    assert "mode luwu: aws-p3 states no [disks]" in done.output
