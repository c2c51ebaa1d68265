# Pure: no MPI, threads, clock or environment.
"""How many gradients go to the memory devices: the paper's rule, and the simulator's own choice (COARSE III-F)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from coarse.protocol.plan import RoutingTable
from coarse.simulation.job import Job
from coarse.simulation.report import Report
from coarse.simulation.training import simulate

_NUM_PROBES = 8
"""Splits tried over the whole range before the search closes in on the best of them."""
_TRIAL_ITERATIONS = 1
_STEADY_ITERATIONS = 3
_STEADY_TOLERANCE = 0.02
"""By how much later iterations may exceed the first, in which all workers begin together."""

Simulate = Callable[[Job], Report]


def most_trials(num_gradients: int) -> int:
    """The most splits that `search_splits` simulates: for an estimate of the time left."""
    stride = max(1, num_gradients // _NUM_PROBES)
    return len({*range(0, num_gradients + 1, stride), num_gradients}) + 2 * (stride.bit_length() - 1)


def with_best_split(
    job: Job, other_tables: Sequence[tuple[RoutingTable, ...]] = (), run: Simulate = simulate
) -> Job:
    """The job with the split, and of several sets of routing tables the one, that simulate fastest.

    m = 0 (the workers' ring alone) is among the splits, so the choice is never slower, as far as the simulation tells,
    than an all-reduce whose ring waits for backward as the job's does. Where two take equally long, more goes to the
    memory devices. A trial is one iteration; where later ones of the best are slower, as its workers no longer begin
    together, those count.
    """
    every = (job.tables, *other_tables)
    trials = [
        (iteration_s, -split, place)
        for place, tables in enumerate(every)
        for split, iteration_s in search_splits(replace(job, tables=tables, num_iterations=_TRIAL_ITERATIONS), run)
    ]
    best: tuple[float, Job] | None = None
    for first_s, negative_split, place in sorted(trials):
        if best is not None and first_s >= best[0]:
            break
        choice = replace(job, tables=every[place], num_proxy_gradients=-negative_split)
        later_s = run(replace(choice, num_iterations=_STEADY_ITERATIONS)).iteration_s
        if best is None or later_s < best[0]:
            best = later_s, choice
        if later_s <= (1 + _STEADY_TOLERANCE) * first_s:
            break
    assert best is not None, "a search tries something"
    return best[1]


def search_splits(job: Job, run: Simulate = simulate) -> Iterator[tuple[int, float]]:
    """(split, seconds of an iteration) of the splits that a search looks at: a grid, then closer and closer."""
    num_gradients = len(job.gradients)
    seconds: dict[int, float] = {}

    def tried(split: int) -> float:
        if split not in seconds:
            seconds[split] = run(replace(job, num_proxy_gradients=split)).iteration_s
        return seconds[split]

    stride = max(1, num_gradients // _NUM_PROBES)
    for split in {*range(0, num_gradients + 1, stride), num_gradients}:
        tried(split)
    while stride > 1:
        stride //= 2
        centre = min(seconds, key=lambda split: (seconds[split], -split))
        for split in (centre - stride, centre + stride):
            if 0 <= split <= num_gradients:
                tried(split)
    yield from sorted(seconds.items())
