"""Runs as Chakra traces: what protobuf and coarse's own reader find in them."""

import json

import pytest
from typer.testing import CliRunner

from coarse.cli import predict
from coarse.cli.chakra.graph import in_order
from coarse.cli.chakra.messages import NodeType, decoded
from coarse.cli.own_model.source import own_model
from coarse.cli.report import command as report
from tests.support.chakra_schema import parsed

MODES = ("dense", "allreduce", "coarse")
FACTORS = (1.0, 1.5)


def called(app, *arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done, " ".join(done.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prediction of two workers, of which one is slower, with its Chakra traces."""
    out = tmp_path_factory.mktemp("predicted")
    asked = ("--workers", 2, "--straggler", "1=1.5", "--modes", ",".join(MODES), "--out", out)
    done, _ = called(predict.app, *asked)
    assert done.exit_code == 0, done.output
    done, output = called(report.app, out, "--chakra")
    assert done.exit_code == 0, done.output
    assert f"wrote {out.as_posix()}/coarse.1.et" in output
    return out


def test_each_worker_of_each_mode_has_a_file(folder):
    assert {path.name for path in folder.glob("*.et")} == {f"{mode}.{rank}.et" for mode in MODES for rank in (0, 1)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [0, 1])
def test_protobuf_finds_the_times_and_bytes_of_the_run(folder, mode, rank):
    metadata, nodes = parsed((folder / f"{mode}.{rank}.et").read_bytes())
    about = {each.name: each.string_val for each in metadata.attr}
    assert (metadata.version, about["kind"], about["mode"]) == ("1.0.0", "simulated", mode)
    compute = [node for node in nodes if node.type == 4]
    sums = [node for node in nodes if node.type == 7]
    assert len(compute) + len(sums) == len(nodes)
    row = {row["name"]: row for row in json.loads((folder / "run.json").read_text())["rows"]}[mode]
    mine_us = row["compute_s"] * 1e6 * FACTORS[rank] / (sum(FACTORS) / 2)  # compute_s is the workers' mean
    assert sum(node.duration_micros for node in compute) == pytest.approx(mine_us, abs=len(compute))
    sizes = [{each.name: each for each in node.attr} for node in sums]
    assert {each["comm_type"].int64_val for each in sizes} == {0}
    assert sum(each["comm_size"].int64_val for each in sizes) == 4 * 25_557_032
    assert not any(each["is_cpu_op"].bool_val for each in sizes)


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_waits_for_the_compute_that_makes_it_and_compute_for_no_sum(folder, mode):
    nodes = list(decoded((folder / f"{mode}.0.et").read_bytes()))
    types = {node.id: node.type for node in nodes}
    ordered = in_order(nodes)
    assert next(node.name for node in ordered if node.type == NodeType.COMP) == "forward"
    for node in ordered[1:]:
        assert [types[parent] for parent in node.data_deps] == [NodeType.COMP]
    ends = {node.id: node.start_us + node.duration_us for node in nodes}
    for node in ordered[1:]:
        assert all(ends[parent] <= node.start_us + 1 for parent in node.data_deps)


@pytest.mark.parametrize("mode", MODES)
def test_coarse_reads_back_the_model_that_it_wrote(folder, mode):
    wanted = own_model(str(folder / f"{mode}.trace.json"), None)  # of two workers the faster
    found = own_model(str(folder / f"{mode}.0.et"), None)
    assert found.model.layers == wanted.model.layers
    assert found.times.forward == pytest.approx(wanted.times.forward)
    assert found.times.backward == pytest.approx(wanted.times.backward)
    assert found.times.is_simulated


def test_all_modes_have_the_same_gradients(folder):
    models = [own_model(str(folder / f"{mode}.0.et"), None) for mode in MODES]
    assert len({one.model.shapes for one in models}) == 1
    for one in models[1:]:
        assert one.times.backward == pytest.approx(models[0].times.backward)


def test_a_worker_that_stands_for_all_is_written_for_all(tmp_path):
    asked = ("--workers", 96, "--nodes", 24, "--modes", "allreduce", "--iterations", 1, "--out", tmp_path)
    done, _ = called(predict.app, *asked)
    assert done.exit_code == 0, done.output
    assert called(report.app, tmp_path, "--chakra")[0].exit_code == 0
    contents = {path.read_bytes() for path in tmp_path.glob("allreduce.*.et")}
    assert (len(list(tmp_path.glob("allreduce.*.et"))), len(contents)) == (96, 1)


def test_a_later_prediction_removes_the_traces_of_an_earlier_one(folder, tmp_path):
    for name in ("run.json", "allreduce.0.et"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "mine.0.et").write_text("kept")
    assert called(predict.app, "--workers", 2, "--modes", "dense", "--out", tmp_path)[0].exit_code == 0
    assert [path.name for path in tmp_path.glob("*.et")] == ["mine.0.et"]


def demo(folder, **settings):
    """A record of a live demo: one process, and two workers of which the second is slower."""

    def document(mode, factor):
        phases = {"forward_s": 0.01, "backward_s": 0.02, "wait_s": 0.005, "optimizer_s": 0.002}
        steps = []
        for number, noise in enumerate((1.0, 5.0, 1.1, 0.9)):
            times = {key: value * factor * noise for key, value in phases.items()}
            total_s = sum(times.values())
            steps.append({"step": number, "begin_s": number, "settled": number > 0, "step_s": total_s, **times})
        return {"steps": steps, "summary": {"mode": mode}, "settings": {"num_parameters": 1000, **settings}}

    runs = {"one process": [document("single", 2)], "coarse": [document("coarse", 1), document("coarse", 1.5)]}
    (folder / "rows.json").write_text(json.dumps({"rows": [], "runs": runs}))


def test_a_live_run_is_written_by_its_median_step_and_read_back(tmp_path):
    demo(tmp_path)
    done, _ = called(report.app, tmp_path, "--chakra")
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.glob("*.et")} == {"single.0.et", "coarse.0.et", "coarse.1.et"}
    metadata, nodes = parsed((tmp_path / "coarse.1.et").read_bytes())
    assert {each.name: each.string_val for each in metadata.attr}["kind"] == "measured"
    assert [node.name for node in nodes] == ["forward", "backward to gradients", "gradients", "optimizer"]
    noise = 1.1 * 1.5  # the median of the settled steps, of a worker that takes 1.5 times as long
    durations = [node.duration_micros for node in nodes]
    assert durations == [pytest.approx(us * noise, abs=1) for us in (10_000, 20_000, 5_000, 2_000)]
    own = own_model(str(tmp_path / "coarse.1.et"), None)
    assert own.model.num_parameters == 1000
    assert (sum(own.times.forward), sum(own.times.backward)) == (pytest.approx(0.0165), pytest.approx(0.033))
    assert not own.times.is_simulated
    _, alone = parsed((tmp_path / "single.0.et").read_bytes())
    assert [node.type for node in alone] == [4, 4, 4]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"num_parameters": None}, "run the demo again"), ({"num_parameters": "many"}, "settings.num_parameters")],
)
def test_a_live_record_without_sizes_is_refused(settings, said, tmp_path):
    demo(tmp_path, **settings)
    done, _ = called(report.app, tmp_path, "--chakra")
    assert done.exit_code == 2
    assert said in done.stderr
    assert called(report.app, tmp_path)[0].exit_code == 0


def test_a_record_that_names_a_file_elsewhere_is_refused(folder, tmp_path):
    run = json.loads((folder / "run.json").read_text())
    run["timelines"][0]["title"] = "../elsewhere"
    (tmp_path / "run.json").write_text(json.dumps(run))
    done, _ = called(report.app, tmp_path, "--chakra")
    assert done.exit_code == 2
    assert "timelines must be named by modes, got '../elsewhere'" in done.stderr


def test_a_prediction_whose_trace_is_gone_is_refused_by_its_name(folder, tmp_path):
    (tmp_path / "run.json").write_bytes((folder / "run.json").read_bytes())
    done, _ = called(report.app, tmp_path, "--chakra")
    assert done.exit_code == 2
    assert "dense.trace.json: No such file" in done.stderr
    (tmp_path / "dense.trace.json").write_text('{"traceEvents": []}')
    done, _ = called(report.app, tmp_path, "--chakra")
    assert done.exit_code == 2
    assert "no worker with gradients and backward in it" in done.stderr
