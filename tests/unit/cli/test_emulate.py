"""`coarse emulate` around a run: what it is asked, and what it prints of the result."""

import pytest
from typer.testing import CliRunner

from coarse.cli import emulate
from coarse.emulation.launch import EmulatedResult
from coarse.emulation.order import EmulationOrder
from coarse.simulation.training import simulate

ASKED = ("--machine", "aws-p3", "--collective", "ring", "--batch", "16", "--modes", "coarse", "--policy", "devices")
LOST = ("--iterations", "9", "--profile-every", "3", "--degrade", "socket0 crossing=0.1@0.2")


def simulated_run(order: EmulationOrder) -> EmulatedResult:
    """What a run takes."""
    report = simulate(order.job(), decide=order.decide())
    return EmulatedResult(
        order=order,
        iterations=report.iterations,
        num_transfers=1,
        num_late=0,
        worst_late_s=0.0,
        profiles=report.profiles,
    )


def test_a_link_that_degrades_is_noticed_and_held_against_the_simulator(monkeypatch):
    monkeypatch.setattr(emulate, "emulate_order", simulated_run)
    done = CliRunner().invoke(emulate.app, [*ASKED, *LOST], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    output = " ".join(done.output.split())
    assert "Milliseconds of the iterations of coarse, in order: 4 of 46.26, " in output
    assert "decided anew before iteration 6 (100% of the bytes to devices local)" in output
    assert "1.000000" in output
    assert "0 of 1" in output
    said = " ".join(done.stderr.split())
    assert "coarse: decide by simulation ..." in said
    assert "coarse: 4 ranks ..." in said


@pytest.mark.parametrize(("arguments", "wanted"), [
    (("--degrade", "socket0"), "LINK=FACTOR@SECONDS"),
    (("--degrade", "socket0 crosing=0.1@1"), "socket0 crossing"),
    (("--degrade", "socket0 crossing=-1@1"), "factor must be above 0"),
])  # fmt: skip
def test_degradations_that_make_no_sense_end_with_2_before_any_rank_starts(arguments, wanted, monkeypatch):
    monkeypatch.setattr(emulate, "emulate_order", lambda *_, **__: pytest.fail("started"))
    done = CliRunner().invoke(emulate.app, [*ASKED, *arguments])
    assert done.exit_code == 2
    assert wanted in done.stderr
    assert done.stderr.startswith("coarse: ")
