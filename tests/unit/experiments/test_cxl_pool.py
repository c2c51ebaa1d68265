"""Collectives over a pool and over a network, against what ports and lines allow; and the rows about them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coarse.hardware.presets import load_preset
from coarse.hardware.shared_pool import SharedPool
from coarse.hardware.wire import Wire
from experiments.cxl_pool import cmpi
from experiments.cxl_pool.cccl import STATED, mean_ratio, sizes, solved, with_devices
from experiments.cxl_pool.collectives import CHUNK_BYTES, Primitive, network_s, pool_s, stored_by
from experiments.cxl_pool.inputs import CCCL_PRESET, CENTRAL, cccl_machine, under

NBYTES = 1 << 28
MESSAGE_S = cmpi.message_s()
PORT, LINE = 20e9, 24.5e9
MACHINE = replace(
    load_preset(CCCL_PRESET),
    pool=SharedPool(
        wire=Wire(name="port", bytes_per_s=PORT), num_devices=100, device_bytes_per_s=100e9, device_latency_s=0.0
    ),
)
LEAST = {
    Primitive.ALL_GATHER: (2, 2), Primitive.BROADCAST: (1, 1), Primitive.GATHER: (2, 2), Primitive.SCATTER: (2, 2),
    Primitive.ALL_TO_ALL: (2, 2), Primitive.ALL_REDUCE: (2, 4 / 3),
}  # fmt: skip
"""Of three nodes, N that the busiest port of the pool, and the busiest line of the network, carries one way."""


@pytest.mark.parametrize("primitive", Primitive)
def test_a_large_collective_takes_what_its_busiest_port_carries_and_a_chunk_more(primitive):
    by_pool, by_network = LEAST[primitive]
    chunk_s = 3 * CHUNK_BYTES / PORT
    assert by_pool * NBYTES / PORT <= pool_s(MACHINE, primitive, 3, NBYTES) <= by_pool * NBYTES / PORT + chunk_s
    seconds = network_s(MACHINE, primitive, 3, NBYTES)
    assert by_network * NBYTES / LINE <= seconds * 1.0001
    assert seconds <= 1.03 * by_network * NBYTES / LINE + chunk_s


@pytest.mark.parametrize("primitive", Primitive)
@pytest.mark.parametrize("num_nodes", [2, 3, 5])
def test_every_node_loads_what_it_lacks_and_nothing_of_its_own(primitive, num_nodes):
    parts = stored_by(primitive, num_nodes, 10)
    assert all(part.writer not in part.readers for part in parts)
    loaded = {node: sum(part.nbytes for part in parts if node in part.readers) for node in range(num_nodes)}
    root_alone = primitive is Primitive.GATHER
    one = primitive in (Primitive.BROADCAST, Primitive.SCATTER)
    for node in range(num_nodes):
        others = 10 * (num_nodes - 1)
        wanted = (others if node == 0 else 0) if root_alone else (10 if node else 0) if one else others
        assert loaded[node] == wanted


def test_the_fitted_row_comes_out():
    found = mean_ratio(load_preset(CCCL_PRESET), Primitive.SCATTER)
    assert found == pytest.approx(STATED[Primitive.SCATTER], rel=0.005)


def test_a_rate_that_no_solution_has_is_none():
    assert solved(with_devices, Primitive.BROADCAST, 5e9, 6e9) is None


def test_a_message_is_two_flushed_accesses():
    assert cmpi.access_s() == pytest.approx(2.2e-6, rel=1e-3)
    assert cmpi.message_s() == pytest.approx(4.4e-6, rel=2e-3)


def test_the_page_has_a_verdict_for_each_of_the_abstracts_ratios():
    page = (Path(__file__).parents[3] / "docs" / "validation.md").read_text()
    for primitive, stated in STATED.items():
        assert re.search(rf"\| {primitive}: .* \| {stated}x \| [0-9.]+x \| simulated \| .* \| [a-z0-9 %]+ \|", page)


def test_inputs_are_those_of_the_preset_and_may_be_otherwise_for_a_while():
    assert cccl_machine() == load_preset(CCCL_PRESET)
    other = replace(CENTRAL, device_bytes_per_s=26e9, largest_bytes=1 << 28)
    with under(other):
        assert cccl_machine().pool.device_bytes_per_s == 26e9
        assert sizes()[-1] == 1 << 28
    assert sizes()[-1] == 1 << 32


def test_latency_of_an_access_would_have_cmpis_row_met():
    with under(replace(CENTRAL, num_accesses=1)):
        assert cmpi.message_s() < 0.6 * MESSAGE_S
