# Reads and writes files; reads the process number.
"""Spans and counters of a run as a file in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

The format is the JSON object form of Google's "Trace Event Format": complete events (X), counters (C) and metadata (M),
times in microseconds. A process of the trace is a rank, a thread one of its lanes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, TypeVar

from coarse.protocol.whole_file import write_whole

US_PER_S = 1e6


class Span(NamedTuple):
    """Interval in seconds of the trace's clock."""

    name: str
    begin_s: float
    end_s: float


class Lasting(Protocol):
    """Object with a begin and an end in time."""

    @property
    def begin_s(self) -> float:
        """Seconds at which it begins."""
        ...

    @property
    def end_s(self) -> float:
        """Seconds at which it ends."""
        ...


Lasts = TypeVar("Lasts", bound=Lasting)


def in_lanes(spans: Iterable[Lasts]) -> Iterator[tuple[int, Lasts]]:
    """Yield (first lane that is free, span) in the order in which spans begin."""
    ends_s: list[float] = []
    for span in sorted(spans, key=lambda span: span.begin_s):
        lane = next((lane for lane, end_s in enumerate(ends_s) if end_s <= span.begin_s), len(ends_s))
        ends_s[lane:] = [span.end_s, *ends_s[lane + 1 :]]
        yield lane, span


class Trace:
    """Trace of one rank, whose `write` makes the file.

    Times are seconds on a clock that all merged traces share.
    """

    def __init__(self, rank: int, name: str) -> None:
        self._rank = rank
        self._events: list[dict[str, Any]] = [_metadata("process_name", rank, 0, {"name": name})]
        self._events.append(_metadata("process_sort_index", rank, 0, {"sort_index": rank}))

    def lane(self, lane: int, name: str) -> None:
        """Name one of the rank's lanes, a thread or a sync core."""
        self._events.append(_metadata("thread_name", self._rank, lane, {"name": name}))

    def span(self, name: str, category: str, begin_s: float, end_s: float, *, lane: int = 0, **details: object) -> None:
        """Add a span from `begin_s` to `end_s`; spans of a lane lie beside or inside one another."""
        if end_s < begin_s:
            raise ValueError(f"rank {self._rank}: span {name!r} ends at {end_s} s, before it begins at {begin_s} s")
        event = {"ph": "X", "name": name, "cat": category, "pid": self._rank, "tid": lane, "args": details}
        self._events.append({**event, "ts": begin_s * US_PER_S, "dur": (end_s - begin_s) * US_PER_S})

    def counter(self, name: str, at_s: float, **values: float) -> None:
        """Add numbers that hold from `at_s` on; Perfetto draws each as a curve."""
        self._events.append(
            {"ph": "C", "name": name, "pid": self._rank, "tid": 0, "ts": at_s * US_PER_S, "args": values}
        )

    def write(self, path: Path | str) -> None:
        """Write the trace as a file that is whole or absent."""
        _write(Path(path), self._events)


def write_merged(traces: Sequence[Trace], path: Path) -> None:
    """Write several traces of this process as one, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as folder:
        parts = [Path(folder) / f"{number}.json" for number in range(len(traces))]
        for trace, part in zip(traces, parts, strict=True):
            trace.write(part)
        merge(parts, path)


def merge(paths: Sequence[Path | str], path: Path | str) -> None:
    """Merge several traces that share a clock into one.

    Its time begins at 0, and equal ranks of two files stay apart.
    """
    merged: list[dict[str, Any]] = []
    processes: dict[tuple[int, int], int] = {}
    for index, source in enumerate(paths):
        for event in _read(Path(source)):
            process = processes.setdefault((index, event["pid"]), len(processes) + 1)
            merged.append(_in_process(event, process))
    times_us = [event["ts"] for event in merged if "ts" in event]
    begin_us = min(times_us, default=0.0)
    _write(Path(path), [{**event, "ts": event["ts"] - begin_us} if "ts" in event else event for event in merged])


def _in_process(event: Mapping[str, Any], process: int) -> dict[str, Any]:
    """Move an event to another process; processes are listed in their new order."""
    moved = {**event, "pid": process}
    if event["name"] == "process_sort_index":
        moved["args"] = {"sort_index": process}
    return moved


def _metadata(name: str, rank: int, lane: int, values: Mapping[str, object]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": lane, "args": dict(values)}


def _read(path: Path) -> list[dict[str, Any]]:
    """Read the events of a trace file that `write` made."""
    try:
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no trace: wanted a JSON object with traceEvents, got {error!r}") from error
    return events


def _write(path: Path, events: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
