# Pure: no MPI, threads, clock or environment.
"""Schedules of collectives at one member: the sender and receiver of each slice, step by step.

A slice is the p-th part of what a collective gathers or sums, and slice r is that of group rank r. Among N nodes of
L members each, hierarchical collectives move a slice between two nodes once:

- all-gather: a member exchanges its slice with the members in its position on the other nodes (its rail). Then the
  node's members together have all slices, and take from each other what their own rails did not bring.
- reduce-scatter: a member sums the node's contributions to the slices of its rail, keeps the sum of its own slice, and
  sends each other one to the member whose slice it is.

So W bytes in all cost each node (N-1)/N W in and as much out, the least that there is: a node that had less could not
know the other nodes' slices. A ring over G members in order costs (G-1)/G W at every border between two nodes, since
all slices but one pass each border.
"""

from typing import NamedTuple

from coarse.collectives.shape import Collective, GroupShape
from coarse.protocol.ring import ring_steps


class Step(NamedTuple):
    """One step of one member: a slice goes to one member, and one comes from one; group ranks."""

    send_to: int
    send_slice: int
    receive_from: int
    receive_slice: int


def rail_gather(shape: GroupShape, rank: int) -> tuple[Step, ...]:
    """Return the N-1 steps of a hierarchical all-gather between nodes.

    Step j sends to the j-th node after this one, and receives from the j-th before. Every node sends to one and
    receives from one in each step.
    """
    rail, node = shape.rail(rank), shape.place(rank)[0]
    return tuple(Step(rail[(node + j) % len(rail)], rank, rail[node - j], rail[node - j]) for j in range(1, len(rail)))


def rail_reduce(shape: GroupShape, rank: int) -> tuple[Step, ...]:
    """Return the N steps of a hierarchical reduce-scatter.

    Each names the slice to sum on the node, the member that gets the sum, and the member whose sum of the own slice
    comes. The last step is the own slice, which goes nowhere.
    """
    rail, node = shape.rail(rank), shape.place(rank)[0]
    targets = [(rail[(node + j) % len(rail)], rail[node - j]) for j in (*range(1, len(rail)), 0)]
    return tuple(Step(target, target, source, rank) for target, source in targets)


def ring_gather(size: int, rank: int) -> tuple[Step, ...]:
    """Return the p-1 steps of a ring's all-gather, to the next rank and from the one before."""
    return _ring(size, rank)[size - 1 :]


def ring_reduce(size: int, rank: int) -> tuple[Step, ...]:
    """Return the p-1 steps of a ring's reduce-scatter.

    Running sums travel on, and rank r ends with the sum of slice r.
    """
    return _ring(size, rank)[: size - 1]


def _ring(size: int, rank: int) -> tuple[Step, ...]:
    """Return all steps of a ring.

    protocol.ring ends with the sum of the chunk after a rank's position, so it is asked for the position before.
    """
    after, before = (rank + 1) % size, (rank - 1) % size
    return tuple(Step(after, s.send_chunk, before, s.receive_chunk) for s in ring_steps(before, size, +1))


def bytes_between_nodes(collective: Collective, shape: GroupShape, nbytes: int) -> float:
    """Return the bytes that each node sends and receives in one all-gather or reduce-scatter.

    The collective has `nbytes` (W) in all. Hierarchical: (N-1)/N W. Ring in an order that leaves each node once:
    (G-1)/G W.
    """
    if shape.num_nodes == 1:
        return 0.0
    parts = shape.num_nodes if collective is Collective.HIERARCHICAL else shape.size
    return nbytes * (parts - 1) / parts
