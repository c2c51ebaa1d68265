"""What is said of an emulated training: its iterations, what they consist of, and when there is no result."""

import json
from dataclasses import replace

import pytest

from coarse.cli.report.run import read_run
from coarse.emulation.account import OwnStep, Push, WorkerLog, iterations_of, read_logs, report_of
from coarse.emulation.compute import Stretches
from coarse.emulation.compute_file import ComputeTimes
from coarse.emulation.fabric import Absence, FabricReport
from coarse.protocol.config import Config, EmulateSettings
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.joint import CollectiveKind, Joint, Meeting
from coarse.protocol.run_file import RUN_FILE

SETTINGS = EmulateSettings(machine="cxl-cz120", compute_scale=50.0)
FABRIC = FabricReport(200, 0, 0.0, (10.0, 0.0, 30.0))
LINKS = [("a", 1.0), ("b", 1.0), ("c", 2.0)]


def log_of(path, *, num_steps, slow=1.0):
    """A worker whose steps compute for 2 s and wait for 1 s, after it has pushed a name often at the start."""
    log = WorkerLog(path, Stretches(None))
    for number in range(3):
        log.note(push("measured", 0.1 * number, 0.0, 0.1 * number, 0.1 * number))
    for number in range(num_steps):
        at_s, computed_s, waited_s = 10 + 3.0 * slow * number, 2.0 * slow * number, 1.0 * slow * number
        log.note(push("last layer", at_s, computed_s, waited_s, at_s - 0.75))
        log.note(push("first layer", at_s + slow, computed_s + slow, waited_s, at_s - 0.75))
    log.write()


def push(name, at_s, computed_s, waited_s, left_s):
    return Push(at_s, computed_s, waited_s, left_s, name, 10, int(DType.FLOAT32), int(Op.AVERAGE), False)


def report_on(logs, *, settings=SETTINGS, fabric=FABRIC, simulated=lambda rows: "", times=None):
    """The account of a job in mode coarse."""
    scale = settings.compute_scale or 47.123
    return report_of(settings, scale, logs, fabric, LINKS, simulated, Config(), times)


@pytest.fixture
def logs(tmp_path):
    """Two workers' logs, as they were written and read."""
    paths = [tmp_path / f"{worker}.json" for worker in range(2)]
    for path in paths:
        log_of(path, num_steps=6)
    return read_logs(paths)


def test_an_iteration_goes_from_one_push_to_the_next_of_a_name_and_what_came_before_training_is_left_out(logs):
    rows = iterations_of(logs)
    assert {row.worker for row in rows} == {0, 1}
    assert all(row.begin_s >= 10 for row in rows)
    assert {(row.end_s - row.begin_s, row.compute_s, row.exposed_s) for row in rows} == {(3.0, 2.0, 1.0)}
    assert {(row.backward_s, row.forward_s) for row in rows} == {(1.25, 0.75)}
    assert {tuple(each.name for each in row.pushes) for row in rows} == {("last layer", "first layer")}


@pytest.mark.parametrize("num_before", range(4))
def test_where_the_later_half_begins_does_not_matter(num_before, tmp_path):
    log = WorkerLog(path := tmp_path / "0.json", Stretches(None))
    for number in range(num_before):
        log.note(push(f"before {number}", 0.1 * number, 0.0, 0.0, 0.0))
    for number in range(8):
        for layer in range(3):
            log.note(push(f"layer {layer}", 10 * number + layer, 3.0 * number + layer, 7.0 * number, 10 * number - 1.0))
    log.write()
    rows = iterations_of(read_logs([path]))
    assert {row.pushes[0].name for row in rows} == {"layer 0"}
    assert {(row.end_s - row.begin_s, row.compute_s, len(row.pushes)) for row in rows} == {(10.0, 3.0, 3)}


def test_calls_of_groups_name_the_mode_unless_the_job_pushes_too(tmp_path):
    log = WorkerLog(path := tmp_path / "0.json", Stretches(None))
    log.mode, log.options = "fcdp", {"collective": "ring"}
    gather, reduce = Joint(CollectiveKind.ALL_GATHER, 40), Joint(CollectiveKind.REDUCE_SCATTER, 80, 4)
    alone = Meeting((0,), 1)
    for number in range(6):
        log.note(Push.of_call(10.0 * number, 4.0 * number, 6.0 * number, 0.0, "forward gather of root", gather, alone))
        log.note(Push.of_call(10.0 * number + 1, 4.0 * number, 6.0 * number + 1, 0.0, "gradient", reduce, alone))
    log.write()
    logs = read_logs([path])
    report = report_on(logs)
    assert (report.mode, report.policy) == ("fcdp", "")
    assert {(row.end_s - row.begin_s, row.compute_s, row.exposed_s) for row in report.iterations} == {(10.0, 4.0, 6.0)}
    assert [each.nbytes for each in logs[0].pushes[:2]] == [40, 80]
    pushed = [logs[0]._replace(pushes=[each._replace(kind=0) for each in logs[0].pushes])]
    assert report_on(pushed).mode == "coarse"


def test_what_was_not_charged_and_who_was_absent_is_said(logs):
    absent = FABRIC._replace(absences=(Absence(1, 2, "train.py:41"),))
    told = [log._replace(not_charged={"MPI.COMM_WORLD.bcast": 3}) for log in logs]
    text = report_on(told, fabric=absent).text()
    assert "not charged: what these move: MPI.COMM_WORLD.bcast (6 calls)" in text
    assert "emulated time went on without some: worker 1 waited elsewhere 2 times (train.py:41)" in text
    late = report_on(told, fabric=absent._replace(num_late=20)).text()
    assert "at most 1% may be, since worker 1 waited elsewhere 2 times (train.py:41); no result" in late


def test_the_account_has_means_and_spread_and_the_links_in_order_of_their_bytes(logs, tmp_path):
    report = report_on(logs)
    text = report.text()
    assert "emulated on cxl-cz120: 2 workers; compute is this core's CPU time over 50, as stated" in text
    assert "iteration 3000 ms, compute 2000 ms, exposed 1000 ms (emulated; 3000, 3000 ms" in text
    assert "busiest link c, 58% of the run" in text
    report.write(tmp_path / "new" / "out")
    run = json.loads((tmp_path / "new" / "out" / RUN_FILE).read_text())
    assert (run["kind"], run["link_bytes"]) == ("emulated", [["c", 30.0], ["a", 10.0]])
    assert run["iterations"][0] == report.iterations[0]._asdict() | {"pushes": []}
    drawn = read_run(tmp_path / "new" / "out")
    assert drawn.kind == "emulated"
    (row,) = drawn.results
    assert (row.name, row.policy, row.iteration_s, row.exposed_s) == ("coarse", "auto", 3.0, 1.0)


def test_a_scale_that_was_measured_is_called_an_assumption(logs):
    report = report_on(logs, settings=replace(SETTINGS, compute_scale=None))
    assert "over 47.1 (an assumption: 0.3 of the accelerator's peak" in report.text()


def test_more_than_a_hundredth_of_late_transfers_is_no_result(logs):
    report = report_on(logs, fabric=FABRIC._replace(num_late=3))
    assert "1.5% of 200 transfers were submitted after their emulated time had passed" in report.text()
    assert report.rows() == []
    assert "iteration" not in report.text()
    assert "iteration" in report_on(logs, fabric=FABRIC._replace(num_late=2)).text()


def test_a_script_that_repeats_nothing_has_no_iterations(tmp_path):
    log = WorkerLog(tmp_path / "0.json", Stretches(None))
    log.note(push("once", 1.0, 0.0, 0.0, 0.0))
    log.write()
    text = report_on(read_logs([tmp_path / "0.json"])).text()
    assert "no name was pushed often enough" in text


def test_the_own_step_is_shown_beside_or_why_there_is_none(logs):
    shown = report_on(logs, simulated=lambda rows: OwnStep(2.5, 3.0)).text()
    assert "2500 ms simulated, of the last iterations' own steps; emulated over simulated 1.200" in shown
    assert "not simulated: chance" in report_on(logs, simulated=lambda rows: "chance").text()


def test_compute_of_a_file_is_said_and_a_file_that_lacks_much_gives_no_result(logs):
    settings = EmulateSettings(machine="cxl-cz120", compute="step.json")
    few, many = ([log._replace(missing_s=seconds, first_missing="a -> b") for log in logs] for seconds in (0.5, 0.6))
    times = ComputeTimes("train.py", "A40", 50.0, {}, {})
    text = report_on(few, settings=settings, times=times).text()
    assert "2 workers; compute is as step.json has it of 'train.py'" in text
    assert "iteration 3000 ms" in text
    text = report_on(many, settings=settings).text()
    assert "5.5% of the compute lies in stretches that the file lacks, first 'a -> b'" in text
    assert "iteration 3000" not in text
