"""Jobs that profile as they run: what they look at, what they find, and what it costs."""

from dataclasses import replace
from statistics import fmean

import pytest

from coarse.errors import ConfigError
from coarse.hardware.compute import profile_for
from coarse.hardware.degradation import Degradation, at_share
from coarse.hardware.models import Precision, model_named
from coarse.hardware.presets import machine_named
from coarse.simulation.adaptation import Adaptation, drive, look_probe_batches
from coarse.simulation.job import Job
from coarse.simulation.probe_batches import ProbeBatch, probe_batch_s
from coarse.simulation.profiling import measured_facts
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.simulation.sites import Site
from coarse.simulation.training import simulate

EVERY = 3
CROSSING = Degradation(link="socket0 crossing", factor=0.1, at_s=0.2)
"""Of aws-p3: all ways to a remote proxy of two workers."""
DEVICE = Degradation(link="gpu1 duplex", factor=0.1, at_s=0.2)
"""Of sdsc-p100: all ways to the first memory device."""


def scenario(machine: str, policy: str, *degradations: Degradation, every: int = EVERY) -> Scenario:
    model, described = model_named("resnet50"), machine_named(machine)
    return Scenario(
        machine=described,
        model=model,
        profile=profile_for(model, described, None, 16, Precision.FP32),
        mode="coarse",
        num_workers=2,
        num_devices=2,
        policy=policy,
        num_iterations=12,
        profile_every=every,
        degradations=degradations,
    )


def told_the_truth(asked: Scenario) -> Job:
    """The job that knows from the start what becomes of its links."""
    job = replace(asked, profile_every=0).job()
    links = list(job.site.links)
    for _, link, bytes_per_s in job.rate_changes:
        links[link] = at_share(job.site.links[link], bytes_per_s / job.site.links[link].bytes_per_s)
    site = replace(job.site, links=tuple(links))
    facts = measured_facts(site, job.placement.cluster, job.strategy)
    everything = job.with_split(len(job.gradients))
    return asked.decide(replace(everything, site=site, facts=facts, rate_changes=()))


def iteration_s(report: Report, iteration: int) -> float:
    return fmean(row.duration_s for row in report.iterations if row.iteration == iteration)


@pytest.mark.parametrize(("machine", "policy", "degradation"), [
    ("aws-p3", "devices", CROSSING), ("aws-p3", "auto", CROSSING), ("aws-p3", "paper", CROSSING),
    ("sdsc-p100", "devices", DEVICE), ("sdsc-p100", "auto", DEVICE),
])  # fmt: skip
def test_tables_change_within_the_period_and_iterations_are_as_if_told_the_truth(machine, policy, degradation):
    asked = scenario(machine, policy, degradation)
    job = asked.job()
    report = simulate(job, decide=asked.decide)
    hit = min(row.iteration for row in report.iterations if row.end_s > degradation.at_s)
    changes = [profile.iteration for profile in report.profiles if profile.is_new]
    assert len(changes) == 1
    assert hit < changes[0] <= hit + EVERY
    truth_s = simulate(replace(told_the_truth(asked), num_iterations=2)).iteration_s
    assert report.iteration_s == pytest.approx(truth_s, rel=0.03)
    untold_s = simulate(replace(job, profile_every=0)).iteration_s
    assert untold_s > 1.02 * report.iteration_s


def test_a_job_whose_links_stay_as_they_are_keeps_its_tables_at_a_cost_below_one_percent():
    asked = scenario("aws-p3", "devices")
    report = simulate(asked.job(), decide=asked.decide)
    assert [profile.iteration for profile in report.profiles] == [3, 6, 9]
    assert not any(profile.is_new or profile.num_changed for profile in report.profiles)
    assert 0 < report.profile_share < 0.01
    assert report.iteration_s == pytest.approx(simulate(scenario("aws-p3", "devices", every=0).job()).iteration_s)


def test_a_link_that_recovers_gets_its_tables_back():
    asked = scenario("aws-p3", "devices", CROSSING, Degradation(link=CROSSING.link, factor=1.0, at_s=0.5))
    job = asked.job()
    report = simulate(job, decide=asked.decide)
    first, second = [profile for profile in report.profiles if profile.is_new]
    assert first.facts != job.facts
    assert second.facts == job.facts


def test_the_workers_ring_that_slows_down_gives_gradients_to_the_devices():
    """NVLink at a twentieth: what the workers kept goes over PCIe to the devices instead."""
    asked = scenario("aws-p3", "auto", Degradation(link="gpu0 - gpu2 *", factor=0.02, at_s=0.2))
    job = asked.job()
    report = simulate(job, decide=asked.decide)
    assert job.num_to_devices < len(job.gradients)
    assert [profile.num_to_devices for profile in report.profiles][-1] == len(job.gradients)
    truth_s = simulate(replace(told_the_truth(asked), num_iterations=2)).iteration_s
    assert report.iteration_s == pytest.approx(truth_s, rel=0.03)


def test_a_look_takes_every_way_once_and_each_sender_once_in_a_probe_batch():
    job = scenario("aws-p3", "devices").job()
    probe_batches = list(look_probe_batches(job.placement, job.site, 4096))
    sends = [send for probe_batch in probe_batches for send in probe_batch.sends]
    assert len(sends) == len(set(sends)) == 2 * 4 + 2 + 2
    assert all(len({send.port for send in each.sends}) == len(each.sends) for each in probe_batches)


def test_measuring_all_on_the_model_gives_the_models_tables():
    job = scenario("aws-p3", "devices").job()
    measured: list[ProbeBatch] = []

    def measure(probe_batch: ProbeBatch) -> tuple[float, ...]:
        measured.append(probe_batch)
        return probe_batch_s(job.site, probe_batch)

    assert drive(Adaptation(job).measure_all(), measure) == job.facts
    owners = [probe_batch.owner for probe_batch in measured]
    assert owners == sorted(owners)  # clients take turns


def looked_at(job: Job, site: Site) -> tuple[Adaptation, list[ProbeBatch]]:
    """What is measured beyond the look of a job whose site is not what its model says."""
    adaptation = Adaptation(job)
    adaptation.suppose()
    measured: list[ProbeBatch] = []

    def measure(probe_batch: ProbeBatch) -> tuple[float, ...]:
        measured.append(probe_batch)
        return probe_batch_s(site, probe_batch)

    assert drive(adaptation.look(), measure) > 0
    again = measured[len(list(look_probe_batches(job.placement, job.site, 4096))) :]
    assert drive(adaptation.look(), measure) == 0
    return adaptation, again


def targets(probe_batches: list[ProbeBatch]) -> set[int]:
    return {send.target for probe_batch in probe_batches for send in probe_batch.sends if send.way == "push"}


def test_only_ways_that_changed_are_measured_again_and_at_few_sizes_where_the_estimate_holds():
    job = scenario("sdsc-p100", "devices").job()
    slow = replace(job.site, links=tuple(at_share(x, 0.1) if x.name == "gpu3 down" else x for x in job.site.links))
    adaptation, again = looked_at(job, slow)
    assert targets(again) == {1}
    assert {probe_batch.nbytes for probe_batch in again} == {32 << 10, 512 << 10}
    told = measured_facts(slow, job.placement.cluster, job.strategy)
    for found, true in zip(adaptation.job.facts, told, strict=True):
        assert found[1:] == true[1:]
        assert found.threshold_bytes == pytest.approx(true.threshold_bytes, rel=0.1)


def test_where_the_estimate_does_not_hold_all_sizes_are_measured():
    """A longer start-up looks like a lower rate at one size, and gives itself away at another."""
    job = scenario("sdsc-p100", "devices").job()
    links = tuple(replace(x, latency_s=1e-3) if x.name == "gpu3 down" else x for x in job.site.links)
    late = replace(job.site, links=links)
    adaptation, again = looked_at(job, late)
    assert targets(again) == {1}
    assert len({probe_batch.nbytes for probe_batch in again}) > 10
    told = measured_facts(late, job.placement.cluster, job.strategy)
    assert adaptation.job.facts == told


def test_many_workers_of_which_one_stands_for_all_cannot_be_degraded():
    with pytest.raises(ConfigError, match="with fewer workers"):
        replace(scenario("aws-p3", "devices", CROSSING), num_workers=128, num_nodes=32)
    with pytest.raises(ConfigError, match=r"profile_every must lie in 0\.\.100000, got -1"):
        scenario("aws-p3", "devices", every=-1)
