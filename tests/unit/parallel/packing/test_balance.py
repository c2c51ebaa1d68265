"""Minibatches divided among ranks: every sample once, below the cap, and never slower than samples in turn."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.errors import CapacityError, ConfigError
from coarse.parallel.packing.balance import lb_micro, lb_mini, local_sort
from coarse.parallel.packing.costs import QWEN_7B, TOKENS, Cost
from coarse.parallel.packing.partitions import balanced_parts, get_seqlen_balanced_partitions, largest_sum
from coarse.parallel.packing.plans import MinibatchPlan

LENGTHS = st.lists(st.integers(0, 1000), min_size=1, max_size=40)
COST = Cost(quadratic=3.0, linear=1.0, scale=100.0)


def require_each_once(plan: MinibatchPlan, num_samples: int) -> None:
    seen = sorted(sample for rank in range(len(plan.ranks)) for sample in plan.samples(rank))
    assert seen == list(range(num_samples))


def require_below(plan: MinibatchPlan, lengths: list[int], cap: int) -> None:
    for of_rank in plan.ranks:
        for microbatch in of_rank:
            assert sum(lengths[sample] for sample in microbatch) <= cap


@settings(max_examples=300, deadline=None)
@given(lengths=LENGTHS, num_ranks=st.integers(1, 8), room=st.integers(0, 2000), cost=st.sampled_from([COST, TOKENS]))
def test_lb_mini_has_each_sample_once_below_the_cap_and_is_never_slower(
    lengths: list[int], num_ranks: int, room: int, cost: Cost
) -> None:
    cap = max(1, *lengths) + room
    plan = lb_mini(lengths, num_ranks, cap, cost)
    require_each_once(plan, len(lengths))
    require_below(plan, lengths, cap)
    sorted_plan = local_sort(lengths, num_ranks, pad=True)
    assert plan.independent_s(lengths, cost) <= sorted_plan.independent_s(lengths, cost) * (1 + 1e-12)


@settings(max_examples=300, deadline=None)
@given(lengths=LENGTHS, num_ranks=st.integers(1, 8), room=st.integers(0, 2000), cost=st.sampled_from([COST, TOKENS]))
def test_lb_micro_keeps_ranks_in_step_and_is_never_slower(
    lengths: list[int], num_ranks: int, room: int, cost: Cost
) -> None:
    cap = max(1, *lengths) + room
    plan = lb_micro(lengths, num_ranks, cap, cost, pad=True)
    require_each_once(plan, len(lengths))
    require_below(plan, lengths, cap)
    assert plan.is_in_step
    sorted_plan = local_sort(lengths, num_ranks, pad=True)
    assert plan.lockstep_s(lengths, cost) <= sorted_plan.lockstep_s(lengths, cost) * (1 + 1e-12)
    if len(lengths) % num_ranks == 0:
        alone = lb_micro(lengths, num_ranks, cap, cost)
        assert all(microbatch for of_rank in alone.ranks for microbatch in of_rank)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.integers(0, 50), min_size=1, max_size=7), num_parts=st.integers(1, 4), is_equal=st.booleans()
)
def test_parts_are_within_four_thirds_of_the_best(values: list[int], num_parts: int, is_equal: bool) -> None:
    if is_equal and len(values) % num_parts:
        with pytest.raises(ConfigError, match="equally many"):
            balanced_parts(values, num_parts, is_equal=True)
        return
    parts = balanced_parts(values, num_parts, is_equal=is_equal)
    assert sorted(itertools.chain(*parts)) == list(range(len(values)))
    if is_equal:
        assert {len(part) for part in parts} == {len(values) // num_parts}
        return
    best = min(
        max(sum(value for value, at in zip(values, places, strict=True) if at == part) for part in range(num_parts))
        for places in itertools.product(range(num_parts), repeat=len(values))
    )
    assert largest_sum(values, parts) <= 4 / 3 * best


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(0, 4096), min_size=1, max_size=60), k=st.integers(1, 10), equal=st.booleans())
def test_the_contract_of_verl(lengths: list[int], k: int, equal: bool) -> None:
    if len(lengths) < k or (equal and len(lengths) % k):
        with pytest.raises(ConfigError):
            get_seqlen_balanced_partitions(lengths, k, equal)
        return
    parts = get_seqlen_balanced_partitions(lengths, k_partitions=k, equal_size=equal)
    assert len(parts) == k
    assert all(part == sorted(part) and part for part in parts)
    assert sorted(itertools.chain(*parts)) == list(range(len(lengths)))
    if equal:
        assert {len(part) for part in parts} == {len(lengths) // k}


def test_arrays_and_tensors_are_taken_as_lists_are() -> None:
    lengths = [5, 9, 1, 7, 3, 3]
    wanted = get_seqlen_balanced_partitions(lengths, 2, True)
    for values in (np.array(lengths), np.array(lengths, np.float32), torch.tensor(lengths), torch.ones(6)):
        found = get_seqlen_balanced_partitions(values, 2, equal_size=True)
        assert found == wanted or values[0] == 1
        assert {type(index) for index in itertools.chain(*found)} == {int}


def test_a_long_tail_is_balanced_by_minibatch_and_not_by_microbatch() -> None:
    drawn = np.random.default_rng(3).lognormal(8.5, 1.0, 64)
    lengths = np.clip(drawn, 1, 32_000).astype(int).tolist()
    cap = 32_000
    mini, micro, plain = lb_mini(lengths, 4, cap, QWEN_7B), lb_micro(lengths, 4, cap, QWEN_7B), local_sort(lengths, 4)
    took_s = [way.lockstep_s(lengths, QWEN_7B) for way in (micro, plain)]
    assert mini.independent_s(lengths, QWEN_7B) < took_s[0] < took_s[1]
    assert mini.idle_share(lengths, QWEN_7B, in_step=False) < plain.idle_share(lengths, QWEN_7B, in_step=True)


def test_equally_many_samples_where_that_is_wanted() -> None:
    lengths = [900, 1, 2, 3, 4, 5, 6, 7]
    plan = lb_mini(lengths, 4, 1000, equal_samples=True)
    assert [len(plan.samples(rank)) for rank in range(4)] == [2, 2, 2, 2]
    with pytest.raises(ConfigError, match="equally many"):
        lb_mini(lengths, 3, 1000, equal_samples=True)


def test_ranks_without_a_sample_are_refused_or_padded() -> None:
    for way in (lambda **pad: local_sort([5, 6], 3, **pad), lambda **pad: lb_micro([5, 6], 3, 10, **pad)):
        with pytest.raises(ConfigError, match="pass pad=True"):
            way()
        assert sorted(map(len, itertools.chain(*way(pad=True).ranks))) == [0, 1, 1]
    assert sorted(lb_mini([5, 6], 3, 10).num_microbatches) == [0, 1, 1]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"sample 1 has 11 tokens, and a microbatch holds 10"):
        lb_mini([5, 11], 2, 10)
    with pytest.raises(ConfigError, match="without samples"):
        lb_micro([], 2, 10)
    with pytest.raises(ConfigError, match="a cap of 0"):
        lb_mini([0], 2, 0)
    with pytest.raises(ConfigError, match="at least one rank"):
        local_sort([5], 0)
    with pytest.raises(ConfigError, match="sample 0 has -1 tokens"):
        local_sort([-1], 1)
    with pytest.raises(ConfigError, match="coefficients"):
        Cost(quadratic=-1.0, linear=1.0)
    with pytest.raises(ConfigError, match=r"\[2, 1\] microbatches"):
        MinibatchPlan((((0,), (1,)), ((2,),))).lockstep_s([1, 1, 1], TOKENS)


def test_it_needs_no_torch() -> None:
    code = (
        "import coarse.parallel.packing.sampler, coarse.parallel.packing.balance, sys;"
        "sys.exit('torch' in sys.modules or 'mpi4py.MPI' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
