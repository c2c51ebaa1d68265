"""What a simulated job took: per iteration and worker, and per link."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from coarse.simulation.recording import Recording


@dataclass(frozen=True, kw_only=True)
class WorkerIteration:
    """One iteration of one worker; seconds of virtual time."""

    worker: int
    iteration: int
    begin_s: float
    forward_end_s: float
    backward_end_s: float
    end_s: float
    """All its gradients are synchronised."""
    idle_s: float
    """What it waited for slower workers' backward after its own."""

    @property
    def duration_s(self) -> float:
        """The whole iteration."""
        return self.end_s - self.begin_s

    @property
    def compute_s(self) -> float:
        """Forward and backward."""
        return self.backward_end_s - self.begin_s

    @property
    def exposed_s(self) -> float:
        """Communication that nothing hid: from the last worker's backward to the end."""
        return self.end_s - self.backward_end_s - self.idle_s


class Sync(NamedTuple):
    """A gradient of a worker on its way, from when backward had it until the combined values came."""

    worker: int
    position: int
    """Among the job's gradients."""
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a simulated job; kind "simulated"."""

    iterations: tuple[WorkerIteration, ...]
    link_bytes: dict[str, float]
    num_events: int
    syncs: tuple[Sync, ...] = field(default=(), repr=False)
    """Empty unless the simulation was recorded."""
    recording: Recording | None = field(default=None, repr=False)
    """What ports, links and adders did, where that was asked for."""

    def steady(self) -> tuple[WorkerIteration, ...]:
        """The last iteration of every worker."""
        last = max(row.iteration for row in self.iterations)
        return tuple(row for row in self.iterations if row.iteration == last)

    @property
    def iteration_s(self) -> float:
        """Mean seconds of the last iteration over workers."""
        return fmean(row.duration_s for row in self.steady())

    @property
    def exposed_s(self) -> float:
        """Mean exposed communication of the last iteration: COARSE's blocked communication (V-E)."""
        return fmean(row.exposed_s for row in self.steady())

    @property
    def compute_s(self) -> float:
        """Mean compute of the last iteration."""
        return fmean(row.compute_s for row in self.steady())

    @property
    def idle_s(self) -> float:
        """Mean wait for slower workers in the last iteration."""
        return fmean(row.idle_s for row in self.steady())
