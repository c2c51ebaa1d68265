"""Last iterations of an emulated run, for pictures and Perfetto: compute, waits and moves."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coarse.emulation.account import Iteration, Logged
from coarse.emulation.fabric import Charged
from coarse.protocol.trace import Trace, write_merged

TRACE_FILE = "trace.json"
_MOST_DRAWN = 2
"""Iterations of the first worker."""
_OF_WORKERS = ("push", "pull", "workers", "joint", "load", "store")
_KINDS = {"devices": "ring", "write": "ring", "adder": "add", "workers": "together", "joint": "together"}
"""Kinds of spans, as pictures name them, by way; others have the name of the way."""
_Span = tuple[str, float, float]
"""Kind, begin and end in seconds."""


class LastIterations:
    """Window of emulated time, and all that happened within it."""

    def __init__(self, logs: Sequence[Logged], iterations: Sequence[Iteration], recent: Sequence[Charged]) -> None:
        """Choose the window; `iterations` are counted ones of all workers, at least one."""
        own = [row for row in iterations if row.worker == iterations[0].worker][-_MOST_DRAWN:]
        self._begin_s, self._end_s = own[0].begin_s, own[-1].end_s
        self._logs = logs
        self._recent = recent

    def timeline(self, title: str) -> dict[str, Any]:
        """Return plain values that `coarse report` draws.

        They have a row for each worker, and for each thing that it or a device moves.
        """
        rows: dict[str, list[_Span]] = {
            f"worker {worker}": [*self._phases(log)] for worker, log in enumerate(self._logs)
        }
        for charged in self._recent:
            kind, who = _KINDS.get(charged.way, charged.way), _who(charged)
            rows.setdefault(f"{who} {kind}", []).extend(self._clipped(kind, charged.begin_s, charged.end_s))
        drawn = [{"name": name, "spans": spans} for name, spans in sorted(rows.items(), key=_place) if spans]
        return {
            "title": title, "duration_s": self._end_s - self._begin_s, "rows": drawn, "links": [], "places": [],
        }  # fmt: skip

    def write_trace(self, path: Path, title: str) -> None:
        """Write a process for each worker and device, whose lanes are its phases and each thing that it moves."""
        traces = {
            f"worker {worker}": Trace(worker, f"{title}: worker {worker}") for worker in range(len(self._logs))
        }
        lanes: dict[tuple[str, str], int] = {}
        for worker, log in enumerate(self._logs):
            trace = traces[f"worker {worker}"]
            trace.lane(0, "compute and waiting")
            for kind, begin_s, end_s in self._phases(log):
                trace.span(kind, "phase", begin_s, end_s)
        for charged in self._recent:
            kind, who = _KINDS.get(charged.way, charged.way), _who(charged)
            for _, begin_s, end_s in self._clipped(kind, charged.begin_s, charged.end_s):
                trace = traces.setdefault(who, Trace(len(traces), f"{title}: {who}"))
                if (who, kind) not in lanes:
                    lanes[who, kind] = sum(each == who for each, _ in lanes) + 1
                    trace.lane(lanes[who, kind], kind)
                ends = {"source": charged.source, "target": charged.target, "nbytes": charged.nbytes}
                trace.span(charged.way, kind, begin_s, end_s, lane=lanes[who, kind], **ends)
        write_merged([*traces.values()], path)

    def _phases(self, log: Logged) -> Iterator[_Span]:
        """Yield waits, and between them compute."""
        at_s = self._begin_s
        for begin_s, end_s in log.exposed:
            if end_s > self._begin_s and begin_s < self._end_s:
                yield from self._clipped("compute", at_s, begin_s)
                yield from self._clipped("exposed", begin_s, end_s)
                at_s = end_s
        yield from self._clipped("compute", at_s, self._end_s)

    def _clipped(self, kind: str, begin_s: float, end_s: float) -> Iterator[_Span]:
        begin_s, end_s = max(begin_s, self._begin_s), min(end_s, self._end_s)
        if end_s > begin_s:
            yield kind, begin_s - self._begin_s, end_s - self._begin_s


def _who(charged: Charged) -> str:
    """Return the owner of the port that it went through."""
    if charged.way in _OF_WORKERS:
        return f"worker {charged.target if charged.way == 'pull' else charged.source}"
    return f"device {charged.target if charged.way == 'fetch' else charged.source}"


def _place(row: tuple[str, list[_Span]]) -> tuple[bool, int, str]:
    who, number, *kind = row[0].split()
    return who != "worker", int(number), kind[0] if kind else ""
