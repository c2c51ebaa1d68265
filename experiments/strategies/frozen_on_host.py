# Pure: no MPI, threads, clock or environment.
"""Frozen parameters in the node's memory, trained ones as second shards with the workers: FCDP's cache and ZeRO++'s."""

from dataclasses import dataclass
from typing import ClassVar

from coarse.strategy import Gather, Keeps, Sharding, Source, States, Use


@dataclass(frozen=True, kw_only=True)
class FrozenOnHost(Sharding):
    """Frozen units come from the node's memory once they are there; trained ones from second shards in backward."""

    states: ClassVar[States] = States.SECONDARY
    quantised: bool = False
    """Gather trained units as int8 in forward (ZeRO++'s qwZ)."""

    def gather(self, use: Use) -> Gather:
        """Return how a unit is gathered for a use."""
        if not use.is_trainable:
            return Gather(Source.HOST) if use.is_clean else Gather(Source.ALL, Keeps.HOST_COPY)
        if use.in_backward and use.is_clean:
            return Gather(Source.NODE)
        return Gather(Source.ALL, Keeps.SECOND_SHARDS, 8 if self.quantised else 16)
