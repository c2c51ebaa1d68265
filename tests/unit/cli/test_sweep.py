"""`coarse sweep`, from the command line to rows, picture and sentences."""

import csv
import json
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from coarse.cli import predict, sweep
from coarse.cli.report.sweep import pool
from coarse.cli.report.sweep import rows as rows_file
from coarse.errors import ConfigError

MINE = Path(__file__).parents[3] / "experiments" / "strategies" / "diloco.py"
FAST = ("--policy", "devices", "--modes", "allreduce,coarse", "--iterations", "1", "--processes", "1")
WORKERS, LATENCY = ("--vary", "workers=1,2"), ("--vary", "wire.cci.latency_us=1,5000")


def called(*arguments, app=sweep.app):
    """The result of one command line."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


def rows_of(out):
    """The rows of a folder, as mappings."""
    with open(out / "rows.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder and the output of one sweep."""
    out = tmp_path_factory.mktemp("swept")
    done = called(*FAST, *WORKERS, *LATENCY, "--out", out)
    assert done.exit_code == 0, done.output
    return out, done.output


def test_there_is_a_row_for_each_mode_of_each_point_in_order(swept):
    out, _ = swept
    rows = rows_of(out)
    assert list(rows[0]) == [
        *("workers", "wire.cci.latency_us", "mode", "iteration_s", "samples_per_s", "exposed_s", "compute_s"),
        *("samples_s", "kind", "reason"),
    ]
    assert [(row["workers"], row["wire.cci.latency_us"], row["mode"]) for row in rows] == [
        (workers, latency, mode)
        for workers in ("1", "2") for latency in ("1", "5000") for mode in ("allreduce", "coarse")
    ]  # fmt: skip
    for row in rows:
        assert row["kind"] == "simulated"
        assert float(row["samples_per_s"]) == pytest.approx(2 * int(row["workers"]) / float(row["iteration_s"]))


def test_a_point_is_what_coarse_predict_gives(swept, tmp_path):
    out, _ = swept
    text = (Path(predict.__file__).parents[1] / "hardware" / "presets" / "aws-p3.toml").read_text()
    machine = tmp_path / "changed.toml"
    text = re.sub(r'"wire\.cci\.latency_us" = .*\n', "", text)  # its interval, which holds 0.5
    machine.write_text(re.sub(r'(name = "cci"\n.*\nlatency_us = )0\.5', r"\g<1>5000", text))
    asked = ("--machine", machine, "--workers", 2, *FAST[:-2], "--out", tmp_path / "out")
    assert called(*asked, app=predict.app).exit_code == 0
    wanted = json.loads((tmp_path / "out" / "run.json").read_text())["rows"]
    rows = [row for row in rows_of(out) if (row["workers"], row["wire.cci.latency_us"]) == ("2", "5000")]
    for row, one in zip(rows, wanted, strict=True):
        assert row["mode"] == one["name"]
        assert all(float(row[key]) == one[key] for key in ("iteration_s", "exposed_s", "compute_s"))


def test_a_sharded_mode_is_what_coarse_predict_gives(tmp_path):
    asked = ("--machine", "fcdp-a40-rdma", "--model", "bert-large", "--gpu", "v100", "--nodes", 2, "--samples", 1,
             "--modes", "allreduce,fcdp")  # fmt: skip
    assert called(*asked, "--vary", "batch=1,2", "--processes", 1, "--out", tmp_path / "sweep").exit_code == 0
    rows = [row for row in rows_of(tmp_path / "sweep") if row["mode"] == "fcdp"]
    for row in rows:
        assert called(*asked, "--batch", row["batch"], "--out", tmp_path / "one", app=predict.app).exit_code == 0
        found = json.loads((tmp_path / "one" / "run.json").read_text())["rows"][1]
        assert float(row["iteration_s"]) == found["iteration_s"]
        assert [*map(float, row["samples_s"].split())] == found["samples_s"]
    assert len(rows) == 2


def test_a_row_has_its_iteration_under_other_inputs_and_of_what_is_varied_none_is_another(swept):
    out, output = swept
    for row in rows_of(out):
        samples = [float(text) for text in row["samples_s"].split()]
        assert len(samples) == 2 + 6
        assert samples[0] < float(row["iteration_s"]) < samples[1], "the fast end, and the slow one"
        assert all(samples[0] < seconds < samples[1] for seconds in samples[2:])
    assert "allreduce and coarse do not cross under any of 8 other inputs either" in output


def test_without_samples_there_is_no_band_and_nothing_is_said_of_one(tmp_path):
    done = called(*FAST, *WORKERS, "--samples", 0, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert all(row["samples_s"] == "" for row in rows_of(tmp_path))
    assert "sets of inputs" not in done.output
    assert "other inputs" not in done.output


def test_the_picture_is_there_and_the_output_says_what_crosses(swept):
    out, output = swept
    assert (out / "crossover.png").read_bytes().startswith(b"\x89PNG")
    assert "resnet50, batch 2, aws-p3 (simulated)" in output
    assert "wire.cci.latency_us = 1: " in output
    assert "faster than" in output
    assert f"wrote {(out / 'rows.csv').as_posix()}" in output


def test_seeds_of_jitter_can_be_varied(tmp_path):
    asked = ("--workers", 2, "--modes", "allreduce", "--vary", "seed=1,2,3")
    assert called(*asked, "--jitter", 0.2, "--out", tmp_path / "jitter").exit_code == 0
    assert len({row["iteration_s"] for row in rows_of(tmp_path / "jitter")}) == 3
    refused = called(*asked, "--out", tmp_path / "none")
    assert refused.exit_code == 2
    assert "--seed means nothing without --jitter" in refused.output


def test_rates_can_be_shown_instead_of_times(swept):
    out, output = swept
    done = called(*FAST, *WORKERS, *LATENCY, "--show", "samples_per_s", "--out", out)
    assert "samples/s" in done.output
    said = [{line for line in text.splitlines() if "never faster" in line} for text in (output, done.output)]
    assert said[0] == said[1] != set()


def test_the_number_of_processes_changes_no_row(swept, tmp_path):
    out, _ = swept
    assert called(*FAST[:-1], "2", *WORKERS, *LATENCY, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "rows.csv").read_bytes() == (out / "rows.csv").read_bytes()


def test_the_order_in_which_rows_come_changes_none(swept, tmp_path, monkeypatch):
    out, _ = swept
    monkeypatch.setattr(sweep, "rows_of", lambda cells, _: map(pool.simulated, reversed(cells)))
    assert called(*FAST, *WORKERS, *LATENCY, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "rows.csv").read_bytes() == (out / "rows.csv").read_bytes()


KILLED = """
import os, signal, sys
from coarse.cli import sweep
from coarse.cli.report.sweep.rows import Folder
add, num_added = Folder.add, []
def add_or_die(folder, row):
    if len(num_added) == 3:
        with open(folder.path / "rows.csv", "a") as file:
            file.write("2,5000,coa")
        os.kill(os.getpid(), signal.SIGKILL)
    num_added.append(row)
    add(folder, row)
Folder.add = add_or_die
sweep.app(sys.argv[1:])
"""


@pytest.mark.parametrize("num_processes", [pytest.param(1, marks=pytest.mark.test_all), 2])
def test_a_sweep_that_was_killed_in_mid_write_goes_on_where_it_was(num_processes, swept, tmp_path, monkeypatch):
    out, _ = swept
    asked = (*WORKERS, *LATENCY, "--out", str(tmp_path))
    command = [sys.executable, "-c", KILLED, *FAST[:-1], str(num_processes), *asked]
    # What a process that outlives it would hold open is waited for.
    killed = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert killed.returncode == -9, killed.stderr
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 3 + 1
    computed = []
    real = pool.simulated
    monkeypatch.setattr(pool, "simulated", lambda cell: computed.append(cell) or real(cell))
    assert called(*FAST, *asked).exit_code == 0
    assert len(computed) == 8 - 3
    assert (tmp_path / "rows.csv").read_bytes() == (out / "rows.csv").read_bytes()
    assert called(*FAST, *asked).exit_code == 0
    assert len(computed) == 8 - 3


def test_rows_that_are_damaged_are_computed_again(swept, tmp_path):
    out, _ = swept
    whole = (out / "rows.csv").read_text()
    lines = whole.splitlines(keepends=True)
    damage = (lines[1][:-9] + "\n", "\0\0\0\n", "\n", '1,1,"\n', lines[2].replace("0.", "nan", 1), lines[3] + lines[3])
    (tmp_path / "question.json").write_text((out / "question.json").read_text())
    (tmp_path / "rows.csv").write_text("".join((lines[0], *damage, "1,1,coarse,0.")))
    assert called(*FAST, *WORKERS, *LATENCY, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "rows.csv").read_text() == whole


def test_another_question_in_the_folder_is_refused_unless_it_is_to_start_anew(tmp_path):
    asked = (*FAST[:3], "allreduce", *FAST[4:], "--out", tmp_path)
    assert called(*asked, "--vary", "workers=1,2").exit_code == 0
    before = (tmp_path / "rows.csv").read_bytes()
    for other in (("--vary", "workers=1,2,4"), ("--vary", "workers=1,2", "--batch", "4")):
        done = called(*asked, *other)
        assert done.exit_code == 2
        assert "has the rows of another question" in done.stderr
        assert "--restart" in done.stderr
        assert (tmp_path / "rows.csv").read_bytes() == before
    assert 'batch was "2", is "4"' in done.stderr
    assert called(*asked, *other, "--restart").exit_code == 0
    assert (tmp_path / "rows.csv").read_bytes() != before


def test_rows_of_nobody_knows_what_are_left_alone(tmp_path):
    (tmp_path / "rows.csv").write_text("mine\n")
    done = called(*FAST, *WORKERS, "--out", tmp_path)
    assert (done.exit_code, (tmp_path / "rows.csv").read_text()) == (2, "mine\n")
    assert "is of no known question" in done.stderr


def test_two_sweeps_do_not_write_one_folder_at_once(tmp_path):
    record = {"varied": ["workers"]}
    first, second = (rows_file.Folder(tmp_path, record, [], restart=False) for _ in range(2))
    with first, pytest.raises(ConfigError, match="another sweep writes there"):
        second.__enter__()
    with rows_file.Folder(tmp_path, record, [], restart=False):
        pass


def test_an_impossible_point_is_a_row_with_its_reason(tmp_path):
    asked = ("--machine", "sdsc-p100", "--model", "bert-large", "--workers", 2, "--iterations", 1, "--processes", 1)
    done = called(*asked, "--vary", "batch=6,7", "--modes", "allreduce", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    possible, impossible = rows_of(tmp_path)
    assert (bool(possible["iteration_s"]), possible["reason"]) == (True, "")
    assert impossible["iteration_s"] == ""
    assert "lower the batch to 6" in impossible["reason"]
    assert "1 of 2 rows are impossible: allreduce: bert-large in fp32" in done.output
    assert "fewer than two points" not in done.output  # there is one mode alone


def test_a_combination_of_settings_that_cannot_be_is_a_row_and_not_the_end(tmp_path):
    asked = ("--vary", "workers=2,3", "--vary", "nodes=1,2", "--modes", "allreduce", *FAST[4:])
    assert called(*asked, "--out", tmp_path).exit_code == 0
    reasons = {(row["workers"], row["nodes"]): row["reason"] for row in rows_of(tmp_path)}
    assert {key for key, reason in reasons.items() if reason} == {("3", "2")}
    assert "multiple of 2" in reasons["3", "2"]


def test_a_sweep_without_one_possible_point_says_so(tmp_path):
    done = called("--vary", "workers=64,99", "--modes", "allreduce", *FAST[4:], "--out", tmp_path)
    assert done.exit_code == 2
    assert "coarse: no point can run: allreduce: " in done.stderr
    assert all("8 GPUs" in row["reason"] for row in rows_of(tmp_path))


def test_a_list_is_swept_row_by_row(tmp_path):
    points = tmp_path / "points.csv"
    points.write_text("workers,straggler,nvlink,modes\n1,none,true,allreduce\n2,1=2,false,allreduce\n")
    asked = ("--iterations", 1, "--processes", 1, "--policy", "devices")
    done = called(*asked, "--list", points, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    first, second = rows_of(tmp_path / "out")
    assert (second["straggler"], second["nvlink"]) == ("1=2", "false")
    assert float(second["compute_s"]) == pytest.approx(1.5 * float(first["compute_s"]), rel=0.01)


def a_config(path, **changes):
    """The config.json of a small GPT-2."""
    entries = {"model_type": "gpt2", "vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    path.write_text(json.dumps(entries | changes))
    return path


def test_a_model_of_ones_own_is_swept_and_its_file_is_part_of_the_question(tmp_path):
    model = a_config(tmp_path / "config.json")
    asked = ("--model", model, "--vary", "sequence=16,65", "--vary", "peak_share=0.2,0.4", *FAST)
    assert called(*asked, "--out", tmp_path / "out").exit_code == 0
    rows = [row for row in rows_of(tmp_path / "out") if row["mode"] == "allreduce"]
    seconds = [float(row["compute_s"]) for row in rows if row["sequence"] == "16"]
    assert seconds[0] == pytest.approx(2 * seconds[1])
    assert all("64" in row["reason"] for row in rows if row["sequence"] == "65")
    a_config(model, n_layer=3)
    done = called(*asked, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"file of {model} was" in done.stderr


def test_an_option_of_a_strategy_of_ones_own_is_varied(tmp_path):
    asked = ("--modes", f"allreduce,{MINE}:DiLoCo", *FAST[4:], "--vary", "DiLoCo.every=1,4")
    assert called(*asked, "--out", tmp_path).exit_code == 0
    rows = {(row["DiLoCo.every"], row["mode"]): row["iteration_s"] for row in rows_of(tmp_path)}
    assert rows["1", "allreduce"] == rows["4", "allreduce"]
    assert float(rows["4", "DiLoCo"]) < float(rows["1", "DiLoCo"])


def test_measured_seconds_are_told_from_those_of_an_iteration(tmp_path):
    done = called(*FAST, "--vary", "iteration_s=0.1,1", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path)
    assert [row["asked iteration_s"] for row in rows] == ["0.1", "0.1", "1", "1"]
    assert all(float(row["compute_s"]) == pytest.approx(float(row["asked iteration_s"])) for row in rows)


BAD = {
    ("--vary", "wrokers=1"): ("wrokers is no setting", "did you mean workers"),
    ("--vary", "latency=1"): ("latency is no setting", "did you mean"),
    ("--vary", "wire.cci.latncy_us=1"): ("wire.cci.latncy_us", "did you mean wire.cci.latency_us"),
    ("--vary", "wire.cci.latency_sec=1"): ("no known unit", "wire.cci.latency_us"),
    ("--vary", "wire.cci.latency_us=1,-1"): ("wire.cci.latency_us = -1", "aws-p3.toml"),
    ("--vary", "wire.cci.latency_us=1:2"): ("FROM:TO:logN",),
    ("--vary", "workers=0,1"): ("workers must lie in 1..65536, got 0",),
    ("--vary", "workers=1.5"): ("workers must be a whole number, got 1.5",),
    ("--vary", "workers=many"): ("workers must be a whole number, got 'many'",),
    ("--vary", "nvlink=2"): ("nvlink must be true or false",),
    ("--vary", "nodes=0"): ("nodes must lie",),
    ("--vary", "model=resnet"): ("unknown model 'resnet'", "resnet50"),
    ("--vary", "gpu=h9000"): ("h9000", "v100"),
    ("--vary", "model=absent.json"): ("absent.json",),
    ("--vary", "sequence=0"): ("sequence must lie in 1..",),
    ("--vary", "peak_share=0.5,1.5"): ("peak_share must lie in", "got 1.5"),
    ("--vary", "iteration_s=0"): ("iteration_s must lie in", "got 0"),
    ("--vary", "iteration_s=soon"): ("iteration_s must be a number, got 'soon'",),
    ("--vary", "precision=fp8"): ("fp32, fp16",),
    ("--vary", "policy=papr"): ("auto, paper, devices",),
    ("--vary", "collective=tree"): ("in_place, ring",),
    ("--vary", "optimizer=adm"): ("sgd, sgd-momentum, adam",),
    ("--vary", "straggler=1"): ("WORKER=FACTOR",),
    ("--vary", "straggler=1=-2"): ("1=-2",),
    ("--vary", "modes=dens"): ("dense, allreduce, coarse",),
    ("--vary", "batch=1,2", "--modes", "luwu"): ("dense, allreduce, coarse", "'luwu'", "ask coarse predict"),
    ("--vary", "machine=aws-p4"): ("aws-p4", "did you mean"),
    ("--vary", "DiLoCo.evry=1", "--modes", f"{MINE}:DiLoCo"): ("has no option 'evry'", "did you mean 'every'?"),
    ("--vary", "DiLoCo.every=0", "--modes", f"{MINE}:DiLoCo"): ("every must be at least 1, got 0",),
    ("--vary", "workers=1", "--vary", "workers=2"): ("workers is varied twice",),
    ("--vary", "workers=1", "--workers", "2"): ("leave --workers out",),
    ("--vary", "workers=1", "--batch", "0"): ("--batch must lie in 1..",),
    ("--vary", "workers=1", "--processes", "-1"): ("--processes must lie in 0..",),
    ("--vary", "workers=1", "--machine", "absent.toml"): ("absent.toml", "check the path"),
    ("--list", "absent.csv"): ("absent.csv", "check the path"),
    (): ("nothing is varied",),
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_ends_with_2_and_one_message_before_anything_is_written(arguments, tmp_path):
    done = called(*arguments, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    (message,) = [line for line in done.stderr.splitlines() if line]
    assert message.startswith("coarse: ")
    assert all(part in message for part in BAD[arguments])
    assert not (tmp_path / "out").exists()


def test_parquet_without_pyarrow_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = called(*FAST, *WORKERS, "--parquet", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "--parquet needs pyarrow" in done.stderr
    assert not (tmp_path / "out").exists()


def test_parquet_gets_the_rows_with_numbers_as_numbers(swept, monkeypatch):
    out, _ = swept
    written = {}
    pyarrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    pyarrow.table = dict
    parquet.write_table = lambda table, path: written.update({path.name: table})
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    done = called(*FAST, *WORKERS, *LATENCY, "--parquet", "--out", out)
    assert done.exit_code == 0, done.output
    table = written["rows.parquet"]
    assert list(table) == list(rows_of(out)[0])
    assert table["workers"] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert table["iteration_s"] == [float(row["iteration_s"]) for row in rows_of(out)]


def test_the_guide_names_only_options_that_exist():
    page = (Path(__file__).parents[3] / "docs" / "sweep.md").read_text()
    known = {f"--{name.replace('_', '-')}" for name in signature(sweep.sweep).parameters} | {"--list", "--no-nvlink"}
    assert set(re.findall(r"--[a-z][a-z-]*", page)) <= known
