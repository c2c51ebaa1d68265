"""The demo shows what its runs left behind, and fails when they disagree."""

import json
import sys

import pytest

from experiments.comparison import comparison_rows
from experiments.demo import DemoError, check_losses, run_command, start
from experiments.figures import draw_losses, draw_timeline, median_phases_s
from experiments.gpt.rows import StepRecord, Summary, document
from experiments.step_trace import write_traces

PNG = b"\x89PNG"


def run(mode, losses):
    """What a worker leaves behind whose phases take a second each."""
    seconds = {"forward_s": 1.0, "backward_s": 1.0, "wait_s": 1.0, "optimizer_s": 1.0}
    records = [
        StepRecord(step=step, loss=loss, begin_s=100 + 4.0 * step, settled=True, **seconds)
        for step, loss in enumerate(losses)
    ]
    summary = Summary(
        mode=mode, workers=1, steps=len(losses), first_loss=losses[0], last_loss=losses[-1], validation_loss=3.0,
        step_s=4.0, exposed_s=None if mode == "single" else 1.0, bytes_per_step=0,
    )  # fmt: skip
    return document(summary, records, {})


@pytest.fixture
def runs():
    single = run("single", [5.0, 4.0, 3.0])
    allreduce, coarse = (run(mode, [5.0, 4.0, 3.0]) for mode in ("allreduce", "coarse"))
    return {"single process": [single], "all-reduce": [allreduce] * 2, "coarse": [coarse] * 2}


def test_equal_losses_pass(runs):
    check_losses(comparison_rows({name: documents[0] for name, documents in runs.items()}, "single process"))


def test_a_run_that_trains_something_else_fails_by_name():
    rows = comparison_rows({"single process": run("single", [5.0]), "coarse": run("coarse", [5.1])}, "single process")
    with pytest.raises(DemoError, match=r"at most 1e-04 \(relative\), but differs: coarse by 2\.0e-02"):
        check_losses(rows)


def test_a_run_that_ends_badly_is_named_with_its_status():
    with pytest.raises(DemoError, match="coarse: ended with status 3"):
        start("coarse", [sys.executable, "-c", "raise SystemExit(3)"])


def test_only_the_single_process_runs_without_the_launcher(tmp_path):
    assert "coarse" not in run_command("single", 5, tmp_path)
    launched = run_command("allreduce", 5, tmp_path)
    assert launched[1:4] == ["-m", "coarse", "run"]
    assert launched[launched.index("--mode") + 1] == "allreduce"


def test_a_policy_reaches_the_mode_that_has_one_alone(tmp_path):
    launched = run_command("coarse", 5, tmp_path, "paper")
    assert launched[launched.index("--policy") + 1] == "paper"
    assert all("--policy" not in run_command(mode, 5, tmp_path, "paper") for mode in ("single", "allreduce", "dense"))


def test_pictures_are_drawn(runs, tmp_path):
    draw_losses({name: documents[0] for name, documents in runs.items()}, "single process", tmp_path / "loss.png")
    draw_timeline(runs, tmp_path / "timeline.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
    assert (tmp_path / "timeline.png").read_bytes().startswith(PNG)


def test_the_trace_holds_every_phase_of_every_worker_and_each_run_begins_at_zero(runs, tmp_path):
    write_traces(runs, tmp_path, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len({span["pid"] for span in spans}) == 5
    assert len(spans) == 5 * 3 * (1 + 4)
    for worker in {span["pid"] for span in spans}:
        assert min(span["ts"] for span in spans if span["pid"] == worker) == 0.0


def test_traces_of_single_workers_have_the_names_of_their_rows(runs, tmp_path):
    write_traces(runs, tmp_path, tmp_path / "trace.json")
    wanted = {"trace.json", "single.trace.json", "single-worker0.trace.json"}
    for mode in ("allreduce", "coarse"):
        wanted |= {f"{mode}.trace.json", f"{mode}-worker0.trace.json", f"{mode}-worker1.trace.json"}
    assert {path.name for path in tmp_path.iterdir()} == wanted


def test_the_phases_of_the_median_step_fill_it_so_that_the_line_lies_as_far_from_its_end_as_the_table_says():
    document = run("coarse", [5.0] * 3)
    for row, phase in zip(document["steps"], ("forward", "backward", "wait"), strict=True):
        row[f"{phase}_s"] += 6.0  # each in another step: no phase's median shows it, but that of steps does
    document["summary"]["step_s"] = 10.0
    phases_s = median_phases_s([document, document])
    assert sum(phases_s.values()) == pytest.approx(10.0)
    assert phases_s["forward"] == phases_s["wait"]
    document["summary"]["step_s"] = 4.0
    assert median_phases_s([document])["forward"] == pytest.approx(1.0)
