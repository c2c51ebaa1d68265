# Pure: no MPI, threads, clock or environment.
"""Minibatch of FSDP on workers with unequal microbatches: all wait for the slowest, unit by unit."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coarse.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LockstepTimes:
    """Seconds that all workers' links take for one unit; 0: no time."""

    gather_s: float = 0.0
    reduce_s: float = 0.0
    is_reduce_awaited: bool = False
    """True if backward waits for each reduction (on CPUs). Else only the minibatch's end does (on GPUs)."""


def lockstep_s(costs: Sequence[Sequence[float]], num_units: int, forward_share: float, times: LockstepTimes) -> float:
    """Return the seconds of a minibatch (ODC's T(P), with communication).

    A unit is gathered while the one before it is computed, in forward and again in backward. Links carry one thing
    after the other.

    Args:
        costs: by worker and microbatch, seconds of compute, which all units share equally.
        num_units: sharded units, of the same size.
        forward_share: forward's share of a microbatch's seconds.
        times: seconds that links take for one unit.

    Raises:
        ConfigError: workers with different numbers of microbatches, which wait for one another for ever.
    """
    if len({len(own) for own in costs}) > 1:
        raise ConfigError(
            f"collectives need equally many microbatches on all workers, got {[len(own) for own in costs]}; take mode "
            "odc, or lb_micro",
            key="costs",
        )
    ready = np.zeros(len(costs))
    link_free_s = 0.0
    for of_all in np.array(costs, np.float64).T:
        for share, is_backward in ((forward_share, False), (1 - forward_share, True)):
            seconds = of_all * share / num_units
            gathered_s = link_free_s = max(ready.max(), link_free_s) + times.gather_s
            for unit in range(num_units):
                begin = np.maximum(ready, gathered_s)
                if unit + 1 < num_units:
                    gathered_s = link_free_s = max(begin.max(), link_free_s) + times.gather_s
                ready = begin + seconds
                if is_backward:
                    link_free_s = max(ready.max(), link_free_s) + times.reduce_s
                    if times.is_reduce_awaited:
                        ready[:] = link_free_s
    return float(max(ready.max(), link_free_s))
