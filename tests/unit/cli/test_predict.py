"""`coarse predict` and `coarse report`, from the command line to the files."""

import json
import re
from html.parser import HTMLParser
from inspect import signature
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coarse.cli import calibrate, predict, shard
from coarse.cli.report import command as report
from coarse.hardware.presets import preset_path

APPS = {"predict": predict.app, "report": report.app}
MODES = ("allreduce", "coarse")


def called(command, *arguments):
    """The result of one command line."""
    return CliRunner().invoke(APPS[command], [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """The folder and the output of one prediction."""
    out = tmp_path_factory.mktemp("predicted")
    asked = ("--workers", 2, "--policy", "devices", "--modes", ",".join(MODES), "--straggler", "1=1.5", "--out", out)
    done = called("predict", "--machine", "aws-p3", "--model", "resnet50", *asked)
    assert done.exit_code == 0, done.output
    return out, done.output


def test_the_table_names_every_mode_and_the_kind_of_its_numbers(predicted):
    _, output = predicted
    for mode in MODES:
        (row,) = [line for line in output.splitlines() if line.startswith(f" {mode} ")]
        assert "simulated" in row


def test_the_rows_add_up(predicted):
    out, _ = predicted
    rows = json.loads((out / "run.json").read_text())["rows"]
    assert [row["name"] for row in rows] == list(MODES)
    for row in rows:
        parts = (row["compute_s"], row["exposed_s"], row["idle_s"])
        assert row["iteration_s"] == pytest.approx(sum(parts))
        assert row["kind"] == "simulated"
        assert row["speed_up"] == pytest.approx(rows[0]["iteration_s"] / row["iteration_s"])
        assert [nbytes for _, nbytes in row["link_bytes"]] == sorted((n for _, n in row["link_bytes"]), reverse=True)


def test_the_output_gives_ranges_and_says_of_what(predicted):
    out, output = predicted
    run = json.loads((out / "run.json").read_text())
    for row in run["rows"]:
        fast_s, slow_s, *others_s = row["samples_s"]
        assert fast_s < row["iteration_s"] < slow_s
        assert len(others_s) == 6
        assert all(fast_s < seconds < slow_s for seconds in others_s)
        assert f"{fast_s * 1e3:.3g}-{slow_s * 1e3:.3g}" in output  # below a second
    note = next(note for note in run["notes"] if note.startswith("Ranges: 8 more simulations with "))
    for part in ("compute 0.9 to 1.1", "rates 0.9 to 1.1", "latencies 0.5 to 2", "wire.cci.latency_us 0.14 to 1"):
        assert part in note
    page = (out / "report.html").read_text()
    assert f"{run['rows'][0]['samples_s'][0] * 1e3:.3g}-" in page


def test_numbers_of_a_machine_that_have_no_source_are_said_to_have_none(tmp_path):
    bare = [line.partition(" #")[0] for line in preset_path("cxl-niagara2").read_text().splitlines()]
    (tmp_path / "m.toml").write_text("\n".join(line for line in bare if not line.startswith("#")))
    asked = ("predict", "--modes", "allreduce", "--workers", 2, "--samples", 0, "--out", tmp_path, "--machine")
    for machine, is_said in ((tmp_path / "m.toml", True), ("cxl-niagara2", False)):
        assert called(*asked, machine).exit_code == 0
        notes = json.loads((tmp_path / "run.json").read_text())["notes"]
        assert any("m.toml:" in note and "lines whose numbers have no source" in note for note in notes) == is_said


def test_an_own_interval_widens_the_range_and_none_asked_for_is_none(tmp_path):
    asked = ("predict", "--modes", "allreduce", "--workers", 2, "--out", tmp_path)
    spans = []
    for more in (("--samples", 2), ("--samples", 2, "--interval", "compute=0.5:2"), ("--samples", 0)):
        assert called(*asked, *more).exit_code == 0
        (row,) = json.loads((tmp_path / "run.json").read_text())["rows"]
        spans.append(max(row["samples_s"], default=0) - min(row["samples_s"], default=0))
    assert spans[1] > 3 * spans[0] > 0
    assert spans[2] == 0


def test_a_straggler_keeps_the_others_idle(predicted):
    out, _ = predicted
    rows = json.loads((out / "run.json").read_text())["rows"]
    compute_s = rows[0]["compute_s"]  # of workers that take 1 and 1.5 times as long
    assert rows[0]["idle_s"] == pytest.approx(compute_s / 1.25 * 0.5 / 2, rel=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_spans_of_a_lane_of_the_trace_never_cross(predicted, mode):
    out, _ = predicted
    events = json.loads((out / f"{mode}.trace.json").read_text())["traceEvents"]
    lanes = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(sorted(spans)))
    categories = {event["cat"] for event in events if event["ph"] == "X"}
    assert {"phase", "sync", "ring"} <= categories
    assert any(event["ph"] == "C" and event["args"]["gb_per_s"] > 0 for event in events)


class Resources(HTMLParser):
    """What a page would fetch, and where its links lead."""

    def __init__(self):
        super().__init__()
        self.asked, self.links = [], []

    def handle_starttag(self, tag, attrs):
        values = [value for name, value in attrs if name in ("src", "href", "data", "srcset", "action")]
        if tag == "a":
            self.links += values
        else:
            self.asked += values


def test_the_page_needs_nothing_beside_itself(predicted):
    out, _ = predicted
    page = (out / "report.html").read_text()
    resources = Resources()
    resources.feed(page)
    assert len(resources.asked) == 1 + 2 * len(MODES)
    assert all(value.startswith("data:image/png;base64,") for value in resources.asked)
    assert "url(" not in page
    assert "simulated" in page


def test_the_page_links_to_the_trace_of_each_mode(predicted):
    out, _ = predicted
    resources = Resources()
    resources.feed((out / "report.html").read_text())
    links = [link for link in resources.links if not link.startswith("https://ui.perfetto.dev")]
    assert links == [f"{mode}.trace.json" for mode in MODES]
    assert all((out / link).is_file() for link in links)


def test_timelines_know_places_and_show_the_nvlinks_of_the_ring(predicted):
    out, _ = predicted
    timelines = json.loads((out / "run.json").read_text())["timelines"]
    places = [dict(timeline["places"]) for timeline in timelines]
    assert places[0] == {"worker 0": "gpu0", "worker 1": "gpu2"}
    assert places[1].keys() == {"worker 0", "worker 1", "device 0", "device 1"}
    assert len(set(places[1].values())) == 4
    for timeline in timelines:
        shares = [link["nbytes"] / link["capacity"][0][1] for link in timeline["links"]]
        assert shares == sorted(shares, reverse=True)
        kinds = [(link["kind"], link["capacity"][0][1]) for link in timeline["links"]]
        assert len(set(kinds)) == len(kinds)
    (nvlink,) = [link for link in timelines[0]["links"] if link["kind"] == "NVLink up or down"]
    assert {nvlink["name"], *nvlink["others"]} == {"gpu0 - gpu2 up", "gpu0 - gpu2 down"}
    assert nvlink["carries"] == ["ring of workers"]


def test_report_draws_the_same_again_from_the_folder_alone(predicted):
    out, _ = predicted
    before = {path.name for path in out.iterdir()}
    for picture in out.glob("*.png"):
        picture.unlink()
    (out / "report.html").unlink()
    assert called("report", out).exit_code == 0
    assert {path.name for path in out.iterdir()} == before


def test_report_draws_the_demo_too(tmp_path):
    times = {"forward_s": 0.01, "backward_s": 0.02, "wait_s": 0.005, "optimizer_s": 0.002, "step_s": 0.037}
    steps = [{"step": number, "begin_s": 0.037 * number, "settled": True, **times} for number in range(6)]
    machine = {"processor": "a processor", "num_cores": 2}
    document = {
        "rows": [],
        "machine": machine,
        "runs": {"single process": [{"steps": steps}], "coarse": [{"steps": steps}] * 2},
    }
    (tmp_path / "rows.json").write_text(json.dumps(document))
    done = called("report", tmp_path)
    assert done.exit_code == 0, done.output
    assert "measured" in done.output
    assert "The demo: one training on a processor, 2 cores" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "timeline-single-process.png").is_file()
    assert not list(tmp_path.glob("bandwidth-*.png"))


def test_a_link_that_degrades_is_noticed_and_the_output_says_when_and_at_what_cost(tmp_path):
    lost = ("--degrade", "socket0 crossing=0.1@0.2", "--iterations", 12, "--profile-every", 3)
    asked = ("--workers", 2, "--batch", 16, "--policy", "devices", "--modes", "coarse", "--out", tmp_path)
    done = called("predict", "--machine", "aws-p3", "--collective", "ring", *asked, *lost)
    assert done.exit_code == 0, done.output
    output = " ".join(done.output.split())
    assert "in order: 4 of 46.26, " in output  # the fifth is hit
    assert "decided anew before iteration 6 (100% of the bytes to devices local)" in output
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["inputs"]["degraded links"] == "socket0 crossing=0.1@0.2"
    assert run["rows"][0]["iteration_s"] == pytest.approx(0.0463, rel=0.01)  # as before


def test_jitter_is_the_same_for_a_seed_and_the_output_says_what_it_makes_of_all_iterations(tmp_path):
    asked = ("--workers", 2, "--modes", "allreduce", "--iterations", 5, "--jitter", 0.2, "--out", tmp_path)
    first, again, other = (called("predict", *asked, "--seed", seed) for seed in (3, 3, 4))
    assert first.output == again.output != other.output
    said = " ".join(first.output.split())
    least, most = map(float, re.search(r"5 iterations of allreduce: .* in the mean, (\S+) to (\S+),", said).groups())
    assert 0 < least < most
    assert "with jitter 0.2 of seed 3" in said


def test_of_a_straggler_among_more_than_64_the_mean_over_all_idles(tmp_path):
    asked = ("--workers", 128, "--nodes", 32, "--modes", "allreduce", "--out", tmp_path)
    called("predict", *asked, "--straggler", "100=1.5")
    (row,) = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert row["idle_s"] == pytest.approx(row["compute_s"] * (1.5 * 128 / (127 + 1.5) - 1))
    assert row["iteration_s"] == pytest.approx(row["compute_s"] + row["idle_s"] + row["exposed_s"])


def test_a_second_prediction_leaves_nothing_of_the_first(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "dense.trace.json").write_text("{}")
    (tmp_path / "mine.txt").write_text("kept")
    assert called("predict", "--workers", 2, "--modes", "allreduce", "--out", tmp_path).exit_code == 0
    assert not (tmp_path / "dense.trace.json").exists()
    assert (tmp_path / "mine.txt").exists()


def test_modes_that_the_machine_lacks_are_left_out_with_the_reason(tmp_path):
    text = preset_path("aws-p3").read_text()
    machine = tmp_path / "machine.toml"
    begin, end = text.index("[coherence]"), text.index("[[wire]]")
    machine.write_text(text[:begin] + text[end:])
    asked = ("--machine", machine, "--workers", 2, "--policy", "devices", "--out", tmp_path / "out")
    done = called("predict", *asked)
    assert done.exit_code == 0
    assert "Left out dense: there is no store path" in done.output
    assert called("predict", *asked, "--modes", "dense").exit_code == 2


def test_a_mode_whose_gpu_has_too_little_memory_is_left_out_and_says_what_would_fit(tmp_path):
    asked = ("--machine", "sdsc-p100", "--model", "bert-large", "--workers", 2, "--policy", "devices", "--samples", 0)
    done = called("predict", *asked, "--batch", 7, "--out", tmp_path)
    assert done.exit_code == 0
    assert "Left out allreduce: bert-large in fp32 with adam at batch 7 needs" in done.output
    assert "lower the batch to 6 or keep optimizer states in memory devices" in done.output
    assert "of 16.0 GiB (P100, adam)" in done.output
    refused = called("predict", *asked, "--batch", 7, "--modes", "allreduce", "--out", tmp_path)
    assert (refused.exit_code, refused.stderr[:24]) == (2, "coarse: mode allreduce: ")
    assert called("predict", *asked, "--batch", 6, "--modes", "allreduce", "--out", tmp_path).exit_code == 0


BAD = {
    ("--optimizer", "adm"): ("sgd, sgd-momentum, adam",),
    ("--machine", "aws-p4"): ("aws-p3", "did you mean"),
    ("--machine", "absent.toml"): ("absent.toml", "check the path"),
    ("--model", "resnet"): ("resnet50",),
    ("--gpu", "h9000"): ("h9000", "v100"),
    ("--batch", "0"): ("--batch",),
    ("--workers", "0"): ("--workers",),
    ("--workers", "99"): ("8 GPUs",),
    ("--devices", "-1"): ("--devices",),
    ("--workers", "3", "--nodes", "2"): ("multiple of 2",),
    ("--nodes", "2", "--modes", "dense"): ("--nodes",),
    ("--modes", "dens"): ("dense, allreduce, coarse",),
    ("--modes", ""): ("dense, allreduce, coarse",),
    ("--policy", "papr"): ("auto, paper, devices",),
    ("--collective", "tree"): ("in_place, ring", "'tree'"),
    ("--ring-slow-down", "0.9"): ("--ring-slow-down must lie in 1..100, got 0.9",),
    ("--ring-slow-down", "nan"): ("--ring-slow-down must lie in 1..100, got nan",),
    ("--precision", "fp8"): ("fp32, fp16",),
    ("--straggler", "9=2"): ("9=2", "0..3"),
    ("--samples", "-1"): ("--samples must lie in 0..10000, got -1",),
    ("--interval", "compute=2:1"): ("--interval compute=2:1", "must go up"),
    ("--interval", "compute"): ("KEY=LOW:HIGH", "got 'compute'"),
    ("--interval", "speed=1:2"): ("there is no input speed", "compute, rates, latencies"),
    ("--interval", "wire.cci.latency_us=3:4"): ("must hold its value, 0.5, got 3 to 4",),
    ("--straggler", "1=nan"): ("1=nan",),
    ("--straggler", "1"): ("WORKER=FACTOR",),
    ("--straggler", "1=2", "--straggler", "1=3"): ("twice",),
    ("--jitter", "-0.1"): ("--jitter must lie in 0..10", "-0.1"),
    ("--jitter", "nan"): ("--jitter must lie in 0..10", "nan"),
    ("--jitter", "0.1", "--seed", "-1"): ("seed must lie in",),
    ("--seed", "3"): ("--seed means nothing without --jitter",),
    ("--iterations", "0"): ("--iterations",),
    ("--profile-every", "-1"): ("--profile-every",),
    ("--degrade", "gpu0 up"): ("LINK=FACTOR@SECONDS", "gpu0 up"),
    ("--degrade", "gpu0 upp=0.5@1"): ("gpu0 upp", "the nearest", "gpu0 up"),
    ("--degrade", "gpu0 up=0@1"): ("factor must be above 0",),
    ("--degrade", "gpu0 up=0.5@-1"): ("at least 0, got -1",),
    ("--workers", "256", "--nodes", "64", "--degrade", "gpu0 up=0.5@1"): ("with fewer workers",),
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_ends_with_2_and_one_message(arguments, tmp_path):
    done = called("predict", *arguments, "--out", tmp_path)
    assert done.exit_code == 2
    (message,) = [line for line in done.stderr.splitlines() if line]
    assert message.startswith("coarse: ")
    assert all(part in message for part in BAD[arguments])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("was", "becomes", "line"),
    [("fp32_tflop_per_s", "fp32_tflops", 1), ("= 15.7", "= -1", 1), ("[accelerator]", "[accelerator", 0)],
)
def test_a_bad_machine_file_is_named_with_line_and_key(was, becomes, line, tmp_path):
    text = preset_path("aws-p3").read_text()
    bad = tmp_path / "bad.toml"
    bad.write_text(text.replace(was, becomes, 1))
    number = text[: text.index(was)].count("\n") + 1
    done = called("predict", "--machine", bad, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"{bad}:{number}: " in done.stderr


@pytest.mark.parametrize("content", [None, "{}", "[]", "no JSON", '{"rows": [], "inputs": {}}'])
def test_a_folder_without_a_run_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    done = called("report", tmp_path)
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_guide_names_only_options_that_exist():
    page = (Path(__file__).parents[3] / "docs" / "predict.md").read_text()
    commands = (predict.predict_command, shard.shard, report.report, calibrate.calibrate)
    options = {f"--{name.replace('_', '-')}" for command in commands for name in signature(command).parameters}
    known = options | {"--no-nvlink", "--no-backward-prefetch", "--save", "--vary", "--no-build-isolation"}
    assert set(re.findall(r"--[a-z][a-z-]*", page)) <= known
