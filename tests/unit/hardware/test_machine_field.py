"""A machine with some fields of its file changed."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.hardware.machine_field import changed_machine, field_names, has_times
from coarse.hardware.presets import load_preset, preset_names, preset_path
from coarse.protocol.toml import TomlFile

P3 = TomlFile.read(preset_path("aws-p3"))


def test_without_changes_every_preset_is_itself():
    for name in preset_names():
        assert changed_machine(TomlFile.read(preset_path(name)), {}) == load_preset(name)


def test_a_changed_field_changes_that_alone():
    machine, before = changed_machine(P3, {"wire.cci.latency_us": 7}), load_preset("aws-p3")
    assert machine.cci_wire == replace(before.cci_wire, latency_s=7e-6)
    assert replace(machine, cci_wire=before.cci_wire) == before
    assert changed_machine(P3, {}) == before  # the file is as it was


def test_another_unit_than_the_files_takes_its_place():
    machine = changed_machine(P3, {"wire.nic.bandwidth_gb_per_s": 1, "memory_device.adder_gib_per_s": 1})
    assert machine.network.bytes_per_s == 1e9
    assert machine.memory_device.adder_bytes_per_s == 2**30


def test_what_has_no_unit_can_be_changed_too():
    changes = {"peer_to_peer": True, "coherence.sharer_growth": 0.5, "cci_wire": "nic", "nvlink.gpu0-gpu1.wire": "nic"}
    machine = changed_machine(P3, {**changes, "socket.socket0.wire": "nic"})
    assert (machine.peer_to_peer, machine.coherence.sharer_growth, machine.cci_wire.name) == (True, 0.5, "nic")
    assert machine.nvlinks[0].wire.name == "nic"


def test_a_field_that_the_file_leaves_out_can_be_stated():
    assert "duplex" not in str(next(wire for wire in P3.values["wire"] if wire["name"] == "nic"))
    assert changed_machine(P3, {"wire.nic.duplex_gb_per_s": 2}).network.duplex_bytes_per_s == 2e9


@pytest.mark.parametrize("name", preset_names())
def test_every_name_that_is_offered_can_be_changed(name):
    toml = TomlFile.read(preset_path(name))
    for field in field_names(toml):
        is_refused_beside_times = field.startswith("wire.") and "outstanding" in field
        if field.endswith(("_us", "_per_s", "_gib")) and not is_refused_beside_times:
            changed_machine(toml, {field: 11})


BAD = {
    ("wire.cci.latency", 1): "no known unit; write one of wire.cci.latency_us, wire.cci.latency_ns",
    ("wire.cci.latency_sec", 1): "no known unit",
    ("wire.cci.latncy_us", 1): "did you mean wire.cci.latency_us",
    ("wire.ccj.latency_us", 1): "did you mean wire.cci.latency_us",
    ("memory_device.ader_gb_per_s", 1): "did you mean memory_device.adder_gb_per_s",
    ("disks.worker_gb_per_s", 1): r"no table \[disks\]",
    ("wire.cci.name", "x"): "no field wire.cci.name",
    ("wire.cci.zzz", 1): "no field wire.cci.zzz; did you mean",
    ("qqqqqqqqq.zzz", 1): "tables with fields are accelerator, memory_device",
    ("wire.cci.latency_us", -1): "with wire.cci.latency_us = -1: .*aws-p3.toml:.*must be 0, or a number above it",
    ("wire.cci.bandwidth_gb_per_s", 0): "must be a number above 0",
    ("wire.cci.bandwidth_gb_per_s", "fast"): "must be a number above 0",
    ("peer_to_peer", 1): "peer_to_peer must be true or false",
    ("cci_wire", "nix"): "must name a",
}


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_field_that_cannot_be_is_refused_with_what_can(name, value):
    with pytest.raises(ConfigError, match=BAD[name, value]):
        changed_machine(P3, {name: value})


def test_two_units_of_one_field_are_refused():
    with pytest.raises(ConfigError, match="state the same"):
        changed_machine(P3, {"wire.cci.latency_us": 1, "wire.cci.latency_ns": 1})


def test_a_rate_beside_measured_times_is_known():
    assert has_times(P3, "wire.gpu-port.bandwidth_gb_per_s")
    assert has_times(P3, "wire.gpu-port.duplex_gb_per_s")
    assert not has_times(P3, "wire.uplink.bandwidth_gb_per_s")
    assert has_times(P3, "wire.uplink.turn_gb_per_s")
    assert not has_times(P3, "wire.cci.bandwidth_gb_per_s")
    assert not has_times(P3, "wire.gpu-port.latency_us")
