"""Intervals of a machine's numbers: which there are, what is drawn from them, and the machines that come of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.intervals import FACTORS, Interval, draws, intervals_of, machine_at
from coarse.hardware.machine import pair_s
from coarse.hardware.machine_file import load_machine
from coarse.hardware.presets import load_preset, preset_names, preset_path
from coarse.protocol.toml import TomlFile

CZ120 = TomlFile.read(preset_path("cxl-cz120"))
NBYTES = 1 << 28


def file_with(tmp_path, lines):
    """A machine file with such intervals, and the number of their first line."""
    text = preset_path("cxl-cz120").read_text()
    head, _, rest = text.partition("[intervals]")
    before = f"{head}[intervals]\n"
    path = tmp_path / "machine.toml"
    path.write_text(f"{before}{lines}\n\n{rest[rest.index('[[wire]]') :]}")
    return TomlFile.read(path), before.count("\n") + 1


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_the_four_of_every_machine_and_all_make_machines(name):
    toml = TomlFile.read(preset_path(name))
    found = intervals_of(toml, {})
    assert set(FACTORS) <= {each.key for each in found}
    for values in draws(found, 2):
        assert machine_at(toml, values).name == load_preset(name).name
    assert machine_at(toml, {}) == load_preset(name)


@given(st.integers(1, 20), st.integers(0, 5))
def test_each_inputs_interval_is_drawn_from_evenly(num_samples, seed):
    intervals = (Interval(key="a", low=1.0, high=8.0), Interval(key="b", low=0.0, high=1.0))
    fast, slow, *points = draws(intervals, num_samples, seed)
    assert fast == {"a": 8.0, "b": 1.0}
    assert slow == {"a": 1.0, "b": 0.0}
    assert len(points) == num_samples
    for interval in intervals:
        edges = [interval.at(number / num_samples) for number in range(num_samples + 1)]
        values = sorted(point[interval.key] for point in points)
        assert all(low <= value <= high for value, low, high in zip(values, edges[:-1], edges[1:], strict=True))


@pytest.mark.parametrize(
    ("key", "fast"),
    [("compute", 1), ("rates", 2), ("latencies", 1), ("ring_slow_down", 1), ("wire.cci.latency_us", 1),
     ("coherence.sharer_growth", 1), ("coherence.load_gb_per_s", 2)],
)  # fmt: skip
def test_low_latencies_and_high_rates_are_fast(key, fast):
    interval = Interval(key=key, low=1, high=2)
    assert (interval.fast, interval.slow) == (fast, 3 - fast)


def test_a_factor_on_rates_makes_transfers_as_much_faster_and_a_table_of_times_too():
    for name, kind in (("cxl-cz120", "load"), ("aws-p3", "auto")):
        toml = TomlFile.read(preset_path(name))
        ends = ("memory0", "gpu0") if kind == "load" else ("gpu0", "gpu5")
        one, double = (
            pair_s(machine_at(toml, {"rates": rate, "latencies": 1e-6}), *ends, NBYTES, bidirectional=False, kind=kind)
            for rate in (1.0, 2.0)
        )
        assert one / double == pytest.approx(2, rel=0.01)


def test_a_factor_on_latencies_reaches_those_of_all_wires_and_of_coherence():
    machine, slow = (machine_at(CZ120, {"latencies": factor}) for factor in (1.0, 2.0))
    assert slow.coherence.latency_s == pytest.approx(2 * machine.coherence.latency_s)
    assert [link.latency_s for link in slow.links] == pytest.approx([2 * link.latency_s for link in machine.links])


def test_what_somebody_states_no_factor_and_no_interval_changes():
    fixed = {"coherence.latency_us": 3.0, "wire.cci.bandwidth_gb_per_s": 1.0}
    for values in draws(intervals_of(CZ120, {}), 3):
        machine = machine_at(CZ120, values, fixed)
        assert machine.coherence.latency_s == pytest.approx(3e-6)
        assert machine.cci_wire.bytes_per_s == pytest.approx(1e9)


def test_an_own_interval_goes_before_the_files_and_one_without_width_is_none():
    own = {"compute": (0.5, 2.0), "wire.cci.latency_us": (0.21, 0.21)}
    found = {each.key: each for each in intervals_of(CZ120, own)}
    assert (found["compute"].low, found["compute"].high) == (0.5, 2.0)
    assert "wire.cci.latency_us" not in found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"wire.cci.latency_us" = [0.3, 0.1]', "must go up from at least 0, got 0.3 to 0.1"),
        ('"wire.cci.latency_us" = [0.3, 0.4]', "must hold its value, 0.21, got 0.3 to 0.4"),
        ('"wire.cci.latency_us" = [0.3]', r"must be \[low, high\], two numbers, got \[0.3\]"),
        ('"wire.cci.latency_us" = 0.3', r"must be \[low, high\], two numbers, got 0.3"),
        ('"wire.cci.latency_us" = [0.1, true]', "two numbers"),
        ('"wire.cci.latency_us" = [0.1, inf]', "must go up"),
        ('"wire.cci.latency_ns" = [100, 300]', "no number for wire.cci.latency_ns; it states wire.cci.latency_us"),
        ('"wire.cci.latency" = [100, 300]', "has no known unit"),
        ('"wire.ccj.latency_us" = [0.1, 0.3]', "did you mean wire.cci.latency_us"),
        ('"wire.cci.outstanding_kib" = [1, 3]', "no number for wire.cci.outstanding_kib; state the field first"),
        ('"accelerator.fp32_tflop_per_s" = [1, 300]', "state one of compute"),
        ("comput = [0.5, 2]", "there is no input comput; .* compute, rates, latencies"),
        ("compute = [1.5, 2]", "must hold its value, 1, got 1.5 to 2"),
    ],
)  # fmt: skip
def test_a_wrong_interval_is_refused_with_file_and_line(line, said, tmp_path):
    toml, number = file_with(tmp_path, line)
    with pytest.raises(ConfigError, match=said) as found:
        intervals_of(toml, {})
    assert str(found.value).startswith(f"{toml.path}:{number}: ")


def test_a_machine_is_the_same_with_intervals_and_without(tmp_path):
    toml, _ = file_with(tmp_path, "")
    assert load_machine(toml.path) == load_preset("cxl-cz120")
