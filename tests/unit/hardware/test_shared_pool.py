"""Pools that nodes share: what a transfer between nodes takes, and what all have in common."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.hardware.machine import pair_s
from coarse.hardware.machine_field import changed_machine, field_names
from coarse.hardware.machine_file import load_machine, save_machine
from coarse.hardware.presets import load_preset, preset_path
from coarse.hardware.shared_pool import SharedPool
from coarse.hardware.wire import Wire
from coarse.protocol.toml import TomlFile

NBYTES = 1 << 30
POOL = SharedPool(
    wire=Wire(name="port", bytes_per_s=20e9, latency_s=1e-6), num_devices=4, device_bytes_per_s=30e9,
    device_latency_s=2e-6,
)  # fmt: skip
TREE_S = 2e-6
"""From a GPU to its host: two wires of 1 us."""
MACHINE = replace(load_preset("cxl-titan2-6xcz120"), pool=POOL)


def between_nodes_s(machine, *, nbytes=NBYTES, bidirectional=False):
    return pair_s(machine, "gpu0", "gpu1", nbytes, bidirectional=bidirectional, kind="auto")


def test_what_goes_to_another_node_is_stored_and_loaded_at_the_ports_rate():
    assert between_nodes_s(MACHINE) == pytest.approx(NBYTES / 20e9, rel=1e-3)
    assert between_nodes_s(MACHINE, nbytes=0) == pytest.approx(2 * (TREE_S + 1e-6 + 2e-6))


def test_a_pool_that_is_off_leaves_transfers_to_the_network():
    assert between_nodes_s(replace(MACHINE, pool_on=False)) == pytest.approx(NBYTES / 24.5e9, rel=1e-3)
    with pytest.raises(ConfigError, match="no network between them; add a network or a pool"):
        replace(MACHINE, pool_on=False, network=None)
    assert replace(MACHINE, network=None).sends_by_pool


def test_all_transfers_share_the_devices_and_each_takes_them_twice():
    slow = replace(MACHINE, pool=replace(POOL, device_bytes_per_s=5e9))
    assert between_nodes_s(slow) == pytest.approx(NBYTES / 10e9, rel=1e-3)
    assert between_nodes_s(slow, bidirectional=True) == pytest.approx(NBYTES / 5e9, rel=1e-3)


def test_a_switch_costs_its_latency_each_way_and_limits_all_together():
    switch = Wire(name="switch", bytes_per_s=20e9, latency_s=3e-6)
    machine = replace(MACHINE, pool=replace(POOL, switch=switch))
    assert between_nodes_s(machine, nbytes=0) == pytest.approx(2 * (TREE_S + 1e-6 + 2e-6 + 3e-6))
    assert between_nodes_s(machine) == pytest.approx(NBYTES / 10e9, rel=1e-3)


def test_hosts_beyond_those_that_do_not_contend_slow_all():
    pool = replace(POOL, num_uncontended_hosts=3, contention_growth=0.5)
    assert [pool.devices_bytes_per_s(hosts) for hosts in (1, 3, 4, 5)] == [120e9, 120e9, 80e9, 60e9]


def test_stores_may_be_slower_than_loads_and_flushes_slow_both():
    stores = replace(POOL, store_bytes_per_s=5e9)
    assert [stores.port("p", stores=way).bytes_per_s for way in (True, False)] == pytest.approx([5e9, 20e9])
    flushed = replace(POOL, software_flush_bytes_per_s=20e9, software_flush_latency_s=4e-6)
    for way in (True, False):
        assert flushed.port("p", stores=way).bytes_per_s == pytest.approx(10e9)
        assert flushed.port("p", stores=way).latency_s == pytest.approx(7e-6)


def test_latency_limits_a_ports_rate_where_its_wire_says_what_is_under_way():
    wire = replace(POOL.wire, outstanding_bytes=30e3)
    assert replace(POOL, wire=wire).port("p", stores=False).bytes_per_s == pytest.approx(10e9)


def test_a_node_stores_into_the_pool_and_loads_from_it_without_another():
    store, load = (MACHINE.pool_path("gpu1", stores=way) for way in (True, False))
    names = [[MACHINE.links[number].name for number in path] for path in (store, load)]
    assert names[0][:1] + names[0][-2:] == ["node1 gpu0 up", "node1 pool up", "pool devices"]
    assert names[1] == [name.replace(" up", " down") for name in reversed(names[0])]
    with pytest.raises(ConfigError, match=r"no pool that gpu0 could use; state \[pool\]"):
        load_preset("aws-p3").pool_path("gpu0", stores=True)


@pytest.mark.parametrize("name", ["cxl-titan2-6xcz120", "cxl-niagara2", "cxl-octopus"])
def test_a_file_keeps_a_pool_and_each_field_can_be_changed(name, tmp_path):
    machine = replace(load_preset(name), pool_on=False)
    save_machine(machine, tmp_path / "machine.toml")
    assert load_machine(tmp_path / "machine.toml") == machine
    toml = TomlFile.read(preset_path(name))
    assert {"pool.device_gb_per_s", "pool.num_devices", "pool.wire", "pool_on"} <= set(field_names(toml))
    assert changed_machine(toml, {"pool.num_devices": 2}).pool.num_devices == 2


def test_octopus_calls_are_as_much_faster_than_rdma_as_the_paper_says():
    machine = load_preset("cxl-octopus")
    pool = sum(machine.pool.port("p", stores=way).latency_s for way in (True, False))
    assert 2 * machine.network.latency_s / pool == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("num_devices = 6", "num_devices = 0", "at least 1, got 0"),
        ("num_devices = 6", "", "'num_devices' is missing"),
        ('wire = "pool-port"', "", "'wire' of the pool is missing"),
        ('wire = "pool-port"', 'wire = "pool-prt"', "pool-prt"),
        ("device_gb_per_s = 36 ", "device = 36 ", "no known unit"),
        ("contention_growth = 0.1", "contention_growth = -1", "contention_growth must be 0"),
        ("num_uncontended_hosts = 6", "num_uncontended_hosts = 1.5", "a whole number of at least 1, got 1.5"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_with_file_and_line(was, becomes, said, tmp_path):
    text = preset_path("cxl-titan2-6xcz120").read_text()
    assert was in text
    path = tmp_path / "machine.toml"
    path.write_text(text.replace(was, becomes, 1))
    with pytest.raises(ConfigError, match=said) as found:
        load_machine(path)
    assert f"{path}:" in str(found.value)
