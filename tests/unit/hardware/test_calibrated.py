"""What was measured of a memory device becomes a machine that predictions run on."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.cli.report.prediction import scenarios_of
from coarse.errors import CapacityError, ConfigError
from coarse.hardware.machine_file import load_machine
from coarse.hardware.measure.calibrated import (
    Flushes,
    MemoryMeasurements,
    Spread,
    Streams,
    calibrated_machine,
    calibrated_text,
    process_counts,
    spread_of,
    still_rises,
)
from coarse.hardware.measure.memory import LEAST_BYTES, range_bytes
from coarse.hardware.presets import load_preset
from coarse.hardware.topology_tree import PlaceKind
from coarse.simulation.question import Question
from coarse.simulation.training import simulate

GB, NS, MIB = 1e9, 1e-9, 1 << 20


def around(value: float) -> Spread:
    return Spread(median=value, low=0.9 * value, high=1.2 * value)


def streams(count: int, load: float, store: float, copy: float) -> Streams:
    return Streams(num_processes=count, load=around(load * GB), store=around(store * GB), copy=around(copy * GB))


FOUND = MemoryMeasurements(
    place="dax:/dev/dax0.0",
    cpu="Some(R) CPU",
    latency_s=around(400 * NS),
    streams=(streams(1, 8, 6, 5), streams(2, 15, 12, 9), streams(3, 18, 14, 8)),
    flushes=Flushes(
        write_back="clwb",
        evicting="clflushopt",
        line_s=around(500 * NS),
        store_bytes_per_s=around(3 * GB),
        load_bytes_per_s=around(2 * GB),
    ),
    adder_bytes_per_s=around(4 * GB),
    optimizer_bytes_per_s=around(1 * GB),
    capacity_bytes=64 << 30,
    measured_bytes=1 << 30,
    cache_bytes=256 << 20,
    num_repeats=5,
    noise=0.02,
)
BASES = ("cxl-type3-asic", "cxl-niagara2")


@pytest.mark.parametrize("base", BASES)
def test_a_saved_machine_is_the_calibrated_one(tmp_path, base):
    path = tmp_path / "machine.toml"
    path.write_text(calibrated_text(FOUND, load_preset(base), "mine"))
    assert load_machine(path) == calibrated_machine(FOUND, load_preset(base), "mine")


def test_what_was_measured_is_in_the_machine_and_the_host_is_the_bases():
    base = load_preset("cxl-cz120")
    machine = calibrated_machine(FOUND, base, "mine")
    assert machine.memory_device.adder_bytes_per_s == 4 * GB
    assert machine.memory_device.capacity_bytes == 64 << 30
    coherence = machine.coherence
    assert coherence is not None
    assert (coherence.load_bytes_per_s, coherence.store_bytes_per_s) == (8 * GB, 6 * GB)  # of one process
    assert coherence.latency_s == 400 * NS
    assert machine.accelerator == base.accelerator
    wires = {place.name: place.wire for place in machine.tree.places}
    assert wires["memory0"].bytes_per_s == 14 * GB  # the slower of loads and stores, at its fastest
    assert wires["memory0"].duplex_bytes_per_s == 18 * GB  # a copy reads and writes
    assert {name: wire for name, wire in wires.items() if "memory" not in name} == {
        place.name: place.wire for place in base.tree.places if place.kind is not PlaceKind.MEMORY
    }


def test_outstanding_bytes_are_the_rate_times_the_latency_in_whole_lines_and_limit_nothing_at_this_latency():
    machine = calibrated_machine(FOUND, load_preset("cxl-cz120"), "mine")
    assert machine.coherence is not None
    assert machine.coherence.load_outstanding_bytes == 3200  # 8 GB/s for 400 ns: 50 lines
    assert machine.coherence.store_outstanding_bytes == 2432  # 6 GB/s: 37.5 lines
    port = next(place.wire for place in machine.tree.places if place.kind is PlaceKind.MEMORY)
    assert port.outstanding_bytes == 5632  # 14 GB/s: 87.5 lines
    assert port.reached_bytes_per_s == port.bytes_per_s


@given(st.floats(1e7, 1e12), st.floats(1e-8, 1e-5))
def test_outstanding_bytes_never_take_from_the_rate_that_was_measured(rate, latency_s):
    found = replace(FOUND, latency_s=around(latency_s), streams=(streams(1, rate / GB, rate / GB, rate / GB),))
    port = calibrated_machine(found, load_preset("cxl-cz120"), "mine").tree.by_name["memory0"].wire
    assert port.reached_bytes_per_s == pytest.approx(rate, rel=1e-6)
    assert port.outstanding_bytes % 64 == 0
    assert port.outstanding_bytes <= rate * latency_s + 64


def test_a_wire_of_the_host_with_the_same_name_stays_another_wire(tmp_path):
    base = load_preset("cxl-cz120")
    places = tuple(
        replace(place, wire=replace(place.wire, name="device-port")) if place.kind is PlaceKind.GPU else place
        for place in base.tree.places
    )
    base = replace(base, tree=replace(base.tree, places=places))
    path = tmp_path / "machine.toml"
    path.write_text(calibrated_text(FOUND, base, "mine"))
    machine = load_machine(path)
    assert machine.tree.by_name["gpu0"].wire == base.tree.by_name["gpu0"].wire
    assert machine.tree.by_name["memory0"].wire.bytes_per_s == 14 * GB


def test_a_calibrated_machine_may_be_calibrated_again():
    once = calibrated_machine(FOUND, load_preset("cxl-cz120"), "mine")
    assert calibrated_machine(FOUND, once, "mine") == once


def test_a_base_without_memory_devices_is_refused():
    with pytest.raises(ConfigError, match=r"machine aws-p3 has no \[\[memory\]\] .* such as cxl-type3-asic"):
        calibrated_machine(FOUND, load_preset("aws-p3"), "mine")


def test_the_file_says_of_each_measured_value_the_interval_of_its_runs():
    text = calibrated_text(FOUND, load_preset("cxl-cz120"), "mine")
    by_key = {line.partition(" =")[0]: line for line in text.splitlines() if " = " in line and "measured" in line}
    assert "400 ns (360 to 480)" in by_key["latency_s"]
    assert "4 GB/s (3.6 to 4.8)" in by_key["adder_bytes_per_s"]
    assert "one process, 8 GB/s (7.2 to 9.6)" in by_key["load_bytes_per_s"]
    assert "# Streams of 3 processes together, measured: load 18 GB/s (16.2 to 21.6), store 14 GB/s" in text
    assert "(clwb), measured: 500 ns (450 to 600)." in text
    assert "waited for a core 2% of the time." in text
    without = calibrated_text(replace(FOUND, flushes=None), load_preset("cxl-cz120"), "mine")
    assert "# Flushes: not measured" in without


def test_the_file_says_where_an_emulated_processor_measured():
    emulated = replace(FOUND, cpu="QEMU TCG CPU version 2.5+")
    base = load_preset("cxl-cz120")
    assert "# Emulated: QEMU TCG CPU version 2.5+ is a processor in software" in calibrated_text(emulated, base, "mine")
    assert "# Emulated" not in calibrated_text(FOUND, base, "mine")


def test_predictions_run_on_a_saved_machine_and_a_slower_device_takes_longer(tmp_path):
    seconds = []
    for factor in (1.0, 10.0):
        slower = replace(FOUND, streams=tuple(streams(n + 1, *(x / factor for x in (8, 6, 5))) for n in range(2)))
        path = tmp_path / "machine.toml"
        path.write_text(calibrated_text(slower, load_preset("cxl-cz120"), "mine"))
        scenarios = scenarios_of(Question(machine=str(path), model="resnet50", num_workers=2, policy="devices"))
        seconds.append(simulate(scenarios.of("coarse").job()).iteration_s)
    assert seconds[1] > 2 * seconds[0]


# --- how it is measured


def test_a_spread_is_the_middle_and_both_ends():
    assert spread_of([3.0, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0)


@given(st.integers(1, 5000))
def test_numbers_of_processes_rise_from_one_to_the_most_in_few_steps(most):
    counts = process_counts(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert all(low < high <= 2 * low for low, high in pairwise(counts))
    assert len(counts) < 30


def test_small_numbers_are_all_tried():
    assert process_counts(4) == (1, 2, 3, 4)
    assert process_counts(16) == (1, 2, 3, 4, 6, 8, 12, 16)


@pytest.mark.parametrize(
    ("found", "rises"),
    [
        ([streams(1, 8, 6, 5)], True),
        ([streams(1, 8, 6, 5), streams(2, 8, 6, 5)], False),
        ([streams(1, 8, 6, 5), streams(2, 8, 6.2, 5)], True),
        ([streams(1, 8, 6, 5), streams(2, 12, 9, 9), streams(3, 11, 9.1, 8)], False),
        ([streams(1, 8, 6, 5), streams(2, 8.1, 6.1, 5.1)], False),
    ],
)
def test_more_processes_are_tried_while_any_rate_rises(found, rises):
    assert still_rises(found) is rises


@pytest.mark.parametrize(
    ("capacity", "caches", "wanted", "room", "mib"),
    [
        (10_000, 32, None, 10_000, 128),
        (10_000, 256, None, 10_000, 1024),
        (10_000, 256, 600, 10_000, 600),
        (10_000, 0, None, 10_000, 64),
        (601, 256, None, 10_000, 600),
        (10_000, 256, None, 700, 700),
        (10_000, 256, 5000, 3000, 3000),
    ],
)
def test_a_range_is_four_times_the_caches_where_it_can_be(capacity, caches, wanted, room, mib):
    asked = None if wanted is None else wanted * MIB
    assert range_bytes(capacity * MIB, caches * MIB, asked, room * MIB) == mib * MIB


def test_a_range_is_whole_units_of_the_devices_alignment():
    assert range_bytes(8192 * MIB, 100 * MIB, None, 8192 * MIB, 1024 * MIB) == 1024 * MIB
    assert range_bytes(8192 * MIB, 100 * MIB, 1025 * MIB, 8192 * MIB, 1024 * MIB) == 2048 * MIB
    assert range_bytes(2047 * MIB, 300 * MIB, None, 2047 * MIB, 1024 * MIB) == 1024 * MIB


@pytest.mark.parametrize(
    ("capacity", "caches", "wanted", "room"),
    [(500, 256, None, 10_000), (10_000, 256, 500, 10_000), (10_000, 256, None, 500), (63, 0, None, 10_000)],
)
def test_a_range_that_caches_would_answer_for_is_refused_with_what_is_wanted(capacity, caches, wanted, room):
    fewest = max(2 * caches * MIB, LEAST_BYTES)
    with pytest.raises(CapacityError, match=rf"at least {fewest} bytes, 2 times the last-level caches .*fewer cores"):
        range_bytes(capacity * MIB, caches * MIB, None if wanted is None else wanted * MIB, room * MIB)
