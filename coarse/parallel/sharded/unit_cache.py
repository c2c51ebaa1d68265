# Pure: no MPI, threads, clock or environment.
"""Where a unit's parameters come from each time they are gathered: the state machine of one unit (FCDP IV-C to IV-E).

[Note: clean and dirty] What is kept of a unit is clean while no worker's shard of it has changed since it was gathered.
All workers pass through the same states, since they agree on changes before any of them gathers: once, when a forward
of the root module begins. The optimizer is not watched: a step changes shards, a step that a gradient scaler skips
does not, and neither do gradient accumulation and evaluation.
"""

from __future__ import annotations

from enum import Enum, auto

from coarse.parallel.sharded.modes import Keeps, ModeRules


class Source(Enum):
    """Where a gather takes the unit from."""

    ALL_WORKERS = auto()
    """From every worker's shard, between nodes; nothing is kept."""
    ALL_WORKERS_KEEPING = auto()
    """From every worker's shard, between nodes; what is gathered is kept."""
    NODE_BUFFER = auto()
    """From the copy in this node's memory device; nothing moves between nodes."""
    SECONDARY_SHARDS = auto()
    """From the secondary shards of this node's workers; nothing moves between nodes."""


class UnitCache:
    """What is kept of one unit, seen by one worker. See [Note: clean and dirty]."""

    def __init__(self, rules: ModeRules) -> None:
        self._rules = rules
        self._is_clean = False

    @property
    def is_clean(self) -> bool:
        """Whether something is kept and equals the parameters."""
        return self._is_clean

    def on_changed(self) -> None:
        """Some worker's shard has changed, or what was kept is lost."""
        self._is_clean = False

    def on_gather(self, *, in_backward: bool) -> Source:
        """The unit is about to be gathered; where from."""
        if self._rules.keeps is Keeps.NOWHERE:
            return Source.ALL_WORKERS
        if self._is_clean and (in_backward or self._rules.reuses_in_forward):
            is_in_node = self._rules.keeps is Keeps.NODE_BUFFER
            return Source.NODE_BUFFER if is_in_node else Source.SECONDARY_SHARDS
        self._is_clean = True
        return Source.ALL_WORKERS_KEEPING
