"""Rates that latency limits: no more bytes come than are under way until they are answered (Little's law)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.machine import Machine, pair_s
from coarse.hardware.machine_file import load_machine, save_machine
from coarse.hardware.presets import load_preset
from coarse.hardware.wire import Wire, reached_bytes_per_s

NBYTES = 1 << 28
CXL = ("cxl-type3-asic", "cxl-type3-fpga", "cxl-cz120", "cxl-cmm-b", "cxl-niagara2")


def with_latency(machine: Machine, factor: float) -> Machine:
    """The machine whose coherent accesses take so many times as long to answer."""
    assert machine.coherence is not None
    return replace(machine, coherence=replace(machine.coherence, latency_s=factor * machine.coherence.latency_s))


def reached(bytes_per_s, flush_bytes_per_s):
    """The rate of accesses whose lines are flushed, one after the other."""
    return 1 / (1 / bytes_per_s + 1 / flush_bytes_per_s)


@given(
    rate=st.floats(1e6, 1e12), latency_s=st.floats(0, 1e-3), outstanding=st.one_of(st.none(), st.floats(64, 1e9))
)
def test_a_rate_is_never_above_the_links_nor_above_what_is_under_way_over_the_latency(rate, latency_s, outstanding):
    reached = reached_bytes_per_s(rate, latency_s, outstanding)
    assert 0 < reached <= rate
    if outstanding is None or latency_s == 0:
        assert reached == rate
    else:
        assert reached == min(rate, outstanding / latency_s)


@pytest.mark.parametrize("name", CXL)
def test_a_presets_memory_is_filled_at_its_own_latency_and_not_at_twice(name):
    machine = load_preset(name)
    coherence = machine.coherence
    assert coherence is not None
    own_s = pair_s(machine, "memory0", "gpu0", NBYTES, bidirectional=False, kind="load")
    bus, flush = 26.1e9, coherence.software_flush_bytes_per_s or float("inf")
    assert own_s == pytest.approx(NBYTES / min(bus, reached(coherence.load_bytes_per_s, flush)), rel=0.01)
    twice_s = pair_s(with_latency(machine, 2.0), "memory0", "gpu0", NBYTES, bidirectional=False, kind="load")
    assert twice_s == pytest.approx(NBYTES / min(bus, reached(coherence.load_bytes_per_s / 2, flush)), rel=0.01)


def test_ten_times_the_latency_takes_ten_times_the_loads_and_a_machine_without_the_law_hides_it():
    machine = load_preset("cxl-cz120")
    seconds = [
        pair_s(with_latency(machine, factor), "memory0", "gpu0", NBYTES, bidirectional=False, kind="load")
        for factor in (10.0, 100.0)
    ]
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=0.01)
    assert machine.coherence is not None
    hidden = replace(machine, coherence=replace(machine.coherence, load_outstanding_bytes=None))
    slow_s = pair_s(with_latency(hidden, 100.0), "memory0", "gpu0", NBYTES, bidirectional=False, kind="load")
    fast_s = pair_s(hidden, "memory0", "gpu0", NBYTES, bidirectional=False, kind="load")
    assert slow_s == pytest.approx(fast_s, rel=0.01)


def test_sharers_leave_each_less_of_both():
    machine = load_preset("cxl-type3-asic")
    alone, shared = (
        pair_s(replace(machine, num_sharers=number), "memory0", "gpu0", NBYTES, bidirectional=False, kind="load")
        for number in (1, 11)
    )
    assert shared == pytest.approx(3 * NBYTES / 31.7e9, rel=0.01)
    assert alone < shared


def test_a_file_keeps_it(tmp_path):
    machine = load_preset("cxl-cmm-b")
    save_machine(machine, tmp_path / "machine.toml")
    assert load_machine(tmp_path / "machine.toml") == machine


def test_times_by_size_and_the_law_are_refused_together_and_so_is_nothing_under_way():
    with pytest.raises(ConfigError, match="remove one"):
        Wire(name="w", bytes_per_s=1e9, up_table=((64, 1e-6),), outstanding_bytes=64)
    with pytest.raises(ConfigError, match="outstanding_bytes"):
        Wire(name="w", bytes_per_s=1e9, outstanding_bytes=0)
