"""Calls of a group's ranks that fit together, and that do not."""

from dataclasses import replace

import numpy as np
import pytest

from coarse.protocol.joint import CollectiveKind
from coarse.torch.c10d.statement import NUM_FIELDS, CallStatement, disagreement, element_number

CALL = CallStatement(kind=CollectiveKind.ALL_REDUCE, element=element_number("float32"), op=0, nbytes=16)


def rows_of(*statements):
    return np.stack([statement.as_row() for statement in statements])


def test_equal_calls_fit():
    assert disagreement(rows_of(CALL, CALL, CALL), 1) is None
    assert rows_of(CALL).shape == (1, NUM_FIELDS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kind": CollectiveKind.BROADCAST}, "broadcast"),
        ({"element": element_number("float64")}, "float64"),
        ({"op": 3}, "reduction 3"),
        ({"root": 2}, "root 2"),
        ({"nbytes": 20}, "20 bytes"),
        ({"split": 255}, "split 0xff"),
    ],
)
def test_each_difference_is_told_on_every_rank(change, word):
    rows = rows_of(CALL, CALL, replace(CALL, **change))
    for rank in range(3):
        told = disagreement(rows, rank)
        assert told is not None
        assert word in told
    assert "rank 2 called" in disagreement(rows, 0)
    assert "rank 0 called" in disagreement(rows, 2)


def test_a_type_without_a_name_has_no_number():
    assert element_number("float12") == -1
