# Pure: no MPI, threads, clock or environment.
"""Outcome of an iteration of sharded training: its times, and its moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from coarse.hardware.accelerator import MemoryAccount
from coarse.simulation.sharded.chains import Stream
from coarse.simulation.sharded.job import UnitPass


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Move of a stream."""

    stream: Stream
    what: str
    unit: str
    begin_s: float
    end_s: float
    crossing_nbytes: int
    """Bytes that left a node, of all nodes together."""


@dataclass(kw_only=True)
class ShardedReport:
    """Outcome of one iteration."""

    iteration_s: float = 0.0
    forward_end_s: float = 0.0
    """Second at which the last unit's forward had ended."""
    backward_end_s: float = 0.0
    """Second at which the first unit's backward had ended."""
    compute_s: float = 0.0
    """Mean seconds of a worker's compute."""
    idle_s: float = 0.0
    """Mean seconds that workers wait for slower ones."""
    moved: list[Moved] = field(default_factory=list)
    computed: list[tuple[UnitPass, float, float]] = field(default_factory=list)
    """Computed passes as (pass, begin, end), in order."""
    most_in_flight: int = 0
    link_nbytes: tuple[float, ...] = ()

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that no computation hides."""
        return self.iteration_s - self.compute_s - self.idle_s

    def crossing_nbytes(self, *words: str) -> int:
        """Return the bytes that left nodes, of all nodes together, in moves named by one of the words.

        Without words, all moves count.
        """
        return sum(one.crossing_nbytes for one in self.moved if not words or one.what in words)


@dataclass(frozen=True, kw_only=True)
class PredictedIteration:
    """Prediction of a mode that does not run as gathers and reductions of groups (`Sharding.predicts_by`)."""

    iteration_s: float
    compute_s: float
    """Mean seconds of a worker's compute."""
    uses: tuple[tuple[str, float], ...]
    """Ways and their bytes."""
    memory: MemoryAccount
    """Account of a GPU, in which it fits."""
    idle_s: float = 0.0
    """Mean seconds that workers wait for slower ones."""
    iterations_s: tuple[float, ...] = ()
    """Seconds of each iteration that counts, where they may differ. The numbers above are of the last."""
    notes: tuple[str, ...] = ()
    """Sentences for readers of the numbers."""

    @property
    def exposed_s(self) -> float:
        """Seconds that no computation hides."""
        return self.iteration_s - self.compute_s - self.idle_s


def rate_over_time(report: ShardedReport, edges_s: Sequence[float]) -> list[float]:
    """Return the bytes per second that left nodes, all together, between each two edges.

    A move's bytes lie evenly in its time.
    """
    rates = []
    for begin_s, end_s in pairwise(edges_s):
        nbytes = sum(_share_within(one, begin_s, end_s) * one.crossing_nbytes for one in report.moved)
        rates.append(nbytes / (end_s - begin_s))
    return rates


def _share_within(one: Moved, begin_s: float, end_s: float) -> float:
    if one.end_s <= one.begin_s:
        return 0.0
    return max(0.0, min(end_s, one.end_s) - max(begin_s, one.begin_s)) / (one.end_s - one.begin_s)
