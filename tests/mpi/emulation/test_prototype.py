"""COARSE's prototype on GPUs, for which stand-ins stand here: links take the time that their model says."""

import json

import pytest

from coarse.simulation.training import simulate
from experiments.coarse_prototype import order_of, parse_arguments, result_of
from tests.support.emulated import durations
from tests.support.launch import REPOSITORY, mpirun

SCRIPT = REPOSITORY / "experiments" / "coarse_prototype.py"


@pytest.mark.parametrize("num_gpus", [pytest.param(1, marks=pytest.mark.test_all), 3])
def test_an_iteration_on_gpus_takes_as_long_as_the_simulated_one(tmp_path, num_gpus):
    """The ranks check every sum; a GPU's own time, and that of its copies, counts for nothing."""
    arguments = ("--iterations", 2, "--out", tmp_path / "rows.json")
    stand_in = json.dumps({"num_gpus": num_gpus, "total_bytes": 1 << 31})
    completed = mpirun(4, SCRIPT, *arguments, env={"COARSE_TEST_GPUS": stand_in}, timeout_s=120)
    assert completed.returncode == 0, completed.stderr
    assert "(emulated; simulated" in completed.stdout
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found["gpus"] == ["Stand-in"] * num_gpus
    order = order_of(parse_arguments(list(map(str, arguments))), 4, num_gpus)
    result = result_of(order, found)
    assert result.num_late == 0
    assert durations(result) == durations(simulate(order.job()))


@pytest.mark.parametrize(("num_ranks", "gpus", "reason"), [
    (3, '{"num_gpus": 1}', "there must be an even number, got 3; start it by mpirun -n 4"),
    (2, '{"num_gpus": 1, "total_bytes": 1000000}', "0 bytes are wanted of GPU 0, which has 1000000"),
    (2, '{"num_gpus": 1, "total_bytes": 16777216}', "CapacityError"),
])  # fmt: skip
def test_what_cannot_be_is_refused(num_ranks, gpus, reason):
    completed = mpirun(num_ranks, SCRIPT, "--iterations", 2, env={"COARSE_TEST_GPUS": gpus}, timeout_s=60)
    assert completed.returncode not in (0, None)
    assert reason in completed.stderr
