# Pure: no MPI, threads, clock or environment.
"""Phases that make up each collective of a group, on the streams that carry them."""

import enum

from coarse.simulation.sharded.routes import GroupRoutes, Phase


class Stream(enum.StrEnum):
    """Streams of every GPU: each does one thing after the other, beside the others."""

    BETWEEN = "between nodes"
    WITHIN = "within a node"
    STORE = "to the host"
    LOAD = "from the host"


Chain = tuple[tuple[Stream, Phase], ...]
"""Moves, each of which begins when the one before has ended and its stream has come to it."""


def gather_within(routes: GroupRoutes, nbytes: int) -> Chain:
    """Gather `nbytes` in all from the GPUs of each node."""
    return ((Stream.WITHIN, routes.within(nbytes)),)


def gather_from_all(routes: GroupRoutes, nbytes: int, *, is_ring: bool) -> Chain:
    """Gather `nbytes` in all: in one ring, or along rails and then within each node."""
    return gather_in_groups(routes, nbytes, len(routes.members), is_ring=is_ring)


def gather_in_groups(routes: GroupRoutes, nbytes: int, size: int, *, is_ring: bool) -> Chain:
    """Gather `nbytes` in each group of so many neighbours: a part of a node, or whole nodes."""
    span = size // len(routes.nodes[0])
    if is_ring and (span > 1 or size == len(routes.members)):
        return ((Stream.BETWEEN, routes.rings(nbytes, size)),)
    if span <= 1:
        return ((Stream.WITHIN, routes.rings(nbytes, size)),)
    return (Stream.BETWEEN, routes.rails(nbytes, span=span)), *gather_within(routes, nbytes)


def gather_from_host(routes: GroupRoutes, nbytes: int) -> Chain:
    """Gather the node's copy on the host: each GPU loads its part, and the node gathers (FCDP IV-C)."""
    return (Stream.LOAD, routes.host_copies(nbytes, to_host=False)), *gather_within(routes, nbytes)


def store_on_host(routes: GroupRoutes, nbytes: int) -> Chain:
    """Store each GPU's part of the node's one copy of `nbytes`."""
    return ((Stream.STORE, routes.host_copies(nbytes, to_host=True)),)


def reduce_scatter(routes: GroupRoutes, nbytes: int, size: int = 0, *, is_ring: bool) -> Chain:
    """Sum `nbytes` of each member of a group of so many neighbours, or of all; each keeps its slice.

    If there are several groups, each slice is then summed among them (section 3.2.2 of the FSDP paper).
    """
    size = size or len(routes.members)
    summed = tuple(reversed(gather_in_groups(routes, nbytes, size, is_ring=is_ring)))
    if size == len(routes.members):
        return summed
    return *summed, (Stream.BETWEEN, routes.replicas(nbytes, size))
