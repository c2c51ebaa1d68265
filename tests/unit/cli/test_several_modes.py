"""`coarse run --modes`: one run for the times of compute, one in each mode by these, and what is compared."""

import json
from pathlib import Path

import pytest

from coarse.cli.report.run import read_run
from coarse.cli.several_modes import run_in
from coarse.errors import ConfigError
from coarse.protocol.config import Config, EmulateSettings

TIMES_FILE = "compute.json"
MODES = ["coarse", "a.py:Mine", "b.py:Mine"]


class Runs:
    """Scripts that take `seconds` an iteration on one worker and a second more on the other, in any mode."""

    def __init__(self, tmp_path, seconds=None):
        self.tmp_path, self.seconds, self.begun = tmp_path, seconds or {}, []
        self.config = Config(emulate=EmulateSettings(machine="cxl-cz120", out=str(tmp_path)))

    def go(self, modes=MODES, config=None):
        return run_in(modes, {"machine": "cxl-cz120"}, config or self.config, self.run)

    def run(self, mode, asked):
        self.begun.append((mode, asked))
        if "save_compute" in asked:
            Path(asked["save_compute"]).touch()
        seconds = self.seconds.get(asked["out"].rpartition("/")[2].partition("-")[0], [1.0])
        if seconds is None:
            return 0
        rows = [
            {"worker": worker, "begin_s": 0.0, "end_s": each + worker, "compute_s": each, "exposed_s": float(worker)}
            for worker in range(2)
            for each in seconds
        ]
        row = {"name": mode, "policy": "", "iteration_s": 1.0, "compute_s": 1.0, "exposed_s": 0.0, "idle_s": 0.0}
        found = {"kind": "emulated", "title": "2 workers", "inputs": {}, "iterations": rows, "rows": [row][: len(rows)],
                 "timelines": []}
        folder = self.tmp_path / asked["out"].rpartition("/")[2]
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(json.dumps(found))
        return len(seconds) // 100


def test_the_last_iterations_that_all_modes_have_are_compared_by_one_file_of_times(tmp_path):
    runs = Runs(tmp_path, {"coarse": [90.0, 2.0, 4.0], "a.py": [5.0, 7.0], "b.py": [1.0, 3.0]})
    assert runs.go() == 0
    times = str(tmp_path / TIMES_FILE)
    assert [mode for mode, _ in runs.begun] == ["coarse", *MODES]
    assert [asked.get("save_compute") for _, asked in runs.begun] == [times, None, None, None]
    assert [asked.get("compute") for _, asked in runs.begun] == [None, times, times, times]
    assert len({asked["out"] for _, asked in runs.begun}) == 4
    compared = read_run(tmp_path)
    assert [row.name for row in compared.results] == ["coarse", "Mine", "Mine"]
    first = compared.results[0]
    assert (first.iteration_s, first.compute_s, first.exposed_s) == (3.5, 3.0, 0.5)
    assert compared.title.endswith("the last 2 iterations")


def test_sharded_modes_have_a_file_of_times_of_their_own(tmp_path):
    runs = Runs(tmp_path)
    assert runs.go(["coarse", "fsdp", "allreduce", "fcdp"]) == 0
    told = [(mode, Path(asked.get("compute", asked.get("save_compute"))).name) for mode, asked in runs.begun]
    assert told == [
        ("coarse", "compute.json"), ("fsdp", "compute-sharded.json"),
        ("coarse", "compute.json"), ("fsdp", "compute-sharded.json"), ("allreduce", "compute.json"),
        ("fcdp", "compute-sharded.json"),
    ]  # fmt: skip
    assert [row.name for row in read_run(tmp_path).results] == ["coarse", "fsdp", "allreduce", "fcdp"]


def test_given_times_are_taken_and_nothing_is_measured(tmp_path):
    runs = Runs(tmp_path)
    given = Config(emulate=EmulateSettings(machine="cxl-cz120", out=str(tmp_path), compute="step.json"))
    assert runs.go(config=given) == 0
    assert [asked["compute"] for _, asked in runs.begun] == ["step.json"] * 3


def test_a_mode_without_a_result_is_left_out_and_said(tmp_path, capsys):
    runs = Runs(tmp_path, {"coarse": []})
    assert runs.go() == 0
    assert len(read_run(tmp_path).results) == 2
    assert "Left out coarse: its run has no result." in capsys.readouterr().out


def test_a_status_ends_all_and_a_script_that_never_began_is_no_run_of_before(tmp_path):
    runs = Runs(tmp_path, {"measured": [1.0] * 700})
    assert runs.go() == 7
    assert len(runs.begun) == 1
    assert Runs(tmp_path).go() == 0
    with pytest.raises(ConfigError, match=r"mode a\.py:Mine: the script has ended and .*run\.json was not written"):
        Runs(tmp_path, {"a.py": None}).go(["coarse", "a.py:Mine"])
