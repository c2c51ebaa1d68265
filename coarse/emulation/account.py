"""Account of an emulated training, iteration by iteration: logs of its workers, and what is printed and written."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, NamedTuple

from coarse.emulation.fabric import FabricReport
from coarse.protocol.config import EmulateSettings

ALLOWED_LATE_SHARE = 0.01
"""Of all transfers; above it the links were not what they claim to be, and there is no result."""
RUN_FILE = "run.json"


class _Push(NamedTuple):
    """A push, and what a worker had computed and waited by then, in emulated seconds."""

    at_s: float
    name: str
    computed_s: float
    waited_s: float


class WorkerLog:
    """Pushes of one worker, kept until it leaves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pushes: list[_Push] = []

    def note(self, at_s: float, name: str, computed_s: float, waited_s: float) -> None:
        """A push begins."""
        self._pushes.append(_Push(at_s, name, computed_s, waited_s))

    def write(self, end_s: float) -> None:
        """Write all of them, whole or not at all; the worker leaves."""
        unfinished = self._path.with_suffix(".part")
        unfinished.write_text(json.dumps({"end_s": end_s, "pushes": self._pushes}))
        unfinished.rename(self._path)


class Iteration(NamedTuple):
    """One iteration of a worker, in emulated seconds."""

    worker: int
    begin_s: float
    end_s: float
    compute_s: float
    exposed_s: float
    """Seconds of waits for communication."""


def read_logs(paths: Sequence[Path]) -> list[list[_Push]]:
    """Return each worker's pushes, in order."""
    return [[_Push(*row) for row in json.loads(path.read_text())["pushes"]] for path in paths]


def iterations_of(logs: Sequence[Sequence[_Push]]) -> list[Iteration]:
    """Return the iterations of the later half of the run, in which a job has measured and decided what it will.

    An iteration goes from one push to the next of the name that is pushed most often then, the first such.
    """
    later = [log[len(log) // 2 :] for log in logs]
    counts = Counter(push.name for push in later[0])
    if not counts:
        return []
    most = max(counts.values())
    mark = next(push.name for push in later[0] if counts[push.name] == most)
    rows = []
    for worker, log in enumerate(later):
        for begin, end in pairwise(push for push in log if push.name == mark):
            computed_s, waited_s = end.computed_s - begin.computed_s, end.waited_s - begin.waited_s
            rows.append(Iteration(worker, begin.at_s, end.at_s, computed_s, waited_s))
    return rows


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """The account of an emulated training (kind: emulated)."""

    machine: str
    num_workers: int
    compute_scale: float
    is_scale_measured: bool
    iterations: tuple[Iteration, ...]
    """Those of the later half of the run."""
    num_transfers: int
    num_late: int
    link_bytes: tuple[tuple[str, float], ...]
    """Bytes on each link in the whole run, the most first."""

    @property
    def durations_s(self) -> list[float]:
        """Seconds of each counted iteration."""
        return [row.end_s - row.begin_s for row in self.iterations]

    def text(self) -> str:
        """Lines for people."""
        lines = [f"coarse: emulated on {self.machine}: {self.num_workers} workers; {self._pace()}"]
        if self.num_late > ALLOWED_LATE_SHARE * self.num_transfers:
            share = f"{self.num_late / self.num_transfers:.1%} of {self.num_transfers} transfers were submitted after"
            return "\n".join((
                *lines,
                f"coarse: {share} their emulated time had passed, and at most {ALLOWED_LATE_SHARE:.0%} may be; no "
                "result. The training itself is complete and right",
            ))  # fmt: skip
        if not self.iterations:
            return "\n".join((*lines, "coarse: no name was pushed often enough to tell iterations apart"))
        spread = ", ".join(f"{seconds * 1e3:.4g}" for seconds in self._ends(self.durations_s))
        rows = {
            "iteration": fmean(self.durations_s),
            "compute": fmean(row.compute_s for row in self.iterations),
            "exposed": fmean(row.exposed_s for row in self.iterations),
        }
        means = ", ".join(f"{name} {seconds * 1e3:.4g} ms" for name, seconds in rows.items())
        busiest = f"; most bytes on {self.link_bytes[0][0]}" if self.link_bytes else ""
        lines.append(f"coarse: {means} (emulated; {spread} ms from the 10th to the 90th percentile){busiest}")
        counted = f"{len(self.iterations)} iterations of the run's later half"
        lines.append(f"coarse: {counted}; {self.num_transfers} transfers, {self.num_late} late")
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """Write run.json."""
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {"kind": "emulated", **asdict(self)}
        found["iterations"] = [row._asdict() for row in self.iterations]
        (folder / RUN_FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def _pace(self) -> str:
        if not self.is_scale_measured:
            return f"compute is this core's CPU time over {self.compute_scale:g}, as stated"
        return (
            f"compute is this core's CPU time over {self.compute_scale:.3g} (an assumption: 0.3 of the accelerator's "
            "peak over a matrix product here; --compute-scale states another)"
        )

    @staticmethod
    def _ends(values: Sequence[float]) -> tuple[float, float]:
        if len(values) < 2:
            return values[0], values[0]
        tenths = quantiles(values, n=10, method="inclusive")
        return tenths[0], tenths[-1]


def report_of(
    settings: EmulateSettings,
    scale: float,
    logs: Sequence[Sequence[_Push]],
    fabric: FabricReport,
    link_names: Sequence[str],
) -> TrainingReport:
    """Return the account of a run from its workers' logs and the fabric's."""
    named = zip(link_names, fabric.link_bytes, strict=True)
    return TrainingReport(
        machine=settings.machine,
        num_workers=len(logs),
        compute_scale=scale,
        is_scale_measured=settings.compute_scale is None,
        iterations=tuple(iterations_of(logs)),
        num_transfers=fabric.num_transfers,
        num_late=fabric.num_late,
        link_bytes=tuple(sorted(((name, nbytes) for name, nbytes in named if nbytes), key=lambda use: -use[1])),
    )
