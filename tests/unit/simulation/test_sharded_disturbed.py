"""Stragglers, jitter and degraded links in sharded modes, worked out by hand or against another machine."""

from dataclasses import replace

import pytest

from coarse.hardware.compute import Basis, ComputeProfile
from coarse.hardware.degradation import Degradation
from coarse.hardware.models import Precision, uniform
from coarse.hardware.presets import load_preset
from coarse.luwu.simulation.any_model import predict_in_network
from coarse.odc.simulation.on_demand import simulate_on_demand
from coarse.simulation.jitter import Jitter
from coarse.simulation.sharded.disturbed import Disturbances
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.strategy.sharding import COLLECTIVE, SHARDINGS, Fsdp, Zero2
from tests.unit.simulation.sharded_jobs import cluster

MODEL = "4x512x8"
NUM_GPUS = 8


def scenario(mode="fsdp", machine="fcdp-a40-10gbe", **disturbances):
    sharding = SHARDINGS[mode]()
    return ShardedScenario(
        machine=replace(load_preset(machine), num_nodes=2), model_name=MODEL, batch=64, num_nodes=2, gpus_per_node=4,
        policy=ShardedPolicy(sharding=sharding if sharding.meets else Fsdp()),
        disturbances=Disturbances(**disturbances),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["zero2", *(name for name in COLLECTIVE)])
def test_the_slowest_worker_sets_the_pace_and_the_others_wait_for_it(mode):
    quiet = scenario(mode)
    slow = scenario(mode, slow_downs=(1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.5, 1.0))
    all_slow = replace(quiet, peak_share=quiet.peak_share / 3)
    found, wanted = slow.run(), all_slow.run()
    assert found.iteration_s == pytest.approx(wanted.iteration_s)
    assert found.compute_s == pytest.approx(wanted.compute_s * (6 + 3 + 1.5) / 8 / 3)
    assert found.compute_s + found.idle_s == pytest.approx(wanted.compute_s)
    assert found.exposed_s == pytest.approx(wanted.exposed_s)


def test_jitter_draws_for_each_worker_and_iteration_and_the_largest_counts():
    jitter = Jitter(share=0.3, seed=5)
    found = scenario(jitter=jitter, num_iterations=4).runs()
    assert len(found) == 4
    for iteration, report in enumerate(found):
        slowest = max(jitter.factors(NUM_GPUS, iteration))
        other = replace(scenario(), peak_share=0.2 / slowest).run()
        assert report.iteration_s == pytest.approx(other.iteration_s)
    assert len({report.iteration_s for report in found}) == 4


def test_without_jitter_or_changes_one_iteration_is_simulated():
    assert len(scenario(num_iterations=50).runs()) == 1
    assert len(scenario(slow_downs=(2.0,) * NUM_GPUS, num_iterations=50).runs()) == 1


def test_a_link_that_is_degraded_counts_from_its_second_on():
    quiet_s = scenario().run().iteration_s
    halved = Degradation(link="node0 network *", factor=0.5, at_s=1.5 * quiet_s)
    first, second, third, fourth = scenario(degradations=(halved,), num_iterations=4).runs()
    assert first.iteration_s == pytest.approx(quiet_s)
    assert quiet_s < second.iteration_s < third.iteration_s
    assert third.iteration_s == pytest.approx(fourth.iteration_s)
    at_once = scenario(degradations=(replace(halved, at_s=0.0),)).run()
    assert third.iteration_s == pytest.approx(at_once.iteration_s)


def test_a_link_may_get_its_rate_back():
    quiet_s = scenario().run().iteration_s
    changes = tuple(Degradation(link="node0 network *", factor=each, at_s=at) for each, at in ((0.1, 0.0), (1.0, 1e-6)))
    assert scenario(degradations=changes).run().iteration_s == pytest.approx(quiet_s, rel=1e-3)


def test_nodes_that_are_unlike_have_their_own_pace_beside_stragglers():
    machine = cluster(gpus_per_node=2)
    of = ShardedScenario(
        machine=machine, model_name="m", own_model=uniform(2, 100), batch=1, num_nodes=2, gpus_per_node=2,
        policy=ShardedPolicy(sharding=Zero2()), disturbances=Disturbances(slow_downs=(1.0, 1.0, 1.0, 2.0)),
    )  # fmt: skip
    assert of.factors(0) == (1.0, 1.0, 1.0, 2.0)


def test_in_mode_odc_a_worker_that_is_slow_now_and_then_holds_nobody_up_until_the_end():
    quiet = simulate_on_demand(scenario("odc", "fcdp-a40-rdma"))
    slow = simulate_on_demand(scenario("odc", "fcdp-a40-rdma", slow_downs=(*(1.0,) * 7, 2.0)))
    assert quiet.compute_s == pytest.approx(slow.compute_s * 8 / 9)
    assert slow.iteration_s > quiet.iteration_s + 0.5 * quiet.compute_s
    assert slow.idle_s > 0.5 * quiet.compute_s
    jittery = simulate_on_demand(scenario("odc", "fcdp-a40-rdma", jitter=Jitter(share=0.3), num_iterations=5))
    assert len(set(jittery.iterations_s)) == len(jittery.iterations_s) == 5
    assert jittery.iteration_s == jittery.iterations_s[-1]


def test_in_mode_odc_a_slow_network_takes_longer_from_its_second_on():
    quiet = simulate_on_demand(scenario("odc"))
    late = Degradation(link="node0 network *", factor=0.5, at_s=1.5 * quiet.iteration_s)
    first, *others = simulate_on_demand(scenario("odc", degradations=(late,), num_iterations=4)).iterations_s
    assert first < others[-1]
    assert others[-1] > 1.5 * quiet.iteration_s


def luwu(**disturbances):
    model = uniform(8, 1 << 22)
    profile = ComputeProfile(
        gpu="A100", batch=8, forward_s=(0.01,) * 8, backward_s=(0.02,) * 8, model=model.name,
        layers=tuple(layer.name for layer in model.layers), source="a test", precision=Precision.FP16,
        basis=Basis.MEASURED,
    )  # fmt: skip
    return replace(
        scenario(machine="luwu", **disturbances), own_model=model, model_name=model.name, profile=profile, batch=8,
        gpus_per_node=1, precision=profile.precision,
    )  # fmt: skip


def test_in_mode_luwu_all_wait_for_the_slowest():
    quiet, slow = predict_in_network(luwu()), predict_in_network(luwu(slow_downs=(1.0, 4.0)))
    assert slow.compute_s == pytest.approx(2.5 * quiet.compute_s)
    assert slow.idle_s == pytest.approx(1.5 * quiet.compute_s)
    assert slow.iteration_s >= 4 * quiet.compute_s
    jittery = predict_in_network(luwu(jitter=Jitter(share=2.0), num_iterations=7))
    assert len(jittery.iterations_s) == 7


def test_in_mode_luwu_a_degraded_card_takes_longer_from_its_second_on():
    quiet = predict_in_network(luwu())
    late = Degradation(link="node0 network *", factor=0.01, at_s=2.5 * quiet.iteration_s)
    found = predict_in_network(luwu(degradations=(late,), num_iterations=6)).iterations_s
    assert found[-1] > 4 * quiet.iteration_s
    assert found[1] == pytest.approx(quiet.iteration_s, rel=0.3)
