# Pure: no MPI, threads, clock or environment.
"""Delayed gradients: a step applies the sums of some rounds before, which travel beside its compute."""

from dataclasses import dataclass

from coarse.strategy import Coarse


@dataclass(frozen=True, kw_only=True)
class Delayed(Coarse):
    """Applies sums `bound` rounds late (Li et al., Pipe-SGD, 2018, algorithm 1)."""

    bound: int = 1

    @property
    def lag(self) -> int:
        """Rounds by which sums are late."""
        return self.bound
