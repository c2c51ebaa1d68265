# Pure: no MPI, threads, clock or environment.
"""Times of a simulated job, per iteration and worker, and the bytes of each link."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from coarse.simulation.adaptation import Profile
from coarse.simulation.recording import Recording


@dataclass(frozen=True, kw_only=True)
class WorkerIteration:
    """Iteration of one worker, in seconds of virtual time."""

    worker: int
    iteration: int
    begin_s: float
    forward_end_s: float
    backward_end_s: float
    end_s: float
    """Time at which all its gradients are synchronised."""
    idle_s: float = 0.0
    """Seconds of waiting for slower workers' backward after its own."""
    others_idle_s: float = 0.0
    """Mean seconds that all workers waited for it, if it stands for all, as slow as the slowest."""

    @property
    def duration_s(self) -> float:
        """Seconds of the whole iteration."""
        return self.end_s - self.begin_s

    @property
    def compute_s(self) -> float:
        """Seconds of forward and backward."""
        return self.backward_end_s - self.begin_s

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that nothing hid: from the last worker's backward to the end."""
        return self.end_s - self.backward_end_s - self.idle_s


def mean_durations(rows: Sequence[WorkerIteration]) -> tuple[float, ...]:
    """Return the seconds of each iteration, the mean over workers."""
    by_iteration: dict[int, list[float]] = {}
    for row in rows:
        by_iteration.setdefault(row.iteration, []).append(row.duration_s)
    return tuple(fmean(by_iteration[iteration]) for iteration in sorted(by_iteration))


def profile_share(rows: Sequence[WorkerIteration], profiles: Sequence[Profile]) -> float:
    """Return the share of the run's time that its workers spent in profiling."""
    profile_s = sum(profile.duration_s for profile in profiles)
    return profile_s / max(profile_s + sum(mean_durations(rows)), 1e-30)


def with_idle_times(rows: Iterable[WorkerIteration]) -> list[WorkerIteration]:
    """Return rows, in order, with each worker's wait for the slowest backward of its iteration."""
    rows = list(rows)
    last_s: dict[int, float] = {}
    for row in rows:
        last_s[row.iteration] = max(last_s.get(row.iteration, 0.0), row.backward_end_s)
    found = [
        replace(row, idle_s=max(0.0, min(row.end_s, last_s[row.iteration]) - row.backward_end_s)) for row in rows
    ]
    return sorted(found, key=lambda row: (row.iteration, row.worker))


class Sync(NamedTuple):
    """Synchronisation of a worker's gradient, from the end of its backward until the combined values came."""

    worker: int
    position: int
    """Place among the job's gradients."""
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """Outcome of a simulated job; kind "simulated"."""

    iterations: tuple[WorkerIteration, ...]
    link_bytes: dict[str, float]
    num_events: int
    profiles: tuple[Profile, ...] = ()
    """Profilings of the running job, in order."""
    syncs: tuple[Sync, ...] = field(default=(), repr=False)
    """Synchronisations; empty unless the simulation was recorded."""
    period: int = 1
    """Iterations at the end over which figures are means: those of rounds that repeat."""
    recording: Recording | None = field(default=None, repr=False)
    """Record of ports, links and adders, if that was asked for."""

    def steady(self) -> tuple[WorkerIteration, ...]:
        """Return the last iteration of every worker."""
        last = max(row.iteration for row in self.iterations)
        return tuple(row for row in self.iterations if row.iteration == last)

    def _counted(self) -> tuple[WorkerIteration, ...]:
        """Return the last iterations of every worker, of one period."""
        first = max(row.iteration for row in self.iterations) - self.period + 1
        return tuple(row for row in self.iterations if row.iteration >= first)

    @property
    def iteration_s(self) -> float:
        """Mean seconds of an iteration of the last period over workers."""
        return fmean(row.duration_s for row in self._counted())

    @property
    def exposed_s(self) -> float:
        """Mean exposed communication in the last period: COARSE's blocked communication (V-E)."""
        return fmean(row.exposed_s for row in self._counted())

    @property
    def profile_share(self) -> float:
        """Share of the run's time that its workers spent in profiling."""
        return profile_share(self.iterations, self.profiles)

    @property
    def compute_s(self) -> float:
        """Mean compute of an iteration of the last period."""
        return fmean(row.compute_s - row.others_idle_s for row in self._counted())

    @property
    def idle_s(self) -> float:
        """Mean wait for slower workers in an iteration of the last period."""
        return fmean(row.idle_s + row.others_idle_s for row in self._counted())
