"""Compute beside rings against the integral of its pace, and training where a ring slows it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.simulation.compute import Compute
from coarse.simulation.engine import Engine
from coarse.simulation.training import simulate
from tests.unit.simulation.small_jobs import job_of, site_of

MOMENTS = st.lists(st.floats(0, 10), min_size=1, max_size=5).map(sorted)
RINGS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), max_size=4)


def found_moments(
    moments: list[float], rings: list[tuple[float, float]], slow_down: float
) -> tuple[list[float], float]:
    """When each moment of compute comes, with rings of (begin, seconds); and the seconds that they cost."""
    engine, found = Engine([]), []
    compute = Compute(engine, slow_down)
    compute.begin([(at_s, lambda: found.append(engine.now_s)) for at_s in moments])
    for begin_s, seconds in rings:
        engine.at(begin_s, compute.on_ring_begun)
        engine.at(begin_s + seconds, compute.on_ring_ended)
    engine.run()
    return found, compute.lost_s


def computed_until(at_s: float, rings: list[tuple[float, float]], slow_down: float) -> float:
    """Seconds of compute that are done at a time: the pace is 1, and 1 / slow_down beside a ring."""
    edges = sorted({0.0, at_s, *(edge for begin_s, seconds in rings for edge in (begin_s, begin_s + seconds))})
    edges = [edge for edge in edges if edge <= at_s]
    done_s = 0.0
    for begin_s, end_s in pairwise(edges):
        middle_s = (begin_s + end_s) / 2
        is_beside = any(first <= middle_s <= first + seconds for first, seconds in rings)
        done_s += (end_s - begin_s) / (slow_down if is_beside else 1.0)
    return done_s


@given(MOMENTS, RINGS, st.sampled_from([1.19, 1.4, 3.0]))
def test_moments_come_once_so_much_is_computed(moments, rings, slow_down):
    found, _ = found_moments(moments, rings, slow_down)
    assert [computed_until(at_s, rings, slow_down) for at_s in found] == pytest.approx(moments, abs=1e-9)


@given(MOMENTS, RINGS)
def test_without_a_slow_down_moments_come_when_they_were_asked_for_to_the_bit(moments, rings):
    assert found_moments(moments, rings, 1.0) == (moments, 0.0)


def test_what_rings_cost_is_counted():
    assert found_moments([4.0], [(1.0, 2.0)], 2.0) == ([5.0], 1.0)  # two seconds at half the pace
    assert found_moments([2.0], [(1.0, 10.0)], 2.0) == ([3.0], 1.0)
    assert found_moments([2.0], [(0.5, 1.0), (0.5, 1.0)], 2.0) == ([2.5], 0.5)  # two at once cost no more than one


def test_a_ring_beside_backward_makes_it_longer_and_one_after_it_does_not():
    job = job_of(2, ((1_000_000, 0.01), (1_000_000, 0.03)), forward_s=0.01, backward_s=0.03)
    job = replace(job, site=site_of(2), num_iterations=2).with_split(0)
    free = replace(job, round=replace(job.round, hold_back=False))
    beside, slowed = (simulate(replace(free, ring_slow_down=factor)) for factor in (1.0, 1.4))
    held, held_slowed = (simulate(replace(job, ring_slow_down=factor)) for factor in (1.0, 1.4))
    ring_s = held.iteration_s - held.compute_s  # both gradients, one after the other
    assert beside.compute_s == pytest.approx(0.04)
    assert slowed.compute_s == pytest.approx(0.04 + 0.4 / 1.4 * ring_s / 2, rel=1e-3)
    assert held_slowed.iteration_s == held.iteration_s


def test_a_slow_down_below_one_is_refused():
    with pytest.raises(ValueError, match="ring_slow_down"):
        replace(job_of(2, ((100, 0.0),)), ring_slow_down=0.9)
