"""Compute that takes longer by chance: the same for the same seed; what it does to all workers, and to one for all."""

from dataclasses import replace
from itertools import islice
from math import log1p
from statistics import fmean

import pytest

from coarse.errors import ConfigError
from coarse.simulation.jitter import Jitter
from coarse.simulation.training import simulate
from tests.unit.simulation.small_jobs import as_one, job_of

ELEMENTS = 3 * 8 * 12_500
JITTER = Jitter(share=0.1, seed=3)


def split_mix(state: int):
    """Outputs of SplitMix64 by arithmetic of whole numbers, as its paper has it."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        yield mixed ^ mixed >> 31


def first(state: int) -> int:
    return next(split_mix(state))


def test_split_mix_here_has_the_published_outputs_for_state_1234567():
    """Those of its reference implementation."""
    assert list(islice(split_mix(1234567), 2)) == [6457827717110365317, 3203168211198807973]


def test_a_draw_follows_from_seed_iteration_and_worker_alone():
    for worker, iteration in ((0, 0), (1, 0), (7, 5)):
        draw = first(first(first(3) ^ iteration) ^ worker)
        expected = 1 - 0.1 * log1p(-(draw >> 11) / 2**53)
        assert JITTER.factors(8, iteration)[worker] == expected
    assert JITTER.factors(1024, 5)[:64] == JITTER.factors(64, 5)


def test_other_seeds_and_iterations_have_other_draws():
    drawn = {Jitter(share=0.1, seed=seed).factors(4, iteration) for seed in range(5) for iteration in range(5)}
    assert len({factor for factors in drawn for factor in factors}) == 5 * 5 * 4


@pytest.mark.parametrize("num_workers", [1, 4, 64])
def test_the_slowest_of_n_is_in_the_mean_as_slow_as_the_largest_of_n_exponentials(num_workers: int):
    largest = [max(JITTER.factors(num_workers, iteration)) for iteration in range(4000)]
    harmonic = sum(1 / number for number in range(1, num_workers + 1))
    assert fmean(largest) == pytest.approx(1 + 0.1 * harmonic, rel=0.01)
    assert min(min(JITTER.factors(num_workers, iteration)) for iteration in range(100)) >= 1


@pytest.mark.parametrize("num_workers", [4, 16])
@pytest.mark.parametrize("slow_downs", [(), (1.5, 1.2)])
def test_one_for_all_takes_as_long_and_idles_as_much_as_all_do_step_by_step(num_workers: int, slow_downs):
    factors = (*slow_downs, *(1.0,) * (num_workers - len(slow_downs))) if slow_downs else ()
    job = job_of(num_workers, ((ELEMENTS, 0.4),), forward_s=0.2, backward_s=0.4, slow_downs=factors)
    job = replace(job, jitter=Jitter(share=0.2, seed=1), num_iterations=5)
    one, each = simulate(as_one(job)), simulate(job)
    for number in range(5):
        of_one, *_ = [row for row in one.iterations if row.iteration == number]
        of_each = [row for row in each.iterations if row.iteration == number]
        assert of_one.compute_s == pytest.approx(max(row.compute_s for row in of_each))
    assert one.compute_s == pytest.approx(each.compute_s)
    assert one.idle_s == pytest.approx(each.idle_s, rel=0.02)
    assert one.iteration_s == pytest.approx(each.iteration_s, rel=1e-3)


def test_what_the_others_of_a_straggler_idle_is_the_mean_over_all():
    job = job_of(4, ((ELEMENTS, 0.4),), backward_s=0.4, slow_downs=(1.0, 1.5, 1.0, 1.0))
    report = simulate(as_one(job))
    assert report.compute_s == pytest.approx(0.4 * 4.5 / 4)
    assert report.idle_s == pytest.approx(0.4 * 1.5 * 3 / 12)
    assert report.iteration_s == pytest.approx(report.compute_s + report.idle_s + report.exposed_s)


def test_the_same_seed_gives_the_same_report_to_the_bit():
    job = replace(job_of(4, ((ELEMENTS, 0.4),), backward_s=0.4, num_proxied=1), jitter=JITTER)
    assert simulate(job).iterations == simulate(job).iterations
    assert simulate(replace(job, jitter=Jitter(share=0.1, seed=4))).iterations != simulate(job).iterations


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"share": 0.0}, "jitter must be above 0"),
        ({"share": -0.1}, "got -0.1; for 10 % write 0.1"),
        ({"share": 11.0}, "at most 10"),
        ({"share": float("nan")}, "got nan"),
        ({"share": 0.1, "seed": -1}, r"seed must lie in 0..2\^63-1, got -1"),
        ({"share": 0.1, "seed": 1 << 63}, "seed must lie in"),
    ],
)
def test_a_jitter_that_cannot_be_is_refused(values, said: str):
    with pytest.raises(ConfigError, match=said):
        Jitter(**values)
