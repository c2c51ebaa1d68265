# Pure: no MPI, threads, clock or environment.
"""What transfers of sharded units are called, and how a copy in the node's memory is read."""

from enum import StrEnum


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
