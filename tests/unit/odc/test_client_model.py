"""A worker's end of a model on demand: the place of another's shard, and the parts of a region of device memory."""

import re
from types import SimpleNamespace

import pytest

from coarse.odc.client.model import OdcModel, _explained
from coarse.odc.client.protocol import Fetch
from coarse.odc.layout import EVERYTHING, OdcDeclaration, OdcLayout, OdcUnit
from coarse.protocol.dtypes import DType
from coarse.strategy.sharding import Sum
from tests.support.odc_cluster import placement_of

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


@pytest.mark.parametrize("cache_bytes", [0, EVERYTHING])
def test_the_bytes_of_a_region_are_told_apart(cache_bytes):
    units = (OdcUnit(4096, (1000,), DType.FLOAT32), OdcUnit(64, (7, 9), DType.FLOAT32))
    declaration = OdcDeclaration(
        members=(0, 1), units=units, sum=Sum.FLOAT32, cache_bytes=cache_bytes, top=0, num_slots=2
    )
    layout = OdcLayout(declaration, placement_of((0, 1), (0, 1)))
    text = _explained(layout, layout.region(0).nbytes)
    wanted, *parts = map(int, re.findall(r"(?<![a-z])\b(\d+)\b(?! pieces)", text))
    assert wanted == layout.region(0).nbytes
    assert sum(parts) == wanted
    assert (parts[0], bool(parts[-1])) == (4096 + 64, True)
