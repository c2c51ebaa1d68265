"""Scenarios on the preset machines: what the profiler finds there, and which job follows."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.hardware.compute import compute_profile
from coarse.hardware.models import Precision, resnet50, uniform
from coarse.hardware.presets import load_preset
from coarse.protocol.config import MODES, POLICIES
from coarse.protocol.units import KIB, MIB
from coarse.simulation.profiling import together_s
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate
from coarse.strategy.builtin import Coarse

GPUS = {"aws-g4dn": "t4", "aws-p3": "v100", "sdsc-p100": "p100"}
MACHINES = {name: load_preset(name) for name in GPUS}
MODEL = resnet50()
WORKERS = [("aws-g4dn", 2), ("aws-g4dn", 4), ("aws-p3", 2), ("aws-p3", 4), ("sdsc-p100", 2)]


def scenario(preset: str, num_workers: int, mode: str = "coarse", **more: object) -> Scenario:
    """ResNet-50, batch 64, on a preset."""
    return Scenario(
        machine=MACHINES[preset],
        model=MODEL,
        profile=compute_profile(MODEL, GPUS[preset], 64, Precision.FP32),
        mode=mode,
        num_workers=num_workers,
        **{"policy": "devices", **more},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("preset", ["aws-g4dn", "sdsc-p100"])
def test_t4_and_p100_use_their_local_proxy_for_all_sizes(preset: str):
    job = scenario(preset, 2).job()
    for local, table in zip(job.placement.local_proxies, job.facts, strict=True):
        assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (local, local, 0)


@pytest.mark.parametrize("num_workers", [2, 4])
def test_v100_uses_its_local_proxy_for_little_and_a_remote_one_for_much(num_workers: int):
    job = scenario("aws-p3", num_workers).job()
    for local, table in zip(job.placement.local_proxies, job.facts, strict=True):
        assert table.latency_proxy == local != table.bandwidth_proxy
        assert 4 * KIB < table.threshold_bytes < 1 * MIB


def test_of_v100_the_times_of_the_local_and_the_remote_proxy_cross_at_the_threshold():
    job = scenario("aws-p3", 4).job()
    site, table = job.site, job.facts[0]

    def gain_s(nbytes: int) -> float:
        local_s, remote_s = (
            together_s(site.links, [site.push[0, device], site.pull[0, device]], nbytes)
            for device in (table.latency_proxy, table.bandwidth_proxy)
        )
        return remote_s - local_s

    assert gain_s(table.threshold_bytes // 2) > 0 > gain_s(table.threshold_bytes * 2)
    assert gain_s(table.threshold_bytes) == pytest.approx(0.0, abs=2e-6)


@pytest.mark.parametrize(("preset", "num_workers"), WORKERS)
def test_the_automatic_choice_is_no_slower_than_workers_or_devices_alone_or_the_papers(preset: str, num_workers: int):
    auto_s = simulate(scenario(preset, num_workers, policy="auto").job()).iteration_s
    for policy in ("paper", "devices"):
        assert auto_s <= 1.005 * simulate(scenario(preset, num_workers, policy=policy).job()).iteration_s
    assert auto_s <= 1.02 * simulate(scenario(preset, num_workers, "allreduce").job()).iteration_s


@pytest.mark.parametrize("mode", ["allreduce", "coarse"])
def test_rings_wait_for_backward_as_they_do_live_or_as_somebody_says(mode: str):
    policy = {"policy": "paper"}
    assert scenario("aws-p3", 2, mode, **policy).job().round.hold_back is (mode == "coarse")
    for stated in (True, False):
        assert scenario("aws-p3", 2, mode, hold_back=stated, **policy).job().round.hold_back is stated


def test_an_all_reduce_that_overlaps_backward_takes_less_than_one_that_waits_and_more_beside_slowed_compute():
    jobs = [
        scenario("aws-p3", 4, "allreduce", **options).job()
        for options in ({}, {"ring_slow_down": 1.4}, {"hold_back": True})
    ]
    overlapping_s, slowed_s, held_s = (simulate(job).iteration_s for job in jobs)
    assert overlapping_s < slowed_s < held_s


@pytest.mark.parametrize(("preset", "num_workers"), WORKERS)
def test_memory_devices_in_a_ring_are_faster_than_one_coherent_device_for_all(preset: str, num_workers: int):
    dense, devices = (simulate(scenario(preset, num_workers, mode).job()) for mode in ("dense", "coarse"))
    assert devices.iteration_s < dense.iteration_s


def test_nvlink_speeds_up_the_workers_ring():
    with_it, without = (
        simulate(scenario("aws-p3", 4, "allreduce", worker_ring=kind).job()) for kind in ("auto", "pcie")
    )
    assert with_it.exposed_s < without.exposed_s


def test_gradients_are_fused_in_the_order_of_backward_and_nothing_is_lost():
    gradients = scenario("aws-p3", 2).gradients
    assert sum(gradient.num_elements for gradient in gradients) == MODEL.num_parameters
    assert [gradient.ready_s for gradient in gradients] == sorted(gradient.ready_s for gradient in gradients)


def test_each_mode_says_who_synchronises():
    dense, workers, devices = (scenario("aws-p3", 4, mode).job() for mode in MODES)
    num_gradients = len(workers.gradients)
    assert dense.placement.num_devices == 1
    assert (dense.num_to_devices, workers.num_to_devices) == (num_gradients, 0)
    assert devices.placement.num_devices == 4
    assert devices.num_to_devices == num_gradients


def test_two_workers_may_share_a_device():
    job = scenario("aws-p3", 4, num_devices=2).job()
    assert job.placement.num_devices == 2
    assert sorted(job.placement.local_proxies) == [0, 0, 1, 1]
    simulate(job)


def test_a_profile_of_another_model_is_refused():
    with pytest.raises(ConfigError, match="profile of the same model"):
        replace(scenario("aws-p3", 2), model=uniform(3, 1000))


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(ConfigError, match="too few for"):
        scenario("sdsc-p100", 64).job()


@pytest.mark.parametrize("policy", POLICIES)
def test_one_worker_alone_trains_too(policy: str):
    report = simulate(scenario("aws-p3", 1, policy=policy).job())
    assert report.iteration_s >= report.compute_s > 0


@pytest.mark.parametrize("policy", ["paper", "devices"])
def test_one_stands_for_all_from_65_workers_on(policy: str):
    machine = replace(MACHINES["aws-p3"], num_nodes=17)
    many = replace(scenario("aws-p3", 68, policy=policy), machine=machine, num_nodes=17)
    job = many.job()
    assert job.one_stands_for_all
    assert simulate(job).iteration_s > many.profile.total_forward_s + many.profile.total_backward_s


def test_many_workers_that_share_devices_are_refused_since_one_cannot_stand_for_them():
    machine = replace(MACHINES["aws-p3"], num_nodes=17)
    job = replace(scenario("aws-p3", 68, num_devices=34), machine=machine, num_nodes=17).job()
    with pytest.raises(ConfigError, match="a device of its own"):
        simulate(job)


def test_devices_sum_in_a_ring_or_in_place():
    """Of two workers on different switches: in place one fetches and writes back, each way a whole shard."""
    ring, in_place = (scenario("aws-p3", 2, collective=collective).job() for collective in ("ring", "in_place"))
    assert (ring.strategy, in_place.strategy) == (Coarse(collective="ring"), Coarse())
    took = [simulate(job) for job in (ring, in_place)]
    moved = [sum(report.link_bytes.values()) for report in took]
    assert moved[0] == pytest.approx(moved[1], rel=1e-3)  # of two members a ring sends as much
    assert took[0].iteration_s != took[1].iteration_s


def test_what_devices_cannot_sum_by_is_refused():
    with pytest.raises(ConfigError, match="collective must be one of in_place, ring, got 'tree'"):
        scenario("aws-p3", 2, collective="tree")
    with pytest.raises(ConfigError, match="one stands for all in a ring, got 128 with collective 'in_place'"):
        scenario("aws-p3", 128, collective="in_place")
