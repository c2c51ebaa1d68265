"""Mode luwu of any model: the optimizer node's machine on units of any sizes, with the compute times of other modes."""

from dataclasses import replace

import pytest

from coarse.cli.report.prediction import scenarios_of
from coarse.cli.report.sharded_prediction import sharded_outcome, sharded_scenario
from coarse.errors import CapacityError, ConfigError
from coarse.hardware.machine import Disks
from coarse.luwu.simulation.any_model import TrainedUnits, predict_in_network, with_parameters
from coarse.luwu.simulation.cluster import PagedCluster, PagedTraining
from coarse.luwu.simulation.training import simulate
from coarse.protocol.units import GIB
from coarse.simulation.question import Question
from coarse.simulation.sharded.units import Unit
from coarse.strategy.sharding import InNetwork

CLUSTER = PagedCluster(
    num_workers=8, worker_flops_per_s=200e12, link_bytes_per_s=12e9, num_disks=8, disk_bytes_per_s=2e9,
    sums_bytes=3 * 10**9,
)  # fmt: skip
EQUAL = PagedTraining(num_blocks=12, block_elements=32_000_000, tokens=16_384, chunks_per_block=48)
DISKS = Disks(
    host_memory_bytes=256 * GIB, worker_bytes_per_s=3e9, worker_capacity_bytes=10**13, optimizer_bytes_per_s=26e9,
    optimizer_capacity_bytes=10**13, num_optimizer_disks=12,
)  # fmt: skip


def unit(name, numel, forward_s=1e-3, backward_s=2e-3):
    return Unit(name=name, trainable_nbytes=4 * numel, forward_s=forward_s, backward_s=backward_s)


def scenario(disks=DISKS, **changes):
    asked = Question(machine="aws-p3", model="bert-large", num_workers=8, num_nodes=2, **changes)
    scenarios = scenarios_of(asked)
    scenarios = replace(scenarios, machine=replace(scenarios.machine, disks=disks))
    return scenarios, sharded_scenario(scenarios, InNetwork())


def test_equal_units_take_what_equal_blocks_do():
    forward_s, backward_s = EQUAL.forward_s(CLUSTER), EQUAL.backward_s(CLUSTER)
    units = tuple(unit(f"{n}", EQUAL.block_elements, forward_s, backward_s) for n in range(EQUAL.num_blocks))
    mine, theirs = simulate(CLUSTER, TrainedUnits(units=units, itemsize=4)), simulate(CLUSTER, EQUAL)
    assert mine.step_s == theirs.step_s
    assert mine.compute_s == pytest.approx(theirs.compute_s)


@pytest.mark.parametrize("slowest", ["compute", "network", "disk"])
def test_unlike_units_take_what_the_slowest_resource_does(slowest):
    numels = [60_000_000, 1_000, 9_000_000, 9_000_000, 9_000_000, 25_000_000]
    factor = 40.0 if slowest == "compute" else 0.1
    units = tuple(unit(f"{n}", numel, factor * 1e-3, factor * 2e-3) for n, numel in enumerate(numels))
    on = replace(
        CLUSTER, sums_bytes=10**12, link_bytes_per_s=1e9 if slowest == "network" else 1e11,
        disk_bytes_per_s=1e8 if slowest == "disk" else 1e10,
    )  # fmt: skip
    training = TrainedUnits(units=units, itemsize=4)
    bounds = {
        "compute": training.compute_s(on),
        "network": 2 * 2 * sum(numels) / on.link_bytes_per_s,
        "disk": max(on.disks_s(training.model()).values()),
    }
    assert max(bounds, key=lambda name: bounds[name]) == slowest
    most = 1.35 * bounds[slowest]  # a block has few chunks to deal to the disks
    assert bounds[slowest] <= simulate(on, training).step_s * 1.001 <= most


def test_what_has_no_parameters_is_computed_with_its_neighbour():
    units = (unit("pool", 0, 1.0, 2.0), unit("a", 5, 3.0, 4.0), unit("b", 6, 5.0, 6.0), unit("loss", 0, 7.0, 8.0))
    assert with_parameters(units) == (unit("a", 5, 4.0, 6.0), unit("b", 6, 12.0, 14.0))


def test_a_step_has_the_compute_of_other_modes_and_pulls_each_parameter_twice():
    scenarios, asked = scenario()
    found = predict_in_network(asked)
    assert found.compute_s == pytest.approx(sum(one.forward_s + one.backward_s for one in asked.units))
    assert found.iteration_s >= found.compute_s
    assert scenarios.model.num_parameters * 4 == dict(found.uses)["the optimizer node to workers"]


def test_a_row_beside_other_modes_has_its_own_account_of_memory():
    scenarios, asked = scenario()
    found = sharded_outcome(scenarios, InNetwork())
    assert (found.result.name, found.result.policy) == ("luwu", "-")
    assert found.memory_bytes < asked.account().total_bytes
    assert found.result.iteration_s == pytest.approx(found.result.compute_s + found.result.exposed_s)
    assert found.result.link_bytes[0][0] == "the optimizer node's disks, read"


@pytest.mark.parametrize(
    ("disks", "error", "said"),
    [
        (None, ConfigError, r"aws-p3 states no \[disks\]"),
        (replace(DISKS, optimizer_capacity_bytes=10**9), CapacityError, "optimizer node.s disks, which have 0.9"),
    ],
)
def test_a_machine_that_cannot_is_refused_by_name(disks, error, said):
    with pytest.raises(error, match=said):
        predict_in_network(scenario(disks)[1])


def test_a_gpu_without_room_says_what_it_lacks():
    with pytest.raises(CapacityError, match=r"luwu at batch 2 per GPU needs .*units under way.*; lower the batch"):
        predict_in_network(replace(scenario()[1], memory_bytes=GIB))
