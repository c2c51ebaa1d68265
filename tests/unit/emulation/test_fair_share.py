"""Max-min fairness against its definition and against pouring water."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.emulation.fair_share import max_min_rates

Demand = tuple[dict[int, tuple[int, ...]], dict[int, float], dict[int, float]]


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Paths, caps and capacities of a few transfers on a few links; a path may take a link twice."""
    amount = st.one_of(st.integers(1, 6).map(float), st.floats(0.1, 100))
    capacities = dict(enumerate(draw(st.lists(amount, min_size=1, max_size=6))))
    path = st.lists(st.sampled_from(sorted(capacities)), max_size=5).map(tuple)
    paths = dict(enumerate(draw(st.lists(path, max_size=10))))
    return paths, {transfer: draw(amount) for transfer in paths}, capacities


def load_of(link: int, paths: dict[int, tuple[int, ...]], rates: dict[int, float]) -> float:
    return sum(rates[transfer] * path.count(link) for transfer, path in paths.items())


@given(demands())
def test_no_link_and_no_cap_is_exceeded(demand: Demand):
    paths, caps, capacities = demand
    rates = max_min_rates(paths, caps, capacities)
    assert all(0 < rates[transfer] <= caps[transfer] for transfer in paths)
    assert all(load_of(link, paths, rates) <= capacities[link] * (1 + 1e-9) for link in capacities)


@given(demands())
def test_every_transfer_is_held_by_its_cap_or_by_a_full_link_where_nobody_is_faster(demand: Demand):
    paths, caps, capacities = demand
    rates = max_min_rates(paths, caps, capacities)

    def holds(link: int, transfer: int) -> bool:
        full = load_of(link, paths, rates) >= capacities[link] * (1 - 1e-9)
        return full and all(rates[transfer] >= rates[t] * (1 - 1e-9) for t, path in paths.items() if link in path)

    for transfer, path in paths.items():
        assert rates[transfer] == caps[transfer] or any(holds(link, transfer) for link in path)


@given(demands(), st.randoms(use_true_random=False))
def test_the_order_of_the_transfers_changes_nothing(demand: Demand, shuffler):
    paths, caps, capacities = demand
    order = list(paths)
    shuffler.shuffle(order)
    shuffled = max_min_rates({transfer: paths[transfer] for transfer in order}, caps, capacities)
    assert shuffled == pytest.approx(max_min_rates(paths, caps, capacities))


def poured(paths: dict[int, tuple[int, ...]], caps: dict[int, float], capacities: dict[int, float]) -> dict[int, float]:
    """All rates rise alike until a cap or a link is full, and then those of the others; in exact fractions."""
    levels, rising = {transfer: Fraction(0) for transfer in paths}, set(paths)
    while rising:
        room = {transfer: Fraction(caps[transfer]) - levels[transfer] for transfer in rising}
        for link in capacities:
            spare = Fraction(capacities[link]) - sum(levels[t] * path.count(link) for t, path in paths.items())
            num_rising = sum(paths[transfer].count(link) for transfer in rising)
            for transfer in (t for t in rising if link in paths[t]):
                room[transfer] = min(room[transfer], spare / num_rising)
        drop = min(room.values())
        levels |= {transfer: levels[transfer] + drop for transfer in rising}
        rising = {transfer for transfer in rising if room[transfer] > drop}
    return {transfer: float(level) for transfer, level in levels.items()}


@given(demands())
def test_it_equals_raising_all_rates_alike_until_something_is_full(demand: Demand):
    assert max_min_rates(*demand) == pytest.approx(poured(*demand))


def test_what_a_slow_transfer_leaves_goes_to_the_others():
    paths = {"slow": (0,), "one": (0,), "two": (0, 1)}
    rates = max_min_rates(paths, {"slow": 1.0, "one": 9.0, "two": 9.0}, {0: 9.0, 1: 3.0})
    assert rates == {"slow": 1.0, "one": 5.0, "two": 3.0}


def test_a_link_taken_twice_gives_half():
    assert max_min_rates({0: (5, 5)}, {0: 9.0}, {5: 8.0}) == {0: 4.0}


def test_transfers_that_share_nothing_have_their_caps():
    caps = {0: 1.0, 1: 2.0, 2: 3.0}
    assert max_min_rates({0: (0,), 1: (1,), 2: ()}, caps, {0: 5.0, 1: 2.0}) == caps
