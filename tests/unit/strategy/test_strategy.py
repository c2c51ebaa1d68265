"""What strategies may return, and what of it is refused; the facts and views that they decide by."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.protocol.plan import Cluster, Tensor
from coarse.strategy import (
    By,
    Coarse,
    Exchanges,
    ProxyProfile,
    Round,
    Strategy,
    central,
    first_to_devices,
    on_each_node,
    ring_of_all,
)
from coarse.strategy.strategy import require_facts, require_hints, require_round, require_round_of
from experiments.strategies.diloco import DiLoCo
from experiments.strategies.load_aware import LoadAware

TWO = Cluster(worker_nodes=(0, 0, 1, 1), device_nodes=(0, 0, 1, 1), local_devices=(0, 1, 2, 3))
THREE = first_to_devices(2, 3)


def test_constructors_give_the_same_object_for_the_same_plan():
    homes = TWO.local_devices
    one, other = Tensor(4, 1000, 4), Tensor(8, 1000, 4)
    assert on_each_node(one, TWO, homes, 100) is on_each_node(other, TWO, homes, 100)
    assert on_each_node(one, TWO, homes, 100) != on_each_node(Tensor(5, 1000, 4), TWO, homes, 100)
    assert ring_of_all(one, TWO, homes, 100) is ring_of_all(Tensor(5, 1000, 4), TWO, homes, 100)
    one_node = Cluster(worker_nodes=(0, 0), device_nodes=(0, 0, 0), local_devices=(0, 1))
    assert central(one_node, 2).homes == (2, 2)
    with pytest.raises(ConfigError, match="there are 2 nodes; refuse such clusters in check"):
        central(TWO, 2)


@pytest.mark.parametrize("facts", [[1, 2], (1.0,), (True,), (1 << 63,), None, "12"])
def test_facts_are_tuples_of_whole_numbers(facts):
    with pytest.raises(ConfigError, match=r"Coarse.facts must be a tuple of whole numbers of 64 bits, got"):
        require_facts(Coarse(), facts)
    assert require_facts(Coarse(), (1, -2)) == (1, -2)


@pytest.mark.parametrize("hints", [[1], [1, 2, 3], (0.5, 1), None])
def test_hints_are_a_whole_number_for_each_bucket(hints):
    with pytest.raises(ConfigError, match=r"Coarse.hints must return a whole number of 64 bits for each of 2 buckets"):
        require_hints(Coarse(), hints, [8, 8])


@pytest.mark.parametrize("decided", [None, Round(by=(By.DEVICES,)), Round(by=("devices",) * 2)])
def test_a_decision_says_who_sums_each_bucket(decided):
    with pytest.raises(ConfigError, match=r"Coarse.decide must return a Round that says who sums each of 2 buckets"):
        require_round(Coarse(), decided, 2)


class Moving(Strategy):
    exchanges = Exchanges.UPDATES

    def round(self, number, decided):
        return first_to_devices(number, len(decided.by))


class Leaving(Strategy):
    def round(self, number, decided):
        return decided.of_nobody()


def test_a_round_may_leave_updates_out_and_neither_move_buckets_nor_leave_gradients_out():
    assert require_round_of(Moving(), 2, THREE) == THREE
    with pytest.raises(ConfigError, match=r"Moving.round\(3\) gives buckets to others than decide"):
        require_round_of(Moving(), 3, THREE)
    with pytest.raises(ConfigError, match=r"Leaving.round\(0\) leaves gradients out, .*Exchanges.UPDATES"):
        require_round_of(Leaving(), 0, THREE)
    every = DiLoCo(every=3)
    assert [require_round_of(every, number, THREE).num_exchanged for number in range(6)] == [0, 0, 3, 0, 0, 3]


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3).map(sorted), st.integers(0, 1 << 22))
def test_copies_take_as_long_as_the_line_through_what_was_measured(seconds, nbytes):
    rows = tuple(zip((1 << 12, 1 << 16, 1 << 20), seconds, strict=True))
    way = ProxyProfile(device=0, is_local=True, latency_s=seconds[0] / 2, seconds_by_nbytes=rows)
    assert way.copy_s(0) == way.latency_s
    assert [way.copy_s(size) for size, _ in rows] == pytest.approx(seconds)
    assert way.copy_s(nbytes) <= way.copy_s(nbytes + 1) * (1 + 1e-12)
    assert way.copy_s(1 << 21) == pytest.approx(2 * seconds[-1])


def test_the_longest_buckets_go_to_the_devices_that_would_be_done_first():
    facts = ((10, 30), (10, 20))  # a device that takes three times as long
    assert LoadAware().hints([100, 400, 300, 100], TWO, facts) == [1, 0, 0, 1]
    plan = LoadAware().plan(Tensor(1, 100, 4, hint=1), TWO, facts)
    assert plan.homes == (1, 1, 3, 3)


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.0), (0.7, 0.9)])
def test_the_outer_step_is_torchs_sgd_with_nesterov_momentum(lr, momentum):
    torch = pytest.importorskip("torch")
    parameter = torch.zeros(3, requires_grad=True)
    options = {"momentum": momentum, "nesterov": True} if momentum else {}
    sgd = torch.optim.SGD([parameter], lr=lr, **options)
    strategy, state, at = DiLoCo(lr=lr, momentum=momentum), None, np.zeros(3, np.float32)
    for mean in np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32):
        update, state = strategy.outer(mean, state)
        at = at + update
        parameter.grad = -torch.from_numpy(mean)
        sgd.step()
    np.testing.assert_allclose(at, parameter.detach().numpy(), rtol=1e-5)


def test_a_class_that_says_nothing_of_plans_says_what_to_return():
    @dataclass(frozen=True)
    class Empty(Strategy):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no plan"):
        Empty().plan(Tensor(1, 1, 4), TWO, ())
