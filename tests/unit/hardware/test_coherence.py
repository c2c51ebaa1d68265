"""Coherence by snooping costs with the sharers, coherence by software with each access."""

from dataclasses import replace

import pytest

from coarse.errors import ConfigError
from coarse.hardware.coherence import Coherence
from coarse.hardware.machine import pair_s
from coarse.hardware.machine_file import load_machine, save_machine
from coarse.hardware.presets import load_preset, preset_path

SNOOPED = Coherence(load_bytes_per_s=30e9, store_bytes_per_s=20e9, latency_s=1e-6, sharer_growth=0.5)
FLUSHED = replace(SNOOPED, software_flush_bytes_per_s=10e9, software_flush_latency_s=2e-6)


def test_snooping_slows_each_access_with_the_sharers_and_flushing_does_not():
    assert [wire.bytes_per_s for wire in SNOOPED.wires(3)] == [15e9, 10e9]
    assert [wire.latency_s for wire in SNOOPED.wires(3)] == [2e-6, 2e-6]
    assert FLUSHED.wires(3) == FLUSHED.wires(1)


def test_a_flushed_access_takes_its_own_time_and_its_lines_flush():
    load, store = FLUSHED.wires(1)
    for wire, rate in ((load, 30e9), (store, 20e9)):
        assert 1e9 / wire.bytes_per_s == pytest.approx(1e9 / rate + 1e9 / 10e9)
        assert wire.latency_s == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("stated", "rate", "latency_s"),
    [
        ({"software_flush_bytes_per_s": 30e9}, 15e9, 1e-6),
        ({"software_flush_latency_s": 4e-6}, 30e9, 5e-6),
        ({"software_flush_latency_s": 0.0, "load_outstanding_bytes": 10e3}, 10e9, 1e-6),
    ],
)
def test_either_alone_means_software_and_the_other_is_no_limit(stated, rate, latency_s):
    load = replace(SNOOPED, **stated).wires(5)[0]
    assert load.bytes_per_s == pytest.approx(rate)
    assert load.latency_s == pytest.approx(latency_s)


def test_niagara_comes_to_what_cmpi_measured_with_flushes_and_without():
    coherence = load_preset("cxl-niagara2").coherence
    assert coherence.latency_s == pytest.approx(0.79e-6)
    load = coherence.wires(4)[0]
    assert load.latency_s == pytest.approx(2.2e-6)
    assert load.bytes_per_s == pytest.approx(9.5e9, rel=0.005)


def test_a_machine_of_software_coherence_is_saved_and_its_loads_take_that_time(tmp_path):
    machine = replace(load_preset("cxl-cmm-b"), coherence=FLUSHED, num_sharers=4)
    save_machine(machine, tmp_path / "machine.toml")
    assert load_machine(tmp_path / "machine.toml") == replace(machine, num_sharers=1)
    seconds = pair_s(machine, "memory0", "gpu0", 1 << 30, bidirectional=False, kind="load")
    assert seconds == pytest.approx((1 << 30) / 7.5e9, rel=0.001)


@pytest.mark.parametrize(("key", "value"), [("software_flush_gb_per_s", 0), ("software_flush_latency_us", -1)])
def test_what_no_flush_can_take_is_refused_with_file_and_line(key, value, tmp_path):
    path = tmp_path / "machine.toml"
    text = preset_path("cxl-cmm-b").read_text().replace("[coherence]\n", f"[coherence]\n{key} = {value}\n", 1)
    path.write_text(text)
    number = text[: text.index(key)].count("\n") + 1
    with pytest.raises(ConfigError, match=rf"{path}:{number}: "):
        load_machine(path)


def test_a_flush_without_a_unit_is_refused(tmp_path):
    path = tmp_path / "machine.toml"
    text = preset_path("cxl-cmm-b").read_text()
    path.write_text(text.replace("[coherence]\n", "[coherence]\nsoftware_flush = 3\n", 1))
    with pytest.raises(ConfigError, match="write one of software_flush_gb_per_s"):
        load_machine(path)
