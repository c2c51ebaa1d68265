"""Which backend stands in for which."""

import pytest

from coarse.autoload import replacement


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("gloo", "coarse"),
        ("NCCL", "coarse"),
        ("mpi", "mpi"),
        ("cpu:gloo,cuda:nccl", "cpu:coarse,cuda:coarse"),
        ("cpu:gloo,cuda:ucc", "cpu:coarse,cuda:ucc"),
    ],
)
def test_backends_that_are_replaced_give_way_wherever_they_are_named(asked, taken):
    assert replacement(asked, frozenset({"gloo", "nccl"})) == taken
