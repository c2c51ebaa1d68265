# Pure: no MPI, threads, clock or environment.
"""Costs of a device's instructions while snapshots are taken."""

from coarse.protocol.costs import Cost, Costs, Way, free
from coarse.snapshots.device import nbytes_of
from coarse.snapshots.steps import CommitParts, CopyEntry, DropCopies, DropFolder, HurryCopies, MakeFolder, WritePart


def _copy(step: CopyEntry, _: object) -> Cost:
    return Cost(Way.COPIES, step.nbytes)


def _write(step: WritePart, _: object) -> Cost:
    return Cost(Way.WRITES, sum(map(nbytes_of, step.entries)))


COSTS: Costs = {
    CommitParts: free,
    CopyEntry: _copy,
    DropCopies: free,
    DropFolder: free,
    HurryCopies: free,
    MakeFolder: free,
    WritePart: _write,
}
