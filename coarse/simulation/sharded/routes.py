# Pure: no MPI, threads, clock or environment.
"""Ways of collectives and host copies among the GPUs of a cluster, as simultaneous transfers.

[Note: lockstep] In a ring every member sends a piece to its next in each of its turns. Here each hop sends all its
pieces one after the other at its share of the links, and the collective ends with its slowest hop. A hop that others
hold up in lockstep thus ends too early, but nothing waits for it alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from coarse.collectives.shape import GroupShape
from coarse.errors import ConfigError
from coarse.hardware.links import Link
from coarse.hardware.machine import Machine
from coarse.simulation.sites import Path, Site


class Flow(NamedTuple):
    """Pieces over one way, each begun when the one before has arrived."""

    path: Path
    nbytes: int
    """Bytes of a piece."""
    num_turns: int
    crosses: bool
    """True if it leaves its node."""


Phase = tuple[Flow, ...]
"""Flows that begin together; the phase ends with the last of them."""


class GroupRoutes:
    """Ways among a group's members, whose numbers mean something to `path` alone."""

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Members of each node, in order."""
        raise NotImplementedError

    def path(self, source: int, target: int) -> Path:
        """Return links from a member to another."""
        raise NotImplementedError

    def host_path(self, member: int, *, to_host: bool) -> Path:
        """Return links between a member and the memory of its host."""
        raise NotImplementedError

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Members of the group, in the order of their ring."""
        return tuple(member for node in self.nodes for member in node)

    def ring(self, nbytes: int) -> Phase:
        """Return an all-gather or reduce-scatter of `nbytes` in all in one ring; it leaves each node once."""
        return self._ring(self.members, nbytes)

    def groups(self, size: int) -> tuple[tuple[int, ...], ...]:
        """Return the members in groups of neighbours, each a part of a node or whole nodes."""
        return _grouped(self.members, size)

    def rings(self, nbytes: int, size: int) -> Phase:
        """Return an all-gather or reduce-scatter of `nbytes` in a ring of each group of so many neighbours."""
        return tuple(flow for group in self.groups(size) for flow in self._ring(group, nbytes))

    def within(self, nbytes: int) -> Phase:
        """Return an all-gather or reduce-scatter of `nbytes` in a ring of each node."""
        return tuple(flow for node in self.nodes for flow in self._ring(node, nbytes))

    def rails(self, nbytes: int, *, span: int = 0) -> Phase:
        """Return rings of the GPUs in the same position on so many neighbouring nodes, each with its part.

        Without `span` a ring covers all nodes. It is the part of a hierarchical all-gather or reduce-scatter of
        `nbytes` that leaves the nodes.
        """
        part = _part(nbytes, len(self.nodes[0]))
        every = zip(*self.nodes, strict=True)
        rails = (rail for whole in every for rail in _grouped(whole, span or len(whole)))
        return tuple(flow for rail in rails for flow in self._ring(rail, part))

    def replicas(self, nbytes: int, size: int) -> Phase:
        """Return all-reduces, each in a ring of the members with the same shard of `nbytes`.

        The members shard in groups of so many neighbours.
        """
        same = zip(*self.groups(size), strict=True)
        return tuple(flow for each in same for flow in self._ring(each, _part(nbytes, size), 2))

    def host_copies(self, nbytes: int, *, to_host: bool) -> Phase:
        """Return the copy of every GPU's part of a node's `nbytes`, to the host's memory or from it.

        The node has one copy.
        """
        if not nbytes:
            return ()
        part = _part(nbytes, len(self.nodes[0]))
        return tuple(Flow(path, part, 1, False) for path in self._host_paths[to_host])

    def line(self, order: Sequence[int], nbytes: int) -> Phase:
        """Return transfers of `nbytes` from each of these members to the next, in consecutive pieces."""
        return tuple(self._flow(a, b, nbytes) for a, b in pairwise(order)) if nbytes else ()

    def pairs(self, nbytes: Mapping[tuple[int, int], int]) -> Phase:
        """Return transfers by (source, target), all at the same time."""
        return tuple(self._flow(a, b, each) for (a, b), each in nbytes.items() if each and a != b)

    @cached_property
    def _host_paths(self) -> dict[bool, tuple[Path, ...]]:
        ways = (True, False)
        return {way: tuple(self.host_path(member, to_host=way) for member in self.members) for way in ways}

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {member: number for number, node in enumerate(self.nodes) for member in node}

    def _flow(self, source: int, target: int, nbytes: int) -> Flow:
        return Flow(self.path(source, target), nbytes, 1, self._node_of[source] != self._node_of[target])

    def _ring(self, members: Sequence[int], nbytes: int, num_passes: int = 1) -> Phase:
        if not nbytes or len(members) < 2:
            return ()
        hops = self._hops.get(tuple(members))
        if hops is None:
            hops = self._hops[tuple(members)] = tuple(self._hops_of(members))
        piece, num_turns = _part(nbytes, len(members)), num_passes * (len(members) - 1)
        return tuple(Flow(path, piece, num_turns, crosses) for path, crosses in hops)

    @cached_property
    def _hops(self) -> dict[tuple[int, ...], tuple[tuple[Path, bool], ...]]:
        """Hops of the rings that have been asked for."""
        return {}

    def _hops_of(self, members: Sequence[int]) -> Iterator[tuple[Path, bool]]:
        """Yield every member's way to its next, and whether it leaves the node."""
        for source, target in zip(members, [*members[1:], members[0]], strict=True):
            yield self.path(source, target), self._node_of[source] != self._node_of[target]


@dataclass(frozen=True, kw_only=True)
class Routes(GroupRoutes):
    """Ways among the first GPUs of each node of a machine."""

    machine: Machine
    num_nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        there = len(self.machine.tree.gpus)
        if not (1 <= self.num_nodes <= self.machine.num_nodes and 1 <= self.gpus_per_node <= there):
            raise ConfigError(
                f"{self.num_nodes} nodes of {self.gpus_per_node} GPUs are not on {self.machine.name}, which has "
                f"{self.machine.num_nodes} nodes of {there}; ask for fewer, or add some to the machine",
                key="num_nodes",
            )

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self.num_nodes * self.gpus_per_node

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of the machine."""
        return self.machine.links

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of GPUs on the machine, by node."""
        firsts = (node * len(self.machine.tree.gpus) for node in range(self.num_nodes))
        return tuple(tuple(range(first, first + self.gpus_per_node)) for first in firsts)

    def path(self, source: int, target: int) -> Path:
        """Return the path between two members (GroupRoutes.path)."""
        return self.machine.path(f"gpu{source}", f"gpu{target}")

    def host_path(self, member: int, *, to_host: bool) -> Path:
        """Return the path between a member and its host (GroupRoutes.host_path)."""
        return self.machine.host_path(f"gpu{member}", to_host=to_host)


@dataclass(frozen=True, kw_only=True)
class SiteRoutes(GroupRoutes):
    """Ways among the workers of a job's site."""

    site: Site
    workers: tuple[int, ...]
    """Workers in the order of their ring."""
    worker_nodes: tuple[int, ...]
    """Node of each worker of the job."""

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of the site."""
        return self.site.links

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Members of the group (GroupRoutes.members)."""
        return self.workers

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Members by node (GroupRoutes.nodes)."""
        shape = GroupShape(tuple(self.worker_nodes[worker] for worker in self.workers))
        return tuple(tuple(self.workers[rank] for rank in ranks) for ranks in shape.members_by_node)

    def path(self, source: int, target: int) -> Path:
        """Return the path between two members (GroupRoutes.path)."""
        return self.site.between_workers[source, target]

    def host_path(self, member: int, *, to_host: bool) -> Path:
        """Return the path between a member and its host (GroupRoutes.host_path)."""
        return (self.site.to_host if to_host else self.site.from_host)[member]


def crossing_nbytes(phase: Phase) -> int:
    """Return the bytes that leave a node, of all nodes together."""
    return sum(flow.nbytes * flow.num_turns for flow in phase if flow.crosses)


def _grouped(members: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """Return groups of so many neighbours."""
    return tuple(tuple(members[first : first + size]) for first in range(0, len(members), size))


def _part(nbytes: int, num_parts: int) -> int:
    """Return the largest of equal parts."""
    return -(-nbytes // num_parts)
