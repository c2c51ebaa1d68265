"""Rows say what was measured, how, and on what."""

import json

import pytest

from experiments.gpt.rows import (
    Probe,
    StepRecord,
    Summary,
    document,
    exposed_s,
    median_step_s,
    read_run,
    run_path,
    write_json,
)


def record(step, seconds, *, settled=True):
    phases = {"forward_s": seconds / 2, "backward_s": seconds / 4, "wait_s": seconds / 8, "optimizer_s": seconds / 8}
    return StepRecord(step=step, loss=3.0, begin_s=float(step), settled=settled, **phases)


def summary(**changes):
    values = {
        "mode": "coarse", "workers": 2, "steps": 3, "first_loss": 5.0, "last_loss": 3.0, "validation_loss": 3.5,
        "step_s": 0.5, "exposed_s": 0.1, "bytes_per_step": 1000,
    }  # fmt: skip
    return Summary(**{**values, **changes})


def test_the_phases_fill_the_step():
    assert record(0, 2.0).step_s == 2.0


def test_steps_that_have_not_settled_do_not_count_for_the_median():
    assert median_step_s([record(0, 9.0, settled=False), record(1, 1.0), record(2, 2.0), record(3, 3.0)]) == 2.0


def test_a_median_is_there_before_any_step_has_settled():
    assert median_step_s([record(0, 4.0, settled=False)]) == 4.0


def test_exposed_communication_is_the_step_minus_the_step_without_synchronisation():
    records = [record(step, 0.5) for step in range(4)]
    assert exposed_s(records, [Probe(1, 0.4), Probe(3, 0.2)], window=2) == pytest.approx(0.2)


def test_a_machine_that_becomes_slower_does_not_show_as_communication():
    records = [record(step, 1.0 + step) for step in range(8)]
    probes = [Probe(step, 1.5 + step) for step in range(0, 8, 2)]  # each between two steps
    assert exposed_s(records, probes, window=1) == 0.0


def test_steps_that_have_not_settled_are_not_compared_with_a_probe():
    records = [record(0, 9.0, settled=False), record(1, 1.0)]
    assert exposed_s(records, [Probe(1, 0.75)], window=2) == 0.25
    assert exposed_s(records[:1], [Probe(0, 0.75)], window=2) is None


def test_step_exposed_and_unsynchronised_time_fit_together():
    assert summary().unsynchronised_step_s == pytest.approx(0.4)
    assert summary().exposed_share == pytest.approx(0.2)


def test_exposed_communication_that_nobody_probed_is_absent():
    assert exposed_s([record(0, 1.0)], [], window=2) is None
    assert summary(exposed_s=None).unsynchronised_step_s is None
    assert summary(exposed_s=None).exposed_share is None


def test_a_document_says_kind_command_machine_and_versions():
    found = document(summary(), [record(0, 1.0)], {"seed": 1})
    assert found["kind"] == found["summary"]["kind"] == "measured"
    assert found["command"].startswith("python ")
    assert found["machine"]["num_cores"] >= 1
    assert found["machine"]["memory_bytes"] > 0
    assert found["versions"]["python"]
    assert found["settings"] == {"seed": 1}
    assert found["steps"][0]["step_s"] == 1.0


def test_a_run_is_read_back_worker_by_worker(tmp_path):
    for worker in range(2):
        write_json(run_path(tmp_path, "coarse", worker), document(summary(), [record(worker, 1.0)], {}))
    assert [run["steps"][0]["step"] for run in read_run(tmp_path, "coarse")] == [0, 1]


def test_a_run_that_did_not_finish_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"coarse-worker0\.json is missing: the run in mode 'coarse'"):
        read_run(tmp_path, "coarse")


def test_no_row_is_written_that_json_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "rows.json", {"loss": float("nan")})
    assert not (tmp_path / "rows.json").exists()


def test_writing_rows_leaves_nothing_but_the_file(tmp_path):
    write_json(tmp_path / "rows.json", {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert json.loads((tmp_path / "rows.json").read_text()) == {"loss": 1.0}
