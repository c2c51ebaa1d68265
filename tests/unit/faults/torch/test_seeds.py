"""Faults drawn from seeds: killed at any store, damaged now and then, a job ends with the bits of one that was not."""

import pytest

from coarse.errors import StorageError
from tests.support.faults.bugs import BUGS, MOST_SEEDS, seeds_to_find
from tests.support.faults.job import Plan, is_storage_error_due, run
from tests.support.faults.trainings import on_nodes, small, with_torch

SMALL_SEEDS = {1: 120, 2: 70, 3: 30}
"""By number of workers."""
TORCH_SEEDS = 20
NODE_SEEDS = 25


def ends_alike(plan: Plan, seed: int, quiet: str) -> int:
    """Faults of a run by a seed, which must end with the bits of the quiet run; a failing one says its command."""
    trace: list[str] = []
    try:
        found, _ = run(plan, seed, trace=trace)
    except StorageError:
        assert is_storage_error_due(trace), f"nothing was damaged; python -m tests.support.faults {seed}: {trace}"
        return len(trace)
    assert found == quiet, f"other bits; python -m tests.support.faults {seed}: {trace}"
    return len(trace)


@pytest.mark.parametrize("num_workers", SMALL_SEEDS)
def test_a_small_training_has_the_same_bits_whatever_dies(num_workers):
    plan = small(num_workers)
    quiet, _ = run(plan, None)
    seeds = SMALL_SEEDS[num_workers]
    assert sum(ends_alike(plan, seed, quiet) for seed in range(seeds)) > seeds


def test_a_node_may_be_lost_where_there_is_a_copy_on_disk():
    plan = on_nodes()
    quiet, _ = run(plan, None)
    assert sum(ends_alike(plan, seed, quiet) for seed in range(NODE_SEEDS)) > NODE_SEEDS
    traces = [run(plan, seed)[1] for seed in range(20)]
    told = " ".join(line for trace in traces for line in trace)
    assert "lost; the job goes on from version" in told
    assert "the job begins anew" in told


def test_an_optimizer_data_and_dropout_have_the_same_bits():
    plan = with_torch()
    quiet, _ = run(plan, None)
    assert sum(ends_alike(plan, seed, quiet) for seed in range(TORCH_SEEDS)) > TORCH_SEEDS


@pytest.mark.test_all
@pytest.mark.parametrize("first", range(0, 10_000, 2_000))
def test_ten_thousand_seeds(first):
    plans = [small(1), small(2), small(3), on_nodes(), with_torch()]
    quiet = [run(plan, None)[0] for plan in plans]
    for seed in range(first, first + 2_000):
        place = seed % len(plans)
        ends_alike(plans[place], seed, quiet[place])


def test_the_same_seed_does_the_same():
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run(small(2), 5, trace=trace)
    assert traces[0] == traces[1]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    found = seeds_to_find(bug, small(2) if BUGS[bug][0] == "small" else with_torch())
    assert found is not None, f"not found by {MOST_SEEDS} seeds"
