"""Traces by the command line: predicted, swept, refused."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from coarse.cli import predict, shard, sweep
from coarse.cli.own_model.source import own_model
from tests.support.chakra_schema import collective, compute, written


def called(app, *arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def predicted(out, *arguments):
    """A quick prediction: what was printed, and its record."""
    done = called(predict.app, "--workers", 2, "--modes", "allreduce", "--out", out, *arguments)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split()), json.loads((out / "run.json").read_text())


def refused(*arguments):
    """The one message of a command line that ends with 2."""
    done = called(predict.app, "--workers", 2, "--modes", "allreduce", *arguments)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def trace(tmp_path):
    """A Chakra trace: 2 ms of forward, 4 ms of backward, 100 MB in two gradients."""
    nodes = [
        compute(0, "forward", 2000), compute(1, "backward 1", 1000, 0), collective(2, "last", 60_000_000, 1),
        compute(3, "backward 0", 3000, 1), collective(4, "first", 40_000_000, 3),
    ]  # fmt: skip
    path = tmp_path / "mine.0.et"
    path.write_bytes(written(nodes))
    return path


@pytest.mark.parametrize("mode", ["dense", "allreduce", "coarse"])
def test_a_trace_is_predicted_in_every_mode_with_its_own_times(trace, tmp_path, mode):
    output, run = predicted(tmp_path / "out", "--model", trace, "--modes", mode)
    assert run["rows"][0]["compute_s"] == pytest.approx(6e-3)
    assert "mine, batch 1, 2 workers of aws-p3" in output
    assert "25,000,000 parameters in 2 gradients of its only step" in output
    assert "Compute times (the traced worker, fp32): measured in trace; " in output
    assert "2 ms of forward and 4 ms of backward" in run["inputs"]["compute times"]
    assert "A trace says nothing of activations" in output


def test_iteration_s_scales_the_times_of_a_trace(trace, tmp_path):
    output, run = predicted(tmp_path / "out", "--model", trace, "--iteration-s", 0.06, "--batch", 16)
    assert run["rows"][0]["compute_s"] == pytest.approx(0.06)
    assert "scaled by 10 to 0.06 s an iteration (--iteration-s)" in output
    assert "mine, batch 16, " in output


@pytest.mark.test_all
def test_the_trace_of_a_prediction_predicts_the_same(trace, tmp_path):
    """Also in the folder from which the trace is read, and which the prediction clears."""
    _, wanted = predicted(tmp_path / "out", "--model", trace, "--modes", "coarse,allreduce", "--straggler", "1=2")
    for mode in ("allreduce", "coarse"):
        file = tmp_path / "out" / f"{mode}.trace.json"
        asked = ("--model", file, "--modes", "coarse,allreduce", "--straggler", "1=2")
        output, found = predicted(tmp_path / "out", *asked)
        for before, after in zip(wanted["rows"], found["rows"], strict=True):
            assert after["iteration_s"] == pytest.approx(before["iteration_s"], rel=1e-6)
        assert "simulated in trace" in output
        assert "measured" not in output


def test_a_trace_whose_operations_are_counted_computes_at_a_share_of_the_peak(tmp_path):
    nodes = [compute(0, "forward", 0), compute(1, "backward", 0, 0), collective(2, "w", 4000, 1)]
    for node, count in zip(nodes, (10**9, 2 * 10**9), strict=False):
        node.attr.add(name="num_ops", int64_val=count)
    path = tmp_path / "counted.et"
    path.write_bytes(written(nodes))
    output, run = predicted(tmp_path / "out", "--model", path, "--peak-share", 0.5)
    assert run["rows"][0]["compute_s"] == pytest.approx(3e9 / (0.5 * 15.7e12))
    assert "assumption; the operations counted in" in output
    assert predicted(tmp_path / "out", "--model", path, "--iteration-s", 2)[1]["rows"][0]["compute_s"] == 2


def test_a_sweep_reads_a_trace_and_counts_its_step_as_one_sample(trace, tmp_path):
    asked = ("--model", trace, "--modes", "allreduce", "--vary", "workers=1,2", "--out", tmp_path / "sweep")
    done = called(sweep.app, *asked, "--processes", 1)
    assert done.exit_code == 0, done.output
    rows = [line.split(",") for line in (tmp_path / "sweep" / "rows.csv").read_text().splitlines()]
    head = rows[0]
    one = dict(zip(head, rows[1], strict=True))
    assert float(one["iteration_s"]) == pytest.approx(6e-3)
    assert float(one["samples_per_s"]) == pytest.approx(1 / 6e-3)
    done = called(sweep.app, "--model", trace, "--vary", "batch=1,2", "--out", tmp_path / "other")
    assert done.exit_code == 2
    assert "the times of" in done.stderr
    assert "are those of the one batch that was traced" in done.stderr


def test_sharded_training_of_a_trace_is_refused(trace, tmp_path):
    done = called(shard.app, "--model", trace, "--out", tmp_path / "rows.json")
    assert done.exit_code == 2
    assert "is a trace" in done.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--sequence", 8), "--sequence means nothing for the trace"),
        (("--peak-share", 0.5), "--peak-share means nothing for a trace, which has the times"),
        (("--gpu", "v100"), "--gpu means nothing for a trace, which has the times"),
        (("--step", 3), "--step is of traces with ProfilerStep marks, and this is a Chakra trace"),
        (("--iteration-s", 1, "--peak-share", 0.5), "--peak-share means nothing beside --iteration-s"),
        (("--iteration-s", 0), "--iteration-s must lie in"),
    ],
)
def test_options_that_a_trace_leaves_no_meaning_are_refused(trace, option, said):
    assert said in refused("--model", trace, *option)


def test_step_is_of_traces_alone():
    assert "--step is of a trace, and --model resnet50 is none" in refused("--step", 1)


def worker_events(**gradient):
    """A trace as coarse writes it: phases, and one gradient."""
    common = {"ph": "X", "pid": 1, "tid": 0}
    details = {"nbytes": 400, "ready_s": 1e-3, **gradient}
    return [
        {**common, "name": "forward", "cat": "phase", "ts": 0, "dur": 1000},
        {**common, "name": "backward", "cat": "phase", "ts": 1000, "dur": 2000},
        {**common, "name": "sync w", "cat": "sync", "ts": 3000, "dur": 10, "args": details},
    ]


FILES = {
    "truncated.json": (b'{"traceEvents": [{"ph": "X"', "this is not JSON (Expecting ',' delimiter: line 1 column 28"),
    "other.json": (b"\xff\xfe\x00", "this is not JSON"),
    "empty.json": (b'{"traceEvents": []}', "traceEvents must be a list of events, got an empty list"),
    "object.json": (b'{"traceEvents": {}}', "traceEvents must be a list of events, got dict"),
    "cut.json.gz": (gzip.compress(b'{"traceEvents": []}')[:-9], "gzip cannot unpack it"),
    "config.json.gz": (gzip.compress(b'{"model_type": "gpt2"}'), "wanted a trace, an object with traceEvents"),
    "nothing.et": (b"", "the file is empty, and a trace begins with its metadata"),
    "text.et": (b"This is a text, and no trace.", "record 1 (byte 0): a trace begins with its metadata, and this"),
    "cut.et": (written([compute(1, "a", 5), compute(2, "b", 5)])[:-3], "record 3 (byte "),
    "phases.json": (json.dumps({"traceEvents": worker_events()[:2]}).encode(), "phases of 1 workers, and no gradient"),
    "bytes.json": (json.dumps(worker_events(nbytes=-1)).encode(), "event 2: nbytes must be a number of bytes, got -1"),
    "half.json": (
        json.dumps([{"ph": "X", "pid": 1, "name": "backward", "cat": "phase", "ts": "x"}]).encode(),
        "event 0: ts must be microseconds, got 'x'",
    ),
    "numbers.json": (b"[1, 2]", "event 0 must be an object, got int"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_trace_is_refused_in_one_line_with_its_name(name, tmp_path):
    content, said = FILES[name]
    (tmp_path / name).write_bytes(content)
    line = refused("--model", tmp_path / name)
    assert line.startswith(f"coarse: {tmp_path / name}: ")
    assert said in line


def test_a_file_that_is_missing_is_named(tmp_path):
    assert "absent.et: No such file or directory" in refused("--model", tmp_path / "absent.et")


def test_coarses_own_trace_has_gradients_when_they_were_there_and_not_when_they_were_sent(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps(worker_events()))
    own = own_model(str(tmp_path / "own.json"), None)
    assert [layer.name for layer in own.model.layers] == ["end of backward", "w"]
    assert own.model.num_parameters == 100
    assert own.times.forward == pytest.approx((0, 1e-3))
    assert own.times.backward == pytest.approx((1e-3, 1e-3))  # it was sent a millisecond after it was there


def test_a_gradient_that_an_earlier_iteration_sent_is_not_one_of_this(tmp_path):
    events = worker_events()
    for event in events:
        event["ts"] += 5000
    earlier = {**events[2], "ts": 1000}
    (tmp_path / "own.json").write_text(json.dumps([earlier, *events]))
    assert own_model(str(tmp_path / "own.json"), None).model.num_parameters == 100


def test_a_model_that_does_not_fit_says_so_without_a_batch(tmp_path):
    nodes = [compute(0, "backward", 5), collective(1, "w", 4 * 10**10, 0)]
    path = tmp_path / "large.et"
    path.write_bytes(written(nodes))
    assert "take a GPU with more memory" in refused("--model", path)
