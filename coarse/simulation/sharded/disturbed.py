# Pure: no MPI, threads, clock or environment.
"""Stragglers, jitter and degraded links of sharded training, which make its iterations differ.

[Note: the slowest sets the pace] In modes that gather and reduce by collectives, a worker that computes longer than the
others comes last to each collective, since all its units take longer by the same factor. So an iteration is as long as
if all computed like it, and the others wait for the difference. In mode odc workers fetch and push each for itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from coarse.hardware.degradation import Degradation, RateChange, rate_changes
from coarse.hardware.links import Link
from coarse.simulation.jitter import Jitter, compute_factors


@dataclass(frozen=True, kw_only=True)
class Disturbances:
    """Stragglers, jitter and degraded links of a job of several iterations."""

    slow_downs: tuple[float, ...] = ()
    """Factor on each worker's compute time; () for equal ones."""
    jitter: Jitter | None = None
    degradations: tuple[Degradation, ...] = ()
    """Degradations by seconds since the first iteration began."""
    num_iterations: int = 1
    """Number of iterations that are simulated; the last is shown."""

    @property
    def are_unlike(self) -> bool:
        """True if an iteration may differ from another."""
        return self.jitter is not None or bool(self.degradations)

    def factors(self, num_workers: int, iteration: int) -> tuple[float, ...]:
        """Return the factor on each worker's compute time in an iteration."""
        return compute_factors(self.slow_downs, self.jitter, num_workers, iteration) or (1.0,) * num_workers

    def changes(self, links: Sequence[Link], begin_s: float = 0.0) -> tuple[RateChange, ...]:
        """Return the changes of links in an iteration that begins at a second of the job.

        Their times are seconds since then.
        """
        return tuple(
            change._replace(at_s=max(0.0, change.at_s - begin_s)) for change in rate_changes(links, self.degradations)
        )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Factors on the compute of one iteration: the slowest worker's, and the mean."""

    slowest: float
    """Largest of all factors."""
    mean: float

    @classmethod
    def of(cls, factors: Sequence[float]) -> "Pace":
        """Return the pace of these workers."""
        return cls(slowest=max(factors), mean=fmean(factors))
