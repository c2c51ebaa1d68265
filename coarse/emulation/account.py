"""Account of an emulated training, iteration by iteration: logs of its workers, and their evaluation."""

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, NamedTuple

import numpy as np

from coarse.emulation.compute import Stretches
from coarse.emulation.compute_file import ComputeTimes
from coarse.emulation.fabric import Absence, FabricReport
from coarse.protocol.config import BY_WALL, Config, EmulateSettings
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.joint import CollectiveKind, Joint, Meeting, pack_call
from coarse.protocol.run_file import NO_RESULT, RUN_FILE
from coarse.protocol.units import MIB

ALLOWED_LATE_SHARE = 0.01
"""Share of all transfers that may be late. Above it the links were not what they claim to be, and there is no
result."""
ALLOWED_MISSING_SHARE = 0.05
"""Share of a run's compute that may lie in stretches missing from a file of compute times. Above it there is no
result."""
MOST_STEPS = 8
"""Most iterations that are simulated: the last ones."""
_END = "\n"
"""End of a log that is whole."""
_MOST_ROWS = 1 << 17
_MOST_EXPOSED = 1 << 14
_SUMMED_AS = {4: DType.FLOAT32, 8: DType.FLOAT64}


class Push(NamedTuple):
    """Begin of a push or all-reduce, with a worker's compute and waits by then, in emulated seconds."""

    at_s: float
    computed_s: float
    waited_s: float
    left_s: float
    """End of its last wait before."""
    name: str
    num_elements: int
    dtype: int
    op: int
    is_workers: bool
    """True if the workers sum it themselves."""
    kind: int = 0
    """CollectiveKind of calls of groups of workers; 0 for all else."""
    members: tuple[int, ...] = ()
    """Workers of the group."""
    packed: str = ""
    """Packed call and place of its group (pack_call), as hexadecimal digits; "" of all else."""

    @classmethod
    def of_call(
        cls, at_s: float, computed_s: float, waited_s: float, left_s: float, name: str, joint: Joint, meeting: Meeting,
    ) -> "Push":  # fmt: skip
        """Return the record of a joint call."""
        dtype = _SUMMED_AS.get(joint.itemsize, DType.UINT8)
        is_ring = joint.kind is CollectiveKind.ALL_REDUCE and joint.is_ring
        numel = joint.nbytes // DType(dtype).itemsize
        packed = pack_call(meeting, joint).hex()
        return cls(
            at_s, computed_s, waited_s, left_s, name, numel, dtype, Op.SUM, is_ring, joint.kind, meeting.members, packed
        )

    @property
    def is_summed(self) -> bool:
        """True if devices or workers sum it."""
        return not self.kind or self.is_workers

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, as they are sent."""
        return self.num_elements * DType(self.dtype).itemsize


class Waited(NamedTuple):
    """Begin of a wait for joint calls, with a worker's compute by then, in emulated seconds."""

    at_s: float
    computed_s: float
    point: str


class Logged(NamedTuple):
    """Log of one worker."""

    pushes: list[Push]
    stretches_s: dict[str, list[float]]
    """Emulated seconds of each pass, by stretch; see Stretches.measured_s."""
    missing_s: float
    first_missing: str
    mode: str
    """Mode of calls of groups of workers; "" if there are none."""
    options: dict[str, Any]
    """Options of the mode."""
    not_charged: dict[str, int]
    """Calls that have no emulated time, by their kind."""
    steps_s: tuple[float, float]
    """Emulated seconds of the first and the last step of the optimizer; 0 and infinity if none was told."""
    waits: list[Waited]
    touched: tuple[int, int]
    exposed: list[tuple[float, float]]
    """Begin and end of its last waits, in emulated seconds."""


class WorkerLog:
    """Pushes and stretches of one worker, kept until it leaves."""

    def __init__(self, path: Path, stretches: Stretches) -> None:
        self._path = path
        self._pushes: list[Push] = []
        self._waits: list[Waited] = []
        self._steps_s: tuple[float, float] = (0.0, math.inf)
        self.not_charged: Counter[str] = Counter()
        self.exposed: deque[tuple[float, float]] = deque(maxlen=_MOST_EXPOSED)
        """Begin and end of its last waits; see Logged."""
        self.touched = np.zeros(2, np.int64)
        """Bytes of device memory that the script has loaded and stored."""
        self.mode = ""
        self.options: dict[str, object] = {}
        self._stretches = stretches

    def note(self, push: Push) -> None:
        """Note the begin of a push."""
        _keep_last(self._pushes)
        self._pushes.append(push)

    def note_step(self, at_s: float) -> None:
        """Note a step of the optimizer."""
        self._steps_s = (at_s if math.isinf(self._steps_s[1]) else self._steps_s[0], at_s)

    def note_wait(self, waited: Waited) -> None:
        """Note the begin of a wait."""
        _keep_last(self._waits)
        self._waits.append(waited)

    def write(self) -> None:
        """Write all rows; the worker leaves."""
        stretches = self._stretches
        logged = Logged(
            self._pushes, stretches.measured_s, stretches.missing_s, stretches.first_missing, self.mode, self.options,
            self.not_charged, self._steps_s, self._waits, (int(self.touched[0]), int(self.touched[1])),
            [*self.exposed],
        )  # fmt: skip
        self._path.write_text(json.dumps(logged) + _END, encoding="utf-8")


def _keep_last(rows: list[Any]) -> None:
    """Drop the first half of rows that have become very many: the later half of a run counts."""
    if len(rows) >= _MOST_ROWS:
        del rows[: _MOST_ROWS // 2]


class OwnStep(NamedTuple):
    """Iterations of a run, simulated with their own times of compute."""

    simulated_s: float
    emulated_s: float
    """Mean emulated seconds over the same iterations."""
    others: tuple[tuple[str, float], ...] = ()
    """Other modes, and the mean seconds of the same iterations in each."""
    range_s: tuple[float, float] | None = None
    """Least and most seconds under the intervals of the machine's numbers; None if these were not tried."""
    varied: str = ""
    """Numbers that were varied."""


class Iteration(NamedTuple):
    """Iteration of one worker, in emulated seconds."""

    worker: int
    begin_s: float
    end_s: float
    compute_s: float
    exposed_s: float
    """Seconds of waits for communication."""
    backward_s: float
    """Seconds of compute until the first wait."""
    forward_s: float
    """Seconds from that wait's end to the iteration's: the optimizer's step, its other exchanges, forward."""
    pushes: tuple[Push, ...]
    """Pushes before that wait."""


def read_logs(paths: Sequence[Path]) -> list[Logged] | None:
    """Return each worker's log; None if one was not written, or not to its end."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    if not all(text.endswith(_END) for text in texts):
        return None
    logs = [Logged(*json.loads(text)) for text in texts]
    return [
        log._replace(pushes=[Push(*row) for row in log.pushes], waits=[Waited(*row) for row in log.waits])
        for log in logs
    ]


def iterations_of(logs: Sequence[Logged]) -> list[Iteration]:
    """Return the iterations of the later half of the run's steps.

    By then a job has measured and decided. An iteration goes from one push to the next of one name: see `_mark_of`.
    """
    stepped = [[push for push in log.pushes if log.steps_s[0] <= push.at_s <= log.steps_s[1]] for log in logs]
    later = [pushes[len(pushes) // 2 :] for pushes in stepped]
    mark = _mark_of(stepped[0], is_sharded=bool(logs[0].options))
    rows = []
    for worker, log in enumerate(later):
        marks = [number for number, push in enumerate(log) if push.name == mark]
        for first, past in pairwise(marks):
            begin, end = log[first], log[past]
            pushes = tuple(push for push in log[first:past] if push.waited_s == begin.waited_s)
            after = log[first + len(pushes)]  # the first after a wait
            rows.append(
                Iteration(
                    worker=worker,
                    begin_s=begin.at_s,
                    end_s=end.at_s,
                    compute_s=end.computed_s - begin.computed_s,
                    exposed_s=end.waited_s - begin.waited_s,
                    backward_s=after.computed_s - begin.computed_s - (after.at_s - after.left_s),
                    forward_s=end.at_s - after.left_s,
                    pushes=pushes,
                )
            )
    return rows


def last_of_each(iterations: Sequence[Iteration], num_workers: int, most: int = MOST_STEPS) -> list[list[Iteration]]:
    """Return the last iterations of each worker, so many at most."""
    return [[row for row in iterations if row.worker == worker][-most:] for worker in range(num_workers)]


def _mark_of(pushes: Sequence[Push], *, is_sharded: bool) -> str | None:
    """Return the name that an iteration begins with; None without pushes.

    It is among those that are pushed most often in the later half, which may begin within an iteration, are summed if
    no model is sharded, and come after a wait, if any of them is and does. It came first in the run.
    """
    middle = len(pushes) // 2
    counts = Counter(push.name for push in pushes[middle:])
    after_wait = Counter(push.name for last, push in pairwise(pushes[middle:]) if push.waited_s > last.waited_s)
    most = max(counts.values(), default=0)
    often = [name for name, count in counts.items() if count >= max(most - 1, min(most, 2))]
    summed = set() if is_sharded else {push.name for push in pushes if push.is_summed}
    often = [name for name in often if name in summed] or often
    first = [name for name in often if 2 * after_wait[name] > most] or often
    return next((push.name for push in pushes if push.name in first), None)


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """Account of an emulated training (kind: emulated)."""

    machine: str
    mode: str
    policy: str
    num_workers: int
    compute_scale: float
    is_scale_measured: bool
    is_by_wall: bool = False
    """True if compute is the time that passed."""
    compute_file: str | None = None
    """File of times of compute that count instead."""
    compute_of: str = ""
    """Program that had them."""
    missing_share: float = 0.0
    """Share of the workers' compute in stretches that the file lacks."""
    first_missing: str = ""
    iterations: tuple[Iteration, ...]
    """Iterations of the later half of the run."""
    num_transfers: int
    num_late: int
    link_bytes: tuple[tuple[str, float], ...]
    """Bytes on each link in the whole run, the most first."""
    busiest: tuple[str, float] | None = None
    """Link that was used most, and the share of the run for which it was."""
    charged: tuple[tuple[str, int], ...] = ()
    """Bytes that have taken emulated time, by way (FabricPort). Of joint calls the bytes that each worker
    contributes count."""
    touched: tuple[int, int] = (0, 0)
    """Bytes of parameters in device memory that all workers have loaded and stored."""
    not_charged: tuple[tuple[str, int], ...] = ()
    """Calls of all workers that have no emulated time."""
    absences: tuple[Absence, ...] = ()
    """Times at which emulated time went on without a worker."""
    simulated: OwnStep | str = ""
    """Simulation of the last iterations; or the reason why there is none."""

    @property
    def durations_s(self) -> list[float]:
        """Seconds of each counted iteration."""
        return [row.end_s - row.begin_s for row in self.iterations]

    def text(self) -> str:
        """Return lines for people."""
        lines = [f"coarse: emulated on {self.machine}: {self.num_workers} workers; {self._pace()}"]
        if reason := self._no_result():
            return "\n".join((*lines, f"coarse: {reason}"))
        spread = ", ".join(f"{seconds * 1e3:.4g}" for seconds in self._ends(self.durations_s))
        means = ", ".join(f"{name} {seconds * 1e3:.4g} ms" for name, seconds in self._means_s().items())
        busiest = f"; busiest link {self.busiest[0]}, {self.busiest[1]:.0%} of the run" if self.busiest else ""
        lines.append(f"coarse: {means} (emulated; {spread} ms from the 10th to the 90th percentile){busiest}")
        if isinstance(self.simulated, str):
            lines += [f"coarse: not simulated: {self.simulated}"] if self.simulated else []
        else:
            ratio = self.simulated.emulated_s / self.simulated.simulated_s
            lines.append(
                f"coarse: {self.simulated.simulated_s * 1e3:.4g} ms simulated, of the last iterations' own steps; "
                f"emulated over simulated {ratio:.3f}"
            )
            if self.simulated.range_s is not None:
                least, most = (f"{seconds * 1e3:.4g}" for seconds in self.simulated.range_s)
                varied = self.simulated.varied
                lines.append(f"coarse: {least} to {most} ms simulated where the machine may differ: {varied}")
            if self.simulated.others:
                others = ", ".join(f"{name} {seconds * 1e3:.4g} ms" for name, seconds in self.simulated.others)
                lines.append(f"coarse: the same steps by other modes: {others} (simulated)")
        counted = f"{len(self.iterations)} iterations of the run's later half"
        lines.append(f"coarse: {counted}; {self.num_transfers} transfers, {self.num_late} late")
        if self.charged:
            moved = ", ".join(f"{way} {nbytes / MIB:.4g}" for way, nbytes in self.charged)
            lines.append(f"coarse: MiB charged in the run: {moved}")
        if self.absences:
            lines.append(f"coarse: emulated time went on without some: {self._absent()}")
        if any(self.touched):
            loaded, stored = (nbytes / MIB for nbytes in self.touched)
            lines.append(f"coarse: parameters in device memory: {loaded:.3g} MiB loaded, {stored:.3g} MiB stored")
        if self.not_charged:
            calls = ", ".join(f"{name} ({count} calls)" for name, count in self.not_charged)
            lines.append(f"coarse: not charged: what these move: {calls}")
        return "\n".join(lines)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that `coarse report` draws: one mode, means over workers; nothing without a result."""
        if self._no_result():
            return []
        seconds = {f"{name}_s": mean_s for name, mean_s in self._means_s().items()}
        return [{"name": self.mode, "policy": self.policy, **seconds, "idle_s": 0.0, "link_bytes": []}]

    def write(self, folder: Path, timelines: Sequence[dict[str, Any]] = ()) -> None:
        """Write run.json, which `coarse report` draws, with timelines of some iterations."""
        folder.mkdir(parents=True, exist_ok=True)
        plain = replace(self, iterations=(), simulated="")
        why = self._no_result()
        found: dict[str, Any] = {"kind": "emulated", NO_RESULT: why, **asdict(plain)}
        found["iterations"] = [row._replace(pushes=())._asdict() for row in self.iterations]
        found["title"] = f"{self.num_workers} workers on {self.machine} (emulated)"
        found["inputs"] = {"machine": self.machine, "compute": self._pace()}
        found |= {"rows": self.rows(), "notes": [], "timelines": [*timelines]}
        found["simulated"] = self.simulated if isinstance(self.simulated, str) else self.simulated._asdict()
        (folder / RUN_FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def _no_result(self) -> str | None:
        """Return the reason why the times mean nothing; None if they mean something."""
        if self.num_late > ALLOWED_LATE_SHARE * self.num_transfers:
            return (
                f"{self.num_late / self.num_transfers:.1%} of {self.num_transfers} transfers were submitted after "
                f"their emulated time had passed, and at most {ALLOWED_LATE_SHARE:.0%} may be"
                f"{f', since {self._absent()}' if self.absences else ''}; no "
                "result. The training itself is complete and right"
            )
        if self.missing_share > ALLOWED_MISSING_SHARE:
            return (
                f"{self.missing_share:.1%} of the compute lies in stretches that the file lacks, first "
                f"{self.first_missing!r}, and at most {ALLOWED_MISSING_SHARE:.0%} may; no result. The training itself "
                "is complete and right; save the times of this job by --save-compute, or leave out --compute"
            )
        return None if self.iterations else "no name was pushed often enough to tell iterations apart"

    def _absent(self) -> str:
        """Return the workers that waited outside of emulation, how often, and the line of the first time."""
        return ", ".join(
            f"worker {each.worker} waited elsewhere {each.times} times" + (f" ({each.place})" if each.place else "")
            for each in self.absences
        )

    def _means_s(self) -> dict[str, float]:
        return {
            "iteration": fmean(self.durations_s),
            "compute": fmean(row.compute_s for row in self.iterations),
            "exposed": fmean(row.exposed_s for row in self.iterations),
        }

    def _pace(self) -> str:
        if self.compute_file is not None:
            return f"compute is as {self.compute_file} has it of {self.compute_of!r}"
        spent = "the time that passed" if self.is_by_wall else "this core's CPU time"
        if not self.is_scale_measured:
            return f"compute is {spent} over {self.compute_scale:g}, as stated"
        return (
            f"compute is {spent} over {self.compute_scale:.3g} (an assumption: 0.3 of the accelerator's "
            "peak over a matrix product here; --compute-scale states another)"
        )

    @staticmethod
    def _ends(values: Sequence[float]) -> tuple[float, float]:
        if len(values) < 2:
            return values[0], values[0]
        tenths = quantiles(values, n=10, method="inclusive")
        return tenths[0], tenths[-1]


def _missing_share(logs: Sequence[Logged]) -> float:
    computed_s = sum(log.pushes[-1].computed_s for log in logs if log.pushes)
    return sum(log.missing_s for log in logs) / computed_s if computed_s else 0.0


def report_of(
    settings: EmulateSettings,
    scale: float,
    logs: Sequence[Logged],
    fabric: FabricReport,
    links: Sequence[tuple[str, float]],
    simulated: Callable[[Sequence[Iteration]], OwnStep | str],
    config: Config,
    times: ComputeTimes | None = None,
) -> TrainingReport:
    """Return the account of a run from its workers' logs and the fabric's.

    Args:
        settings: Those of [emulate].
        scale: How many times faster the accelerator is than a core here.
        logs: Each worker's.
        fabric: The account of transfers.
        links: Name of each link, and its bytes per second.
        simulated: Function that returns a simulation of these iterations, or the reason why there is none.
        config: The job's.
        times: Those that counted instead of CPU time.
    """
    iterations = tuple(iterations_of(logs))
    is_together = iterations and all(push.kind for row in iterations for push in row.pushes)
    mode = logs[0].mode if is_together and logs[0].mode else config.mode
    used = [(name, nbytes, rate) for (name, rate), nbytes in zip(links, fabric.link_bytes, strict=True) if nbytes]
    run_s = max((log.pushes[-1].at_s for log in logs if log.pushes), default=0.0)
    busy = [(name, nbytes / rate / run_s) for name, nbytes, rate in used] if run_s else []
    return TrainingReport(
        machine=settings.machine,
        mode=mode,
        policy=config.policy if mode == "coarse" else "",
        num_workers=len(logs),
        compute_scale=scale,
        is_scale_measured=settings.compute_scale is None and settings.compute_file is None,
        compute_file=settings.compute_file,
        is_by_wall=settings.compute == BY_WALL,
        compute_of=times.script if times is not None else "",
        missing_share=_missing_share(logs),
        first_missing=next((log.first_missing for log in logs if log.first_missing), ""),
        iterations=iterations,
        num_transfers=fabric.num_transfers,
        num_late=fabric.num_late,
        absences=fabric.absences,
        charged=fabric.charged,
        touched=(sum(log.touched[0] for log in logs), sum(log.touched[1] for log in logs)),
        not_charged=tuple(sum((Counter(log.not_charged) for log in logs), Counter[str]()).most_common()),
        link_bytes=tuple(sorted(((name, nbytes) for name, nbytes, _ in used), key=lambda use: -use[1])),
        busiest=max(busy, key=lambda use: use[1], default=None),
        simulated=simulated(iterations),
    )
