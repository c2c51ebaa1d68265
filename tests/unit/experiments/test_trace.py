"""A trace is what Chrome's trace format asks for, and merging keeps ranks apart."""

import json

import pytest

from coarse.protocol.trace import Trace, merge


def events_of(path, phase):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == phase]


def test_spans_are_complete_events_in_microseconds(tmp_path):
    trace = Trace(3, "worker 1")
    trace.span("push", "client", 1.5, 1.75, lane=2, key="w")
    trace.write(tmp_path / "trace.json")
    [event] = events_of(tmp_path / "trace.json", "X")
    assert event == {
        "ph": "X", "name": "push", "cat": "client", "pid": 3, "tid": 2,
        "ts": 1.5e6, "dur": 0.25e6, "args": {"key": "w"},
    }  # fmt: skip


def test_counters_carry_their_values(tmp_path):
    trace = Trace(0, "device")
    trace.counter("bytes", 2.0, pushed=5, pulled=7)
    trace.write(tmp_path / "trace.json")
    [event] = events_of(tmp_path / "trace.json", "C")
    assert event["args"] == {"pushed": 5, "pulled": 7}
    assert event["ts"] == 2e6


def test_ranks_and_lanes_have_names(tmp_path):
    trace = Trace(1, "device 0")
    trace.lane(4, "sync core 0")
    trace.write(tmp_path / "trace.json")
    names = {(event["name"], event["tid"]): event["args"] for event in events_of(tmp_path / "trace.json", "M")}
    assert names["process_name", 0] == {"name": "device 0"}
    assert names["thread_name", 4] == {"name": "sync core 0"}


def test_a_span_that_ends_before_it_begins_is_refused():
    with pytest.raises(ValueError, match="rank 2: span 'pull' ends at"):
        Trace(2, "worker").span("pull", "client", 2.0, 1.0)


def test_merging_keeps_equal_ranks_apart_and_begins_at_zero(tmp_path):
    for index in range(2):
        trace = Trace(0, f"run {index}")
        trace.span("step", "step", 10.0 + index, 11.0 + index)
        trace.write(tmp_path / f"{index}.json")
    merge([tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "merged.json")
    spans = events_of(tmp_path / "merged.json", "X")
    assert [span["ts"] for span in spans] == [0.0, 1e6]
    names = {event["pid"]: event["args"]["name"] for event in events_of(tmp_path / "merged.json", "M")
             if event["name"] == "process_name"}  # fmt: skip
    assert [names[span["pid"]] for span in spans] == ["run 0", "run 1"]


def test_merging_lists_processes_in_the_order_of_the_files(tmp_path):
    for index, rank in enumerate((7, 2)):
        Trace(rank, "").write(tmp_path / f"{index}.json")
    merge([tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "merged.json")
    orders = [event["args"]["sort_index"] for event in events_of(tmp_path / "merged.json", "M")
              if event["name"] == "process_sort_index"]  # fmt: skip
    assert orders == [1, 2]


def test_writing_leaves_nothing_but_the_file(tmp_path):
    Trace(0, "worker").write(tmp_path / "new" / "trace.json")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["trace.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_merging_what_is_no_trace_names_the_file(tmp_path, text):
    (tmp_path / "torn.json").write_text(text)
    with pytest.raises(ValueError, match=r"torn\.json is no trace"):
        merge([tmp_path / "torn.json"], tmp_path / "merged.json")
