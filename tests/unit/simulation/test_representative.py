"""One member that stands for all against every member on its own."""

import pytest

from coarse.simulation import representative
from coarse.simulation.job import Job
from coarse.simulation.representative import steps_within
from coarse.simulation.training import simulate
from tests.unit.simulation.small_jobs import LATENCY_S, as_one, job_of, site_of

SIZES = [2, 3, 4, 8]
ELEMENTS = 3 * 8 * 12_500
UNEVEN = ((ELEMENTS, 0.1), (12_345, 0.15), (7 * ELEMENTS, 0.2), (500, 0.25), (2 * ELEMENTS, 0.4), (ELEMENTS, 0.4))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_proxied", [0, 1])
def test_one_shard_takes_exactly_as_long_as_step_by_step(size: int, num_proxied: int):
    job = job_of(size, ((ELEMENTS, 0.4),), backward_s=0.4, num_proxied=num_proxied)
    alike, stepwise = simulate(as_one(job)), simulate(job)
    assert alike.iteration_s == pytest.approx(stepwise.iteration_s, rel=1e-6)
    assert alike.exposed_s == pytest.approx(stepwise.exposed_s, rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_proxied", [0, 3, len(UNEVEN)])
@pytest.mark.parametrize("partition_bytes", [400_000, 1 << 30])
def test_a_job_takes_as_long_as_step_by_step_within_one_percent(size: int, num_proxied: int, partition_bytes: int):
    job = job_of(size, UNEVEN, backward_s=0.4, num_proxied=num_proxied, partition_bytes=partition_bytes)
    assert simulate(as_one(job)).iteration_s == pytest.approx(simulate(job).iteration_s, rel=0.01)


def nothing_hidden(size: int, latency_s: float = LATENCY_S) -> Job:
    """A dozen shards that all begin at once."""
    at_once = tuple((num_elements, 0.0) for num_elements, _ in UNEVEN)
    site = site_of(size, latency_s=latency_s)
    return job_of(size, at_once, num_proxied=len(UNEVEN), partition_bytes=400_000, site=site, num_sync_groups=2)


@pytest.mark.parametrize("size", SIZES)
def test_without_start_ups_shards_take_turns_as_step_by_step(size: int):
    job = nothing_hidden(size, latency_s=0.0)
    assert simulate(as_one(job)).iteration_s == pytest.approx(simulate(job).iteration_s, rel=1e-4)  # unequal chunks


@pytest.mark.parametrize("size", SIZES)
def test_a_synchronisation_that_nothing_hides_takes_as_long_within_three_percent(size: int):
    """Start-ups let equal members fall out of step, which one that stands for all cannot."""
    job = nothing_hidden(size)
    assert simulate(as_one(job)).iteration_s == pytest.approx(simulate(job).iteration_s, rel=0.03)


@pytest.mark.parametrize(("most_members", "within"), [(2, 0.15), (4, 0.1), (8, 0.03)])
def test_the_more_turns_a_ring_takes_the_closer_it_comes(monkeypatch, most_members: int, within: float):
    stepwise_s = simulate(nothing_hidden(8)).iteration_s
    monkeypatch.setattr(representative, "MOST_MEMBERS", most_members)
    assert simulate(as_one(nothing_hidden(8))).iteration_s == pytest.approx(stepwise_s, rel=within)


@pytest.mark.parametrize("most_members", [2, 3, 5])
@pytest.mark.parametrize("num_proxied", [0, 1])
def test_one_shard_takes_as_long_by_whatever_number_of_members(monkeypatch, most_members: int, num_proxied: int):
    job = job_of(8, ((ELEMENTS, 0.4),), backward_s=0.4, num_proxied=num_proxied)
    stepwise = simulate(job)
    monkeypatch.setattr(representative, "MOST_MEMBERS", most_members)
    alike = simulate(as_one(job))
    assert alike.exposed_s == pytest.approx(stepwise.exposed_s, rel=1e-6)
    assert alike.link_bytes["device ring 0"] == stepwise.link_bytes["device ring 0"]


@pytest.mark.parametrize("num_members", [2, 3, 17, 18, 100, 1024])
@pytest.mark.parametrize("num_few", [2, 5, 17])
def test_few_steps_stand_for_all_steps_of_both_halves_of_a_ring(num_members: int, num_few: int):
    num_few = min(num_few, num_members)
    steps = [steps_within(step, num_few, num_members) for step in range(2 * (num_few - 1))]
    assert min(steps) >= 1
    assert sum(steps[: num_few - 1]) == sum(steps[num_few - 1 :]) == num_members - 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_proxied", [0, 1])
def test_the_first_member_s_links_carry_the_bytes_that_they_carry_step_by_step(size: int, num_proxied: int):
    job = job_of(size, ((ELEMENTS, 0.4),), backward_s=0.4, num_proxied=num_proxied)
    alike, stepwise = simulate(as_one(job)).link_bytes, simulate(job).link_bytes
    for role in ("push", "pull", "device ring", "worker ring"):
        assert alike[f"{role} 0"] == pytest.approx(stepwise[f"{role} 0"])


def test_the_slowest_worker_stands_for_all():
    job = job_of(4, ((ELEMENTS, 0.4),), backward_s=0.4, num_proxied=1, slow_downs=(1.0, 1.5, 1.0, 1.0))
    alike, stepwise = simulate(as_one(job)), simulate(job)
    assert alike.iteration_s == pytest.approx(stepwise.iteration_s, rel=1e-3)
    assert len(alike.steady()) == 1


def test_hundreds_of_members_cost_no_more_events_than_thirty():
    few, many = (simulate(as_one(job_of(size, UNEVEN, backward_s=0.4, num_proxied=3))) for size in (30, 256))
    assert many.num_events == few.num_events
