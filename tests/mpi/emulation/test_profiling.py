"""Emulated runs measure their tables over emulated links, before the first iteration and again as they run."""

import os

import pytest

from coarse.emulation.launch import run_order
from coarse.emulation.order import EmulationOrder
from coarse.simulation.training import simulate
from coarse.strategy.builtin import tables_of
from tests.support.emulated import durations

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def _ranks_may_be_root(monkeypatch):
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def order_of(machine: str, **others: object) -> EmulationOrder:
    return EmulationOrder(
        machine=machine, model="resnet50", gpu=None, precision="fp32", mode="coarse", num_workers=2, num_devices=2,
        **{"batch": 64, "num_iterations": 1, **others},
    )  # fmt: skip


@pytest.mark.parametrize(("machine", "remote"), [
    ("aws-p3", (1, 0)), pytest.param("sdsc-p100", (), marks=pytest.mark.test_all),
    pytest.param("aws-g4dn", (), marks=pytest.mark.test_all),
])  # fmt: skip
def test_measured_tables_are_those_of_the_model(machine, remote):
    """COARSE figure 15: local always; small local and large remote; local always."""
    order = order_of(machine, policy="devices").decided()
    modelled = tables_of(order.job().facts)

    emulated = run_order(order)
    tables = tables_of(emulated.measured_facts)
    assert len(tables) == len(modelled) == 2
    for measured, expected in zip(tables, modelled, strict=True):
        assert measured[1:] == expected[1:]
        assert measured.threshold_bytes == pytest.approx(expected.threshold_bytes, rel=1e-6)
    assert [table.latency_proxy for table in tables] == [0, 1]
    assert tuple(table.bandwidth_proxy for table in tables) == (remote or (0, 1))
    assert 0 < emulated.start_profile_s < 1


@pytest.mark.parametrize(("policy", "lost"), [
    pytest.param("devices", "socket0 crossing=0.1@0.11", marks=pytest.mark.test_all),
    ("auto", "gpu0 - gpu2 *=0.02@0.11"),
])  # fmt: skip
def test_a_link_that_degrades_in_mid_run_changes_tables_split_and_iterations_as_in_the_simulator(policy, lost):
    """The fabric alone is told; workers measure, and all sums stay right across the change of epoch."""
    order = order_of(
        "aws-p3", batch=16, num_iterations=6, profile_every=2, degradations=(lost,), policy=policy
    ).decided()  # fmt: skip
    simulated, emulated = simulate(order.job(), decide=order.decide()), run_order(order)
    changes, expected = (
        [(profile.iteration, profile.facts, profile.num_to_devices) for profile in profiles if profile.is_new]
        for profiles in (emulated.profiles, simulated.profiles)
    )
    assert changes == expected
    assert [iteration for iteration, *_ in changes] == [4]  # hit in iteration 2
    assert durations(emulated) == durations(simulated)
    spent_s = [profile.duration_s for profile in emulated.profiles]
    assert spent_s == pytest.approx([profile.duration_s for profile in simulated.profiles], rel=1e-9)
