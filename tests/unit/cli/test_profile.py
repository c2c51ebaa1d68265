"""`coarse profile`: what is measured becomes a machine that predictions run on."""

from dataclasses import replace

from typer.testing import CliRunner

from coarse.cli.profile import app
from coarse.cli.report.prediction import scenarios_of
from coarse.hardware.machine_file import load_machine
from coarse.hardware.measure import pair
from coarse.hardware.measure.measured import HOW, Measurements, labelled_text, machine_of, rising
from coarse.protocol.units import MIB
from coarse.simulation.question import Question
from coarse.simulation.training import simulate

FOUND = Measurements(
    latency_s=3e-6,
    push_s=((4096, 1e-6), (1 << 20, 1e-4)),
    pull_s=((4096, 2e-6), (1 << 20, 2e-4)),
    together_bytes_per_s=1.5e10,
    adder_bytes_per_s=8e9,
    optimizer_bytes_per_s=5e8,
    fp32_flops_per_s=5e10,
    noise=0.02,
    memory_bytes=16 << 30,
    num_cores=4,
    cpu="Some(R) CPU @ 2.0GHz",
)


def test_a_saved_machine_is_the_measured_one(tmp_path):
    machine = machine_of(FOUND, "mine")
    path = tmp_path / "machine.toml"
    path.write_text(labelled_text(machine, FOUND))
    assert load_machine(path) == machine
    assert len(machine.gpus) == len(machine.memories) == 4


def test_every_number_of_the_file_says_how_it_was_found():
    text = labelled_text(machine_of(FOUND, "mine"), FOUND)
    assert all(how in text for how in HOW.values())


def test_a_busy_machine_is_said_to_be_one_in_the_file():
    busy = replace(FOUND, noise=0.6)
    assert (FOUND.is_noisy, busy.is_noisy) == (False, True)
    assert "# Noise: the measuring processes waited for a core 2% of the time." in labelled_text(
        machine_of(FOUND, "mine"), FOUND
    )
    noisy = labelled_text(machine_of(busy, "mine"), busy)
    assert "waited for a core 60% of the time: others used the machine, so its rates may be far too low" in noisy


def test_a_push_takes_what_a_copy_and_a_record_took():
    machine = machine_of(FOUND, "mine")
    (up, *_) = (machine.links[link] for link in machine.path("gpu0", "memory1"))
    assert up.alone_s(1 << 20) == 1e-4 + 3e-6


def test_predictions_run_on_a_saved_machine(tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text(labelled_text(machine_of(FOUND, "mine"), FOUND))
    scenarios = scenarios_of(Question(machine=str(path), model="resnet50", num_workers=2, policy="devices"))
    assert scenarios.profile.basis == "assumption"
    assert simulate(scenarios.of("coarse").job()).iteration_s > scenarios.profile.total_forward_s


def test_a_copy_that_was_disturbed_leaves_the_table():
    assert rising([(1, 1.0), (2, 9.0), (4, 3.0), (8, 4.0)]) == ((1, 1.0), (4, 3.0), (8, 4.0))


def test_two_processes_measure_and_save(tmp_path, monkeypatch):
    monkeypatch.setattr(pair, "MAX_REGION_BYTES", 2 * MIB)
    path = tmp_path / "machine.toml"
    done = CliRunner().invoke(app, ["--save", str(path)])
    assert done.exit_code == 0, done.output
    machine = load_machine(path)
    assert machine.memory_device.adder_bytes_per_s > 1e6
    assert all(0 <= link.latency_s < 1 for link in machine.links)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    done = CliRunner().invoke(app, ["--save", str(tmp_path / "absent" / "machine.toml")])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert CliRunner().invoke(app, ["--name", 'a"b']).exit_code == 2
