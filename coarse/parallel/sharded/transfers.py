# Pure: no MPI, threads, clock or environment.
"""Names of the transfers of sharded units, and ways to read a copy in the node's memory."""

from enum import StrEnum


class NodeReads(StrEnum):
    """Way in which a unit comes from the copy in the node's memory (fcdp)."""

    PARTS = "parts"
    """Read by parts: each worker reads its own part, and the node's workers gather (FCDP IV-C)."""
    WHOLE = "whole"
    """Read of the whole: each worker reads all of it, at any time."""


class Phase(StrEnum):
    """Purpose of a transfer; its name begins with this, and a unit's follows."""

    FORWARD_GATHER = "forward gather"
    BACKWARD_GATHER = "backward gather"
    REDUCE_SCATTER = "gradient reduce-scatter"
    AGREEMENT = "agreement on changes"

    def of(self, unit: str) -> str:
        """Return the name of the transfer of one unit, in errors, counters and traces."""
        return f"{self} of {unit}"
