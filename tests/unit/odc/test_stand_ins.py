"""Nodes that stand for all in mode odc, held against the simulation of every worker."""

from dataclasses import replace

import pytest

from coarse.hardware.degradation import Degradation
from coarse.hardware.network_tree import TreeLevel
from coarse.hardware.presets import load_preset
from coarse.odc.simulation.on_demand import simulate_each, simulate_on_demand, simulate_stand_ins
from coarse.odc.simulation.stand_ins import NUM_STAND_INS, StandIns
from coarse.simulation.jitter import Jitter
from coarse.simulation.sharded.disturbed import Disturbances
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.strategy.sharding import Fsdp

QUIET = Disturbances()
SLOW_NODE = Degradation(link="node5 network *", factor=0.5, at_s=0.0)


def scenario(num_nodes, per_node, *, machine="fcdp-a40-rdma", model="4x512x8", batch=64, disturbances=QUIET):
    return ShardedScenario(
        machine=replace(load_preset(machine), num_nodes=num_nodes), model_name=model, batch=batch, num_nodes=num_nodes,
        gpus_per_node=per_node, policy=ShardedPolicy(sharding=Fsdp()), disturbances=disturbances,
    )  # fmt: skip


def slow_downs(num_workers):
    """Stragglers among many: unlike lengths of what workers compute on."""
    return tuple(2.0 if worker == num_workers - 2 else 1.0 + worker % 5 / 10 for worker in range(num_workers))


def difference(of, by="iteration_s"):
    every, some = simulate_each(of), simulate_stand_ins(of)
    return getattr(some, by) / getattr(every, by) - 1


@pytest.mark.parametrize(("num_nodes", "per_node", "model"), [
    (8, 1, "4x512x8"), (8, 2, "2x1024x8"),
    pytest.param(8, 4, "4x512x8", marks=pytest.mark.test_all),
    pytest.param(10, 1, "4x512x8", marks=pytest.mark.test_all),
    pytest.param(16, 1, "4x512x8", marks=pytest.mark.test_all),
    pytest.param(8, 8, "2x512x8", marks=pytest.mark.test_all),
])  # fmt: skip
@pytest.mark.parametrize("what", ["quiet", "straggler", "jitter", "slow node"])
def test_where_compute_takes_half_of_the_time_they_take_what_all_take(num_nodes, per_node, model, what):
    """Differences are 2.5 % at most."""
    disturbances = {
        "quiet": QUIET, "straggler": Disturbances(slow_downs=slow_downs(num_nodes * per_node)),
        "jitter": Disturbances(jitter=Jitter(share=0.3, seed=4), num_iterations=2),
        "slow node": Disturbances(degradations=(SLOW_NODE,)),
    }  # fmt: skip
    of = scenario(num_nodes, per_node, model=model, batch=128, disturbances=disturbances[what])
    assert difference(of) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(("num_nodes", "per_node"), [
    (8, 1), pytest.param(12, 1, marks=pytest.mark.test_all), pytest.param(8, 4, marks=pytest.mark.test_all),
])  # fmt: skip
def test_where_links_are_nearly_all_they_are_near_what_all_take(num_nodes, per_node):
    """Whoever asks first then decides how links are shared, and it is not the same nodes."""
    of = scenario(num_nodes, per_node, machine="fcdp-a40-10gbe", batch=8)
    assert difference(of) == pytest.approx(0.0, abs=0.10)


def test_a_node_sends_what_one_of_all_sends():
    of = scenario(12, 1)
    every, some = simulate_each(of), simulate_stand_ins(of)
    assert some.uses[0][1] == pytest.approx(every.uses[0][1], rel=1e-3)


def test_workers_wait_as_long_in_the_mean():
    disturbances = Disturbances(slow_downs=(*(1.0,) * 15, 3.0))
    assert difference(scenario(16, 1, batch=128, disturbances=disturbances), "idle_s") == pytest.approx(0.0, abs=0.03)


def test_up_to_128_workers_on_8_nodes_each_is_simulated_and_beyond_some_stand_for_all():
    assert simulate_on_demand(scenario(8, 2)) == simulate_each(scenario(8, 2))
    thousand = simulate_on_demand(scenario(256, 4, disturbances=Disturbances(slow_downs=(*(1.0,) * 1023, 3.0))))
    assert "6 nodes with 24 workers were simulated, which stand for 256 with 1024" in thousand.notes[0]
    assert thousand.iteration_s > 3 * 0.9 * thousand.compute_s


def test_the_slowest_worker_of_an_iteration_is_always_among_them_and_stands_for_itself():
    stand_ins = StandIns(replace(load_preset("fcdp-a40-rdma"), num_nodes=100), 100, 2)
    factors = [1.0 + number / 1000 for number in range(200)]
    factors[33] = 7.0
    found = stand_ins.factors(factors)
    assert max(found) == 7.0
    assert len(found) == 2 * NUM_STAND_INS
    assert stand_ins.weights[found.index(7.0) // 2] == 1.0
    assert sum(stand_ins.weights) == 100
    usual = sorted(set(found) - {7.0})
    assert usual[0] < 1.05 < 1.15 < usual[-1]


def test_a_node_with_unlike_links_has_a_stand_in_of_its_own():
    machine = replace(load_preset("fcdp-a40-rdma"), num_nodes=100)
    stand_ins = StandIns(machine, 100, 2, (SLOW_NODE,))
    assert 5 in stand_ins.nodes
    assert sum(stand_ins.weights) == 100
    assert stand_ins.weights[stand_ins.nodes.index(5)] == 1.0


def test_links_that_nodes_share_are_shared_by_their_stand_ins_alone():
    level = TreeLevel(name="leaf", nodes_per_switch=4, oversubscription=4.0, hop_latency_s=0.0)
    machine = replace(load_preset("fcdp-a40-rdma"), num_nodes=48, tree_levels=(level,))
    stand_ins = StandIns(machine, 48, 1)
    site = stand_ins.site()
    scales = {
        link.name: link.bytes_per_s / whole.bytes_per_s
        for link, whole in zip(site.links, machine.links, strict=True) if link != whole
    }  # fmt: skip
    own = [scale for name, scale in scales.items() if "leaf" not in name]
    shared = [scale for name, scale in scales.items() if "leaf" in name]
    assert own == pytest.approx([stand_ins.far_share] * len(own))
    assert shared == pytest.approx([stand_ins.far_share * NUM_STAND_INS / 48] * len(shared))
    assert own
    assert shared
