"""Trace of a simulated job's last iteration, for Perfetto (ui.perfetto.dev)."""

from collections.abc import Sequence
from pathlib import Path

from coarse.cli.report.links import links_of
from coarse.cli.report.simulated import lane_of, last_iteration, phases_of, recording_of
from coarse.cli.report.timeline import Window
from coarse.protocol.trace import Trace, in_lanes, write_merged
from coarse.simulation.job import Job
from coarse.simulation.recording import Transfer, Work
from coarse.simulation.report import Report

COMPUTE_LANE = 0
LANES = {"push": 1, "pull": 2, "ring": 3, "fetch": 4, "add": 5}
FIRST_SYNC_LANE = 10
GB = 1e9


def write_trace(job: Job, report: Report, path: Path, title: str) -> None:
    """Write a trace with a process per worker and per device, and one with curves of the links' rates."""
    window = last_iteration(report)
    recording = recording_of(report)
    transfers = [each for each in recording.transfers() if each.end_s > window.begin_s]
    works = [work for work in recording.works() if work.end_s > window.begin_s]
    traces = {
        f"worker {row.worker}": _worker_trace(row.worker, phases_of(row, window), title) for row in report.steady()
    }
    busy = [(*lane_of(each.port), each) for each in transfers] + [(*lane_of(work.processor), work) for work in works]
    for who, kind in sorted({(who, kind) for who, kind, _ in busy}):
        if who not in traces:
            traces[who] = Trace(len(traces), f"{title}: {who}")
        traces[who].lane(LANES[kind], kind)
    for who, kind, each in busy:
        _add(traces[who], kind, each, job, window)
    _add_syncs(traces, report, job, window)
    write_merged([*traces.values(), _links_trace(job, transfers, window, len(traces), title)], path)


def _worker_trace(worker: int, phases: Sequence[tuple[str, float, float]], title: str) -> Trace:
    trace = Trace(worker, f"{title}: worker {worker}")
    trace.lane(COMPUTE_LANE, "compute and waiting")
    for kind, begin_s, end_s in phases:
        trace.span(kind, "phase", begin_s, end_s, lane=COMPUTE_LANE)
    return trace


def _add(trace: Trace, kind: str, each: Transfer | Work, job: Job, window: Window) -> None:
    """Add one transfer with its bytes and its links, or one addition."""
    span = window.clipped(kind, each.begin_s, each.end_s)
    if span is None:
        return
    lane = LANES[kind]
    if isinstance(each, Work):
        trace.span("add", kind, span.begin_s, span.end_s, lane=lane)
        return
    links = [job.site.links[link].name for link in each.path]
    is_known = each.port[0] != "workers"
    name = f"{kind} {job.gradients[each.position].name}" if is_known else kind
    trace.span(name, kind, span.begin_s, span.end_s, lane=lane, nbytes=each.nbytes, links=", ".join(links))


def _add_syncs(traces: dict[str, Trace], report: Report, job: Job, window: Window) -> None:
    """Add each gradient from backward to its combined values; overlapping ones get separate lanes."""
    seen = [sync for sync in report.syncs if sync.end_s > window.begin_s]
    for worker in sorted({sync.worker for sync in seen}):
        trace = traces[f"worker {worker}"]
        num_lanes = 0
        for lane, sync in in_lanes([sync for sync in seen if sync.worker == worker]):
            if lane == num_lanes:
                num_lanes += 1
                trace.lane(FIRST_SYNC_LANE + lane, f"gradients under way {lane + 1}")
            span = window.clipped("sync", sync.begin_s, sync.end_s)
            if span is not None:
                gradient = job.gradients[sync.position]
                name = f"sync {gradient.name}"
                place = FIRST_SYNC_LANE + lane
                slow_down = job.slow_down(sync.worker, job.num_iterations - 1)
                ready_s = gradient.ready_s * slow_down  # the ring sends it later, after backward
                sizes = {"nbytes": gradient.nbytes, "ready_s": ready_s}
                trace.span(name, "sync", span.begin_s, span.end_s, lane=place, **sizes)


def _links_trace(job: Job, transfers: Sequence[Transfer], window: Window, rank: int, title: str) -> Trace:
    trace = Trace(rank, f"{title}: links, GB/s")
    for use in links_of(job, transfers, window):
        bin_s = (window.end_s - window.begin_s) / len(use.bytes_per_s)
        before = -1.0
        for number, rate in enumerate(use.bytes_per_s):
            if rate != before:
                trace.counter(use.name, number * bin_s, gb_per_s=rate / GB)
            before = rate
    return trace
