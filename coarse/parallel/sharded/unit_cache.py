# Pure: no MPI, threads, clock or environment.
"""Cache of one unit's parameters, a state machine that tells their source (FCDP IV-C to IV-E).

[Note: clean and dirty] A kept copy of a unit is clean while no worker's shard of it has changed since it was gathered.
All workers pass through the same states, since they agree on changes before any of them gathers: once, when a forward
of the root module begins. The optimizer is not watched: a step changes shards, a step that a gradient scaler skips does
not, and neither do gradient accumulation and evaluation.

[Note: never above ZeRO-3] FCDP-Cache leaves units gathered on the accelerator from forward to backward (FCDP IV-D). A
unit stays only while less than tau of the memory is in use. There it skips its store to the host and is not dropped
later; here every unit that stays lies in the node's buffer too. So any of them may be dropped at any time at the price
of a copy, and is, oldest first, before an allocation brings more than tau into use. More than tau is in use only if it
is under ZeRO-3 as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.strategy.sharding import Gather, Keeps, Sharding, Use, keeps_of


class UnitCache:
    """State of one unit's kept copy, seen by one worker; see [Note: clean and dirty]."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self._kept = Keeps.NOTHING
        """Kind of the kept copy that equals the parameters."""

    @property
    def is_clean(self) -> bool:
        """True if a copy is kept and equals the parameters."""
        return self._kept is not Keeps.NOTHING

    def on_changed(self) -> None:
        """Note that a worker's shard has changed, or that the kept copy is lost."""
        self._kept = Keeps.NOTHING

    def on_gather(self, *, in_backward: bool, is_trainable: bool = True) -> Gather:
        """Return how the unit, which is about to be gathered, is gathered.

        A copy of another kind counts as none: it may have been frozen since, or be trained again.
        """
        is_clean = self.is_clean and self._kept is keeps_of(self._sharding, is_trainable=is_trainable)
        found = self._sharding.gather(Use(in_backward, is_clean, is_trainable))
        if found.keep is not Keeps.NOTHING:
            self._kept = found.keep
        return found


@dataclass(frozen=True, kw_only=True)
class AcceleratorCache:
    """Limit of an accelerator's memory that units may fill between forward and backward."""

    tau: float = 0.8
    """Fraction of the memory in use above which units are kept in the host's memory alone."""

    def __post_init__(self) -> None:
        if isinstance(self.tau, bool) or not isinstance(self.tau, int | float) or not 0.0 <= self.tau <= 1.0:
            raise ConfigError(f"tau is a fraction of the memory in [0, 1], got {self.tau!r}", key="tau")

    def keeps(self, used_bytes: int, capacity_bytes: int) -> bool:
        """Return whether a unit that has just done its forward stays gathered; `used_bytes` count it."""
        return used_bytes < self.tau * capacity_bytes

    def num_dropped(self, kept_nbytes: Sequence[int], lacking_bytes: int) -> int:
        """Return how many kept units, oldest first, to drop to free `lacking_bytes`; or all of them.

        The oldest is needed last in backward.
        """
        dropped = 0
        while lacking_bytes > 0 and dropped < len(kept_nbytes):
            lacking_bytes -= kept_nbytes[dropped]
            dropped += 1
        return dropped
