"""Emulated runs: real ranks and real bytes take the time that the simulator says."""

import os

import pytest

from coarse.emulated.launch import run_order
from coarse.emulated.order import RunOrder
from coarse.simulation.training import simulate

pytestmark = pytest.mark.mpi

TOLERANCE = 0.15
"""Generous: these ranks share their cores with whatever else runs; benchmarks/simulator.py measures the rest."""


@pytest.fixture(autouse=True)
def _ranks_may_be_root(monkeypatch):
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


@pytest.mark.parametrize(("mode", "num_devices", "policy"), [
    ("dense", 1, "devices"), ("allreduce", 0, "devices"), ("coarse", 2, "devices"), ("coarse", 2, "auto"),
])  # fmt: skip
def test_an_emulated_iteration_takes_as_long_as_the_simulated_one(mode, num_devices, policy):
    order = RunOrder(
        machine="aws-p3", model="resnet50", gpu="v100", batch=64, precision="fp32", mode=mode, num_workers=2,
        num_devices=num_devices, num_iterations=2, dilation=10.0,
    ).decided(policy)  # fmt: skip
    emulated = run_order(order)  # every sum is checked by the ranks
    simulated = simulate(order.job())
    assert emulated.iteration_s == pytest.approx(simulated.iteration_s, rel=TOLERANCE)
    assert emulated.num_transfers > 0
    assert len(emulated.iterations) == order.num_workers * order.num_iterations
