"""Max-min fairness against its definition and against pouring water."""

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.hardware.fair_share import max_min_rates


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a few transfers take of a few links, and how fast their rates rise."""

    costs: dict[int, dict[int, float]]
    caps: dict[int, float]
    weights: dict[int, float]
    capacities: dict[int, float]

    def rates(self) -> dict[int, float]:
        return max_min_rates(self.costs, self.caps, self.weights, self.capacities)

    def load_of(self, link: int, rates: dict[int, float]) -> float:
        return sum(rates[transfer] * by_link.get(link, 0) for transfer, by_link in self.costs.items())


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    amount = st.one_of(st.integers(1, 6).map(float), st.floats(0.1, 100))
    cost = st.one_of(st.sampled_from([1.0, 1.0, 2.0]), st.floats(1, 100))
    weight = st.one_of(st.sampled_from([1.0, 1.0, 0.5]), st.floats(0.01, 1))
    capacities = dict(enumerate(draw(st.lists(amount, min_size=1, max_size=6))))
    by_link = st.dictionaries(st.sampled_from(sorted(capacities)), cost, max_size=5)
    costs = dict(enumerate(draw(st.lists(by_link, max_size=10))))
    return Demand(
        costs=costs,
        caps={transfer: draw(amount) for transfer in costs},
        weights={transfer: draw(weight) for transfer in costs},
        capacities=capacities,
    )


@given(demands())
def test_no_link_and_no_cap_is_exceeded(demand: Demand):
    rates = demand.rates()
    assert all(0 < rates[transfer] <= demand.caps[transfer] for transfer in demand.costs)
    assert all(demand.load_of(link, rates) <= demand.capacities[link] * (1 + 1e-9) for link in demand.capacities)


@given(demands())
def test_every_transfer_is_held_by_its_cap_or_by_a_full_link_where_nobody_is_faster_by_weight(demand: Demand):
    rates = demand.rates()
    levels = {transfer: rates[transfer] / demand.weights[transfer] for transfer in rates}

    def holds(link: int, transfer: int) -> bool:
        full = demand.load_of(link, rates) >= demand.capacities[link] * (1 - 1e-9)
        others = [other for other, by_link in demand.costs.items() if link in by_link]
        return full and all(levels[transfer] >= levels[other] * (1 - 1e-9) for other in others)

    for transfer, by_link in demand.costs.items():
        assert rates[transfer] == demand.caps[transfer] or any(holds(link, transfer) for link in by_link)


@given(demands(), st.randoms(use_true_random=False))
def test_the_order_of_the_transfers_changes_nothing(demand: Demand, shuffler):
    order = list(demand.costs)
    shuffler.shuffle(order)
    shuffled = replace(demand, costs={transfer: demand.costs[transfer] for transfer in order})
    assert shuffled.rates() == pytest.approx(demand.rates())


@given(demands(), st.floats(0.01, 100))
def test_weights_count_only_against_one_another(demand: Demand, factor: float):
    scaled = replace(demand, weights={transfer: weight * factor for transfer, weight in demand.weights.items()})
    assert scaled.rates() == pytest.approx(demand.rates())


def poured(demand: Demand) -> dict[int, float]:
    """All rates rise by their weights until a cap or a link is full, and then those of the others; in fractions."""
    costs = {t: {link: Fraction(cost) for link, cost in by_link.items()} for t, by_link in demand.costs.items()}
    weights = {transfer: Fraction(weight) for transfer, weight in demand.weights.items()}
    rates, rising = {transfer: Fraction(0) for transfer in costs}, set(costs)
    while rising:
        room = {t: (Fraction(demand.caps[t]) - rates[t]) / weights[t] for t in rising}
        for link, capacity in demand.capacities.items():
            spare = Fraction(capacity) - sum(rates[t] * by_link.get(link, 0) for t, by_link in costs.items())
            users = [transfer for transfer in rising if link in costs[transfer]]
            rise = sum(weights[transfer] * costs[transfer][link] for transfer in users)
            room |= {transfer: min(room[transfer], spare / rise) for transfer in users}
        step = min(room.values())
        rates |= {transfer: rates[transfer] + step * weights[transfer] for transfer in rising}
        rising = {transfer for transfer in rising if room[transfer] > step}
    return {transfer: float(rate) for transfer, rate in rates.items()}


@given(demands())
def test_it_equals_raising_all_rates_alike_until_something_is_full(demand: Demand):
    assert demand.rates() == pytest.approx(poured(demand))


def equal_weights(costs: dict[object, object]) -> dict[object, float]:
    return dict.fromkeys(costs, 1.0)


def test_what_a_slow_transfer_leaves_goes_to_the_others():
    costs = {"slow": {0: 1.0}, "one": {0: 1.0}, "two": {0: 1.0, 1: 1.0}}
    rates = max_min_rates(costs, {"slow": 1.0, "one": 9.0, "two": 9.0}, equal_weights(costs), {0: 9.0, 1: 3.0})
    assert rates == {"slow": 1.0, "one": 5.0, "two": 3.0}


def test_a_link_that_costs_twice_as_much_gives_half():
    assert max_min_rates({0: {5: 2.0}}, {0: 9.0}, {0: 1.0}, {5: 8.0}) == {0: 4.0}


def test_of_two_weights_the_larger_gets_more_as_far_as_its_cap():
    costs = {"light": {0: 1.0}, "heavy": {0: 1.0}}
    weights = {"light": 1.0, "heavy": 3.0}
    assert max_min_rates(costs, {"light": 9.0, "heavy": 9.0}, weights, {0: 8.0}) == {"light": 2.0, "heavy": 6.0}
    assert max_min_rates(costs, {"light": 9.0, "heavy": 5.0}, weights, {0: 8.0}) == {"light": 3.0, "heavy": 5.0}


def test_transfers_that_share_nothing_have_their_caps():
    costs, caps = {0: {0: 1.0}, 1: {1: 1.0}, 2: {}}, {0: 1.0, 1: 2.0, 2: 3.0}
    assert max_min_rates(costs, caps, equal_weights(costs), {0: 5.0, 1: 2.0}) == caps


def test_weights_as_far_apart_as_numbers_go_break_nothing():
    costs = {0: {0: 1e20, 1: 1.0}, 1: {0: 1.0, 1: 1.0}, 2: {1: 3.0}}
    rates = max_min_rates(costs, {0: 1e9, 1: 1e9, 2: 1e9}, {0: 1e-20, 1: 1.0, 2: 1e-3}, {0: 7.0, 1: 0.1})
    assert all(0 < rate < 1e9 for rate in rates.values())
