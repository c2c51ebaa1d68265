"""What one process finds of a memory device, on arrays, with a clock that ticks and loops that note what they do."""

import numpy as np
import pytest

from coarse.hardware.measure import memory_probe
from coarse.hardware.measure.memory_probe import (
    COPY,
    LOAD,
    LOAD_FLUSHED,
    SLOT_BYTES,
    STORE,
    STORE_FLUSHED,
    MemoryProbe,
    lay_cycle,
    visits,
)

MIB = 1 << 20


class TickingClock:
    """A second later at every look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        self.seconds += 1.0
        return self.seconds


class Written:
    """In place of native loops: what they were asked for, as (name, first byte, bytes)."""

    write_back = evicting = "clflush"

    def __init__(self, memory: np.ndarray) -> None:
        self._base = memory.__array_interface__["data"][0]
        self.calls: list[tuple[str, int, int]] = []

    def _note(self, name: str, memory: np.ndarray) -> None:
        self.calls.append((name, memory.__array_interface__["data"][0] - self._base, len(memory)))

    def chase(self, memory: np.ndarray, begin: int, num_loads: int) -> int:
        words = memory.view(np.int64)
        for _ in range(num_loads):
            self.calls.append(("visit", begin, 8))
            begin = int(words[begin // 8])
        return begin

    def load(self, memory: np.ndarray) -> None:
        self._note("load", memory)

    def store(self, memory: np.ndarray, value: int) -> None:
        self._note("store", memory)

    def store_flushed(self, memory: np.ndarray, value: int) -> None:
        self._note("store_flushed", memory)

    def flush_each(self, memory: np.ndarray) -> None:
        self._note("flush_each", memory)

    def evict(self, memory: np.ndarray) -> None:
        self._note("evict", memory)


def probe_of(nbytes: int) -> tuple[MemoryProbe, Written, np.ndarray]:
    memory = np.zeros(nbytes, np.uint8)
    written = Written(memory)
    return MemoryProbe(memory, TickingClock(), written), written, memory


@pytest.mark.parametrize("num_slots", [1, 2, 3, 1000])
def test_the_chase_comes_to_every_slot_once_before_it_is_where_it_began(num_slots):
    memory = np.zeros(num_slots * SLOT_BYTES, np.uint8)
    order = visits(num_slots, 5)
    lay_cycle(memory, order)
    at, seen = int(order[0]) * SLOT_BYTES, []
    for _ in range(num_slots):
        seen.append(at)
        at = int(memory.view(np.int64)[at // 8])
    assert at == seen[0]
    assert sorted(seen) == list(range(0, num_slots * SLOT_BYTES, SLOT_BYTES))


def test_a_range_with_more_slots_than_a_chase_visits_is_visited_all_over(monkeypatch):
    monkeypatch.setattr(memory_probe, "_MOST_LINES", 1000)
    order = visits(100_000, 5)
    assert len(order) == len(set(order.tolist())) == 1000
    assert min(np.histogram(order, bins=4, range=(0, 100_000))[0]) > 150


def test_no_line_is_visited_twice_between_two_evictions_of_all():
    probe, written, memory = probe_of(4 * MIB)
    assert probe.lay() == len(memory) // SLOT_BYTES
    for _ in range(12):
        probe.latency_s(3.0)
    assert written.calls[0] == ("evict", 0, len(memory))
    since: set[int] = set()
    for name, begin, _ in written.calls:
        if name == "evict":
            since.clear()
        else:
            assert begin not in since
            since.add(begin)
    assert [name for name, _, _ in written.calls].count("evict") > 1


def test_latency_is_time_over_loads():
    probe, written, _ = probe_of(4 * MIB)
    probe.lay()
    found = probe.latency_s(3.0)  # looks at the clock at 1, and after each chunk of loads at 2, 3 and 4
    assert found == 3.0 / [name for name, _, _ in written.calls].count("visit")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_streams_of_several_processes_cover_parts_that_do_not_overlap(count):
    seen = np.zeros(16 * MIB, np.uint8)
    for index in range(count):
        probe, written, memory = probe_of(len(seen))
        probe.enter(index, count)
        probe.stream_bytes_per_s(LOAD, len(memory) / MIB)  # as many blocks as all of the range
        mine = np.zeros_like(seen)
        for _, begin, nbytes in written.calls:
            mine[begin : begin + nbytes] = 1
        seen += mine
    assert seen.max() == 1
    assert np.count_nonzero(seen == 0) < 128 * count


@pytest.mark.parametrize(
    ("kind", "names"),
    [(LOAD, ["load"]), (STORE, ["store"]), (STORE_FLUSHED, ["store_flushed"]), (LOAD_FLUSHED, ["evict", "load"])],
)
def test_a_rate_is_bytes_over_time_and_goes_on_where_the_last_run_ended(kind, names):
    probe, written, _ = probe_of(4 * MIB)
    probe.enter(0, 1)
    written.calls.clear()
    assert probe.stream_bytes_per_s(kind, 2.0) == 2 * MIB / 2.0
    assert probe.stream_bytes_per_s(kind, 3.0) == 3 * MIB / 3.0
    starts = [begin for name, begin, nbytes in written.calls if name == names[-1] and nbytes == MIB]
    assert starts == [0, MIB, 2 * MIB, 3 * MIB, 0]
    assert [name for name, _, _ in written.calls] == names * 5


def test_a_copy_moves_one_half_of_the_part_into_the_other():
    probe, _, memory = probe_of(4 * MIB)
    probe.enter(1, 2)
    memory[2 * MIB : 3 * MIB] = 5
    assert probe.stream_bytes_per_s(COPY, 1.0) == MIB
    assert (memory[3 * MIB :] == 5).all()
    assert not memory[: 2 * MIB].any()


def test_a_flush_is_timed_for_each_of_the_lines_that_were_written_before():
    probe, written, _ = probe_of(4 * MIB)
    probe.enter(0, 1)
    seconds = probe.flush_s()
    lines = sum(nbytes for name, _, nbytes in written.calls if name == "flush_each") // 64
    rounds = [name for name, _, _ in written.calls].count("flush_each")
    assert seconds == rounds * 1.0 / lines
    assert [name for name, _, _ in written.calls] == ["store", "flush_each"] * rounds
