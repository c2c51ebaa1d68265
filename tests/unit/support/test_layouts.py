"""Which layouts of a full product `make test` takes: few, with every pair of values of two axes."""

import tomllib
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.layouts import choices, covering, partition_table

AXES = st.lists(st.integers(1, 4), min_size=2, max_size=5).map(
    lambda lengths: {f"axis{number}": range(length) for number, length in enumerate(lengths)}
)


def pairs_of(choice):
    return {frozenset(pair) for pair in combinations(choice.items(), 2)}


@given(axes=AXES, forbidden=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6))
def test_every_pair_of_values_that_any_choice_has_is_covered(axes, forbidden):
    every = choices(axes, lambda axis0, axis1, **_: (axis0, axis1) not in forbidden)
    taken = [every[number] for number in covering(every)]
    assert set().union(*map(pairs_of, taken)) == set().union(*map(pairs_of, every))
    for one in taken:  # and none of them could be left out
        others = set().union(*(pairs_of(other) for other in taken if other is not one))
        assert pairs_of(one) - others


def test_five_axes_of_two_values_need_no_more_than_eight_of_thirty_two():
    every = choices({name: (0, 1) for name in "abcde"}, lambda **_: True)
    assert len(every) == 32
    assert 4 <= len(covering(every)) <= 8


def test_with_strength_one_every_value_occurs():
    every = choices({"a": range(5), "b": range(3)}, lambda a, b: a != 4 or b == 2)
    taken = [every[number] for number in covering(every, strength=1)]
    assert {choice["a"] for choice in taken} == set(range(5))
    assert {choice["b"] for choice in taken} == set(range(3))
    assert len(taken) == 5


@pytest.mark.parametrize("is_both", [False, True])
def test_a_table_spreads_workers_and_devices_over_nodes(is_both):
    for num_workers, num_devices, num_nodes in ((2, 2, 2), (3, 2, 2), (3, 3, 1), (4, 2, 2), (2, 1, 1)):
        table = partition_table(num_workers, num_devices, num_nodes=num_nodes, is_both=is_both)
        rows = tomllib.loads(table)["rank"]
        roles = [row["role"] for row in rows]
        assert [row["rank"] for row in rows] == list(range(len(rows)))
        assert len(rows) == num_workers + (0 if is_both else num_devices)
        assert roles.count("worker") + roles.count("both") == num_workers
        assert roles.count("memory_device") + roles.count("both") == num_devices
        assert {row["node"] for row in rows} == {f"node{node}" for node in range(num_nodes)}
        for node in range(num_nodes):
            near = [row["role"] for row in rows if row["node"] == f"node{node}"]
            assert {"both", "memory_device"} & set(near)
            assert {"both", "worker"} & set(near)
