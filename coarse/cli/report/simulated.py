"""Timeline of a simulated job's last iteration."""

from collections.abc import Iterator, Sequence

from coarse.cli.report.links import busiest_of_each_kind, links_of
from coarse.cli.report.timeline import Row, Span, Timeline, Window, joined
from coarse.simulation.job import Job
from coarse.simulation.recording import Recording, Transfer
from coarse.simulation.report import Report, WorkerIteration

SHOWN_WORKERS = 8
"""Number of workers, and of devices, that have rows in a picture."""
_KIND_OF_PORT = {"push": "push", "pull": "pull", "workers": "ring", "ring": "ring", "fetch": "fetch", "adder": "add"}


def last_iteration(report: Report) -> Window:
    """Return the window from the first worker's begin to the last one's end."""
    rows = report.steady()
    return Window(min(row.begin_s for row in rows), max(row.end_s for row in rows))


def timeline_of(job: Job, report: Report, title: str, places: Sequence[tuple[str, str]]) -> Timeline:
    """Return rows of the first workers and devices, and the busiest links, of a job's last iteration.

    The job was recorded.
    """
    recording = recording_of(report)
    window = last_iteration(report)
    transfers = [each for each in recording.transfers() if each.end_s > window.begin_s]
    phases = {row.worker: phases_of(row, window) for row in report.steady() if row.worker < SHOWN_WORKERS}
    rows = [Row(name=f"worker {worker}", spans=spans) for worker, spans in phases.items()]
    rows += _port_rows(transfers, recording, window)
    duration_s = window.end_s - window.begin_s
    return Timeline(
        title=title,
        duration_s=duration_s,
        rows=tuple(sorted(rows, key=lambda row: _rank(row.name))),
        links=busiest_of_each_kind(links_of(job, transfers, window), duration_s),
        places=tuple(places),
    )


def recording_of(report: Report) -> Recording:
    """Return the recording; raise ValueError if there is none."""
    if report.recording is None:
        raise ValueError("the job was not recorded; simulate it with record=True")
    return report.recording


def phases_of(row: WorkerIteration, window: Window) -> tuple[Span, ...]:
    """Return forward, backward, idle and exposed communication of a worker's iteration, end to end."""
    ends = {
        "forward": row.forward_end_s,
        "backward": row.backward_end_s,
        "idle": row.backward_end_s + row.idle_s,
        "exposed": row.end_s,
    }
    begin_s, spans = row.begin_s, []
    for kind, end_s in ends.items():
        spans.append(window.clipped(kind, begin_s, end_s))
        begin_s = end_s
    return tuple(span for span in spans if span is not None)


def lane_of(port: tuple[str, int]) -> tuple[str, str]:
    """Return (rank, kind of span) of a port in pictures."""
    does, number = port
    who = "worker" if does in ("push", "pull", "workers") else "device"
    return f"{who} {number}", _KIND_OF_PORT[does]


def _port_rows(transfers: Sequence[Transfer], recording: Recording, window: Window) -> Iterator[Row]:
    """Yield a row per sender and kind of transfer, and one per adder."""
    spans: dict[tuple[str, str], list[Span]] = {}
    busy = [(each.port, each.begin_s, each.end_s) for each in transfers]
    busy += [(work.processor, work.begin_s, work.end_s) for work in recording.works() if work.end_s > window.begin_s]
    for port, begin_s, end_s in busy:
        who, kind = lane_of(port)
        span = window.clipped(kind, begin_s, end_s)
        if span is not None and port[1] < SHOWN_WORKERS:
            spans.setdefault((who, kind), []).append(span)
    for (who, kind), parts in spans.items():
        yield Row(name=f"{who} {kind}", spans=joined(parts))


def _rank(name: str) -> tuple[bool, int, int]:
    """Return a sort key: workers first, by number; of each its phases, then kinds in order of travel."""
    who, number, *kind = name.split()
    order = ("", "push", "fetch", "add", "ring", "pull")
    return who != "worker", int(number), order.index(kind[0] if kind else "")
