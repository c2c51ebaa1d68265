# Pure: no MPI, threads, clock or environment.
"""Search for the split of buckets, and the routes, that simulate fastest (COARSE III-F)."""

from collections.abc import Sequence

from coarse.protocol.plan import Facts
from coarse.strategy.rounds import Round, first_to_devices
from coarse.strategy.strategy import View

_NUM_PROBES = 8
"""Splits tried over the whole range before the search closes in on the best of them."""
_STEADY_ITERATIONS = 3
_STEADY_TOLERANCE = 0.02
"""Share by which later iterations may exceed the first, in which all workers begin together."""


def most_trials(num_buckets: int) -> int:
    """Return the most splits that `search_splits` simulates, for an estimate of the time left."""
    stride = max(1, num_buckets // _NUM_PROBES)
    return len({*range(0, num_buckets + 1, stride), num_buckets}) + 2 * (stride.bit_length() - 1)


def best_round(view: View, routes: Sequence[tuple[Facts, ...] | None], *, hold_back: bool = True) -> Round:
    """Return the split and the routes (None: as measured) that simulate fastest.

    m = 0 (the workers' ring alone) is among the splits. So the choice is never slower, as far as the simulation tells,
    than an all-reduce whose ring waits for backward. Among equally fast choices more goes to the memory devices. A
    trial is one iteration. If later iterations of the best choice are slower, because its workers no longer begin
    together, those count.
    """
    count = len(view.nbytes)
    trials = [
        (iteration_s, -split, place)
        for place, facts in enumerate(routes)
        for split, iteration_s in search_splits(view, facts, hold_back=hold_back)
    ]
    best: tuple[float, Round] | None = None
    for first_s, negative_split, place in sorted(trials):
        if best is not None and first_s >= best[0]:
            break
        choice = first_to_devices(-negative_split, count, hold_back=hold_back, facts=routes[place])
        later_s = view.iteration_s(choice, iterations=_STEADY_ITERATIONS)
        if best is None or later_s < best[0]:
            best = later_s, choice
        if later_s <= (1 + _STEADY_TOLERANCE) * first_s:
            break
    assert best is not None, "a search tries something"
    return best[1]


def search_splits(
    view: View, facts: tuple[Facts, ...] | None = None, *, hold_back: bool = True
) -> list[tuple[int, float]]:
    """Return (split, seconds of an iteration) of each split that the search tries.

    It tries a grid of splits, then closes in on the best of them.
    """
    count = len(view.nbytes)
    seconds: dict[int, float] = {}

    def tried(split: int) -> float:
        if split not in seconds:
            seconds[split] = view.iteration_s(first_to_devices(split, count, hold_back=hold_back, facts=facts))
        return seconds[split]

    stride = max(1, count // _NUM_PROBES)
    for split in {*range(0, count + 1, stride), count}:
        tried(split)
    while stride > 1:
        stride //= 2
        centre = min(seconds, key=lambda split: (seconds[split], -split))
        for split in (centre - stride, centre + stride):
            if 0 <= split <= count:
                tried(split)
    return sorted(seconds.items())
