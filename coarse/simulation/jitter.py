# Pure: no MPI, threads, clock or environment.
"""Compute that takes longer by chance: a factor for each worker and iteration, the same for the same seed.

The factor is 1 + share * E, with E from the exponential distribution of mean 1. So compute is never shorter than its
profile, `share` longer in the mean, and seldom much longer, as where something else takes a processor for a while.
The slowest of n workers is 1 + share * (1 + 1/2 + ... + 1/n) in the mean.

[Note: draws by name] A draw follows from seed, iteration and worker alone, not from the order in which draws are asked
for. So a worker has the same whether all are simulated or one stands for all, and whatever the number of workers.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

import numpy as np

from coarse.errors import ConfigError

MAX_SHARE = 10.0
MAX_SEED = 2**63 - 1
_REMEMBERED_ITERATIONS = 64


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Random increase of compute times: its mean share, and its seed."""

    share: float
    """Mean share of itself by which compute takes longer."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= MAX_SHARE:
            raise ConfigError(
                f"jitter must be above 0 and at most {MAX_SHARE:g}, the part by which compute takes longer in the "
                f"mean, got {self.share:g}; for 10 % write 0.1",
                key="jitter",
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed must lie in 0..2^63-1, got {self.seed}; choose another", key="seed")

    def factors(self, num_workers: int, iteration: int) -> tuple[float, ...]:
        """Return the factor on each worker's compute time in an iteration; see [Note: draws by name]."""
        return _factors(self.share, self.seed, num_workers, iteration)


def compute_factors(
    slow_downs: tuple[float, ...], jitter: Jitter | None, num_workers: int, iteration: int
) -> tuple[float, ...]:
    """Return the factor on each worker's compute time in an iteration; () if all are equal."""
    if jitter is None:
        return slow_downs
    drawn = jitter.factors(num_workers, iteration)
    return tuple(map(mul, slow_downs, drawn)) if slow_downs else drawn


@lru_cache(maxsize=_REMEMBERED_ITERATIONS)
def _factors(share: float, seed: int, num_workers: int, iteration: int) -> tuple[float, ...]:
    of_iteration = _scattered(_scattered(np.array([seed], np.uint64)) ^ np.uint64(iteration))
    draws = _scattered(of_iteration ^ np.arange(num_workers, dtype=np.uint64))  # (n,) uint64
    shares = (draws >> np.uint64(11)) * 2.0**-53  # (n,) float64 in [0, 1)
    return tuple(1.0 - share * math.log1p(-each) for each in shares.tolist())


def _scattered(
    numbers: np.ndarray,  # (n,) uint64
) -> np.ndarray:  # (n,) uint64
    """Return SplitMix64's output for these states (Steele, Lea and Flood, OOPSLA 2014).

    Every bit depends on every bit.
    """
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
