"""Where a worker reads another's shard of a unit that it has fetched."""

from types import SimpleNamespace

import pytest

from coarse.client.odc.model import OdcModel
from coarse.client.odc.protocol import Fetch

HERE, ELSEWHERE, KEPT, PASSING = 0, 1, 0, 1
"""Owners by their node, and units by whether nodes keep a copy of them."""


@pytest.mark.parametrize(
    ("owner", "unit", "place"),
    [
        (HERE, KEPT, ("copy", 0, HERE, KEPT)),
        (HERE, PASSING, ("copy", 0, HERE, PASSING)),
        (ELSEWHERE, KEPT, ("copy", 0, ELSEWHERE, KEPT)),
        (ELSEWHERE, PASSING, ("landed", 7, PASSING, 1, ELSEWHERE)),
    ],
)
def test_what_neither_lies_on_the_node_nor_is_kept_there_is_read_where_it_has_landed(owner, unit, place):
    model = object.__new__(OdcModel)
    model.machine = SimpleNamespace(node=0, client=7)
    model.layout = SimpleNamespace(node_of=(0, 1).__getitem__, kept={KEPT})
    model._spots = SimpleNamespace(copy=lambda *at: ("copy", *at), landed=lambda *at: ("landed", *at))
    assert model._read_from(Fetch(unit, landing=1), owner) == place
