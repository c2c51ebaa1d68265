# Pure: no MPI, threads, clock or environment.
"""The sharding modes: what each keeps between forward and backward, and what its transfers are called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coarse.errors import ConfigError


class ShardedMode(StrEnum):
    """How parameters are sharded and gathered."""

    FSDP = "fsdp"
    """ZeRO-3: every unit is gathered from all workers in forward and again in backward."""
    HYBRID = "hybrid"
    """HSDP, MiCS: sharded within a node or a subgroup, repeated across; gradients are summed across too."""
    ZEROPP = "zeropp"
    """ZeRO++ hpZ: after forward's gather each worker keeps 1/L of the unit, from which its node gathers in backward."""
    FCDP = "fcdp"
    """FCDP: gathered units stay in the node's memory devices until their parameters change."""
    ODC = "odc"
    """On-demand communication: workers fetch shards and push gradients each for itself, and meet once a minibatch."""


COLLECTIVE_MODES = tuple(mode for mode in ShardedMode if mode is not ShardedMode.ODC)
"""Those whose workers gather and reduce together."""


class Keeps(StrEnum):
    """Where a gathered unit stays after it was gathered from all workers."""

    NOWHERE = "nowhere"
    SECONDARY_SHARDS = "secondary shards"
    NODE_BUFFER = "node buffer"


class NodeReads(StrEnum):
    """How a unit comes from the copy in the node's memory (fcdp)."""

    PARTS = "parts"
    """Each worker reads its own part, and the node's workers gather (FCDP IV-C)."""
    WHOLE = "whole"
    """Each worker reads all of it, whenever it likes."""


class Phase(StrEnum):
    """What a transfer is for; its name begins with this, and a unit's follows."""

    FORWARD_GATHER = "forward gather"
    BACKWARD_GATHER = "backward gather"
    REDUCE_SCATTER = "gradient reduce-scatter"
    AGREEMENT = "agreement on changes"

    def of(self, unit: str) -> str:
        """What the transfer of one unit is called, in errors, counters and traces."""
        return f"{self} of {unit}"


@dataclass(frozen=True, kw_only=True)
class ModeRules:
    """What a mode does differently from ZeRO-3."""

    keeps: Keeps
    reuses_in_forward: bool = False
    """Whether forward too is served from what is kept, as long as no parameter changed (FCDP-Comm)."""
    mesh_dims: int = 1
    """1: one shard group of all workers; 2: replica groups times shard groups."""

    @property
    def watches_changes(self) -> bool:
        """Whether the workers have to agree, once per forward, on which units have changed."""
        return self.keeps is not Keeps.NOWHERE


_RULES = {
    ShardedMode.FSDP: ModeRules(keeps=Keeps.NOWHERE),
    ShardedMode.HYBRID: ModeRules(keeps=Keeps.NOWHERE, mesh_dims=2),
    ShardedMode.ZEROPP: ModeRules(keeps=Keeps.SECONDARY_SHARDS),
    ShardedMode.FCDP: ModeRules(keeps=Keeps.NODE_BUFFER, reuses_in_forward=True),
    ShardedMode.ODC: ModeRules(keeps=Keeps.NOWHERE),
}


def mode_named(name: object) -> ShardedMode:
    """The mode of a name; ConfigError, with all names, where there is none."""
    try:
        return ShardedMode(str(name))
    except ValueError:
        known = ", ".join(repr(str(mode)) for mode in ShardedMode)
        raise ConfigError(f"mode must be one of {known}, got {name!r}", key="mode") from None


def rules_of(mode: ShardedMode) -> ModeRules:
    """What a mode does."""
    return _RULES[mode]
