"""Simulated steps of an emulated run whose workers gather and scatter by torch itself: call by call.

[Note: calls] Each worker computes as it did between two calls or waits, makes the calls that it made, in their order
and with their sizes, and waits where it waited; a barrier is waited for at once. Calls of a group meet as they do on
the machine (joints.py).
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from coarse.emulation.account import Iteration, Logged, OwnStep, Push, Waited, last_of_each
from coarse.emulation.envelope import NUMBER_BYTES, FabricPort, Submission
from coarse.emulation.joints import JointCalls
from coarse.protocol.joint import CollectiveKind
from coarse.simulation.engine import Engine
from coarse.simulation.job import Job

_WAIT = "wait "


class _Compute(NamedTuple):
    """Compute of a worker."""

    seconds: float


class _Call(NamedTuple):
    """Call of a worker, which it waits for at once, or later."""

    name: str
    packed: bytes
    is_awaited: bool


class _Wait(NamedTuple):
    """Wait of a worker for all calls of a name that are under way."""

    name: str


class _Mark(NamedTuple):
    """Begin of an iteration."""


_Act = _Compute | _Call | _Wait | _Mark


def is_gathered(log: Logged, iterations: Sequence[Iteration]) -> bool:
    """Return whether most bytes of a worker's iterations are gathered and scattered, not summed whole."""
    begin_s = min((row.begin_s for row in iterations), default=0.0)
    end_s = max((row.end_s for row in iterations), default=0.0)
    nbytes = Counter[bool]()
    for push in log.pushes:
        if begin_s <= push.at_s < end_s:
            nbytes[push.is_summed] += push.nbytes
    return nbytes[False] > nbytes[True]


def own_calls(
    job: Job, logs: Sequence[Logged], iterations: Sequence[Iteration], compute: float = 1.0
) -> OwnStep | str:
    """Simulate the last iterations of a run, one after the other.

    Args:
        job: Links and places.
        logs: Each worker's.
        iterations: Counted ones of all workers.
        compute: Factor on all compute.

    Returns:
        The means, or why there are none.
    """
    by_worker = last_of_each(iterations, len(logs))
    count = min(map(len, by_worker))
    if not count:
        return "there are too few iterations"
    rows = [own[-count:] for own in by_worker]
    acts = [[[*_acts_of(log, row, compute)] for row in own] for log, own in zip(logs, rows, strict=True)]
    programs = [[act for own in (each[0], *each) for act in own] + [_Mark()] for each in acts]
    begun_s = _Replay(job, programs).run()
    if begun_s is None:
        return "its last calls do not fit together"
    simulated = fmean(marks[-1] - marks[1] for marks in begun_s) / count
    emulated = fmean(own[-1].end_s - own[0].begin_s for own in rows) / count
    return OwnStep(simulated, emulated)


def _acts_of(log: Logged, row: Iteration, compute: float) -> Iterator[_Act]:
    """Yield a worker's acts in an iteration, in order."""
    calls = [push for push in log.pushes if row.begin_s <= push.at_s < row.end_s]
    waits = [waited for waited in log.waits if row.begin_s <= waited.at_s < row.end_s]
    events: list[Push | Waited] = sorted([*calls, *waits], key=lambda event: event.at_s)  # at one time calls first
    yield _Mark()
    computed_s = first_s = calls[0].computed_s
    for event in events:
        yield _Compute(compute * max(0.0, event.computed_s - computed_s))
        computed_s = max(computed_s, event.computed_s)
        if isinstance(event, Waited):
            yield _Wait(event.point.removeprefix(_WAIT))
        elif event.packed:  # else devices sum it, or the workers' own stream, which are left out
            yield _Call(event.name, bytes.fromhex(event.packed), event.kind == CollectiveKind.BARRIER)
    yield _Compute(compute * max(0.0, first_s + row.compute_s - computed_s))


class _Replay:
    """Replay of all workers on a virtual clock."""

    def __init__(self, job: Job, programs: Sequence[Sequence[_Act]]) -> None:
        self._engine = Engine(job.site.links)
        self._joints = JointCalls(self._engine, job.site, job.placement.cluster.worker_nodes, self._on_ended)
        self._programs = [deque(program) for program in programs]
        self._names: dict[int, tuple[int, str]] = {}
        """Worker and name of a call, by its number."""
        self._under_way: Counter[tuple[int, str]] = Counter()
        self._awaited: dict[int, str] = {}
        """Name of the calls that a worker waits for, by worker."""
        self._begun_s: list[list[float]] = [[] for _ in programs]

    def run(self) -> list[list[float]] | None:
        """Return the seconds at which each worker's iterations began; None if a worker waits for ever."""
        for worker in range(len(self._programs)):
            self._engine.at(0.0, partial(self._go_on, worker))
        self._engine.run()
        return None if any(self._programs) else self._begun_s

    def _go_on(self, worker: int) -> None:
        program = self._programs[worker]
        while program and worker not in self._awaited:
            match program.popleft():
                case _Mark():
                    self._begun_s[worker].append(self._engine.now_s)
                case _Compute(seconds):
                    self._engine.at(self._engine.now_s + seconds, partial(self._go_on, worker))
                    return
                case _Wait(name):
                    self._await(worker, name)
                case _Call(name, packed, is_awaited):
                    self._call(worker, name, packed)
                    if is_awaited:
                        self._await(worker, name)

    def _await(self, worker: int, name: str) -> None:
        if self._under_way[worker, name]:
            self._awaited[worker] = name

    def _call(self, worker: int, name: str, packed: bytes) -> None:
        number = len(self._names)
        self._names[number] = worker, name
        self._under_way[worker, name] += 1
        frame = number.to_bytes(NUMBER_BYTES, "little") + packed
        submission = Submission(self._engine.now_s, 0, worker, 0, worker, FabricPort.JOINT, 0, frame)
        self._joints.submit(worker, submission)

    def _on_ended(self, worker: int, submission: Submission, _: float) -> None:
        _, name = self._names[int.from_bytes(submission.frame[:NUMBER_BYTES], "little")]
        self._under_way[worker, name] -= 1
        if self._awaited.get(worker) == name and not self._under_way[worker, name]:
            del self._awaited[worker]
            self._engine.at(self._engine.now_s, partial(self._go_on, worker))
