# Pure: no MPI, threads, clock or environment.
"""The ways of collectives and host copies among the GPUs of a cluster, as transfers that run at the same time.

[Note: lockstep] In a ring every member sends a piece to its next in each of its turns. Here each hop sends all its
pieces one after the other at its share of the links, and the collective ends with its slowest hop. A hop that others
hold up in lockstep thus ends too early, but nothing waits for it alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from coarse.errors import ConfigError
from coarse.hardware.machine import Machine
from coarse.simulation.site import Path


class Flow(NamedTuple):
    """Pieces over one way, each begun when the one before has arrived."""

    path: Path
    nbytes: int
    """Of a piece."""
    num_turns: int
    crosses: bool
    """Whether it leaves its node."""


Phase = tuple[Flow, ...]
"""Flows that begin together; the phase ends with the last of them."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The first GPUs of each node of a machine."""

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
        """Of all nodes."""
        return self.num_nodes * self.gpus_per_node

    def ring(self, nbytes: int) -> Phase:
        """All-gather or reduce-scatter of `nbytes` in all, in one ring that leaves each node once."""
        members = [gpu for node in range(self.num_nodes) for gpu in self._node(node)]
        return self._ring(members, nbytes)

    def within(self, nbytes: int) -> Phase:
        """The same in a ring of each node."""
        return tuple(flow for node in range(self.num_nodes) for flow in self._ring(self._node(node), nbytes))

    @cached_property
    def _rails(self) -> list[list[str]]:
        return [[self._node(node)[gpu] for node in range(self.num_nodes)] for gpu in range(self.gpus_per_node)]

    def rails(self, nbytes: int, *, num_passes: int = 1) -> Phase:
        """Rings of the GPUs in the same position on all nodes, each of which moves its part of `nbytes` once or twice.

        Once is the part of a hierarchical all-gather or reduce-scatter that leaves the nodes; twice is an all-reduce.
        """
        part = _part(nbytes, self.gpus_per_node)
        return tuple(flow for rail in self._rails for flow in self._ring(rail, part, num_passes))

    def host_copies(self, nbytes: int, *, to_host: bool) -> Phase:
        """Every GPU's part of a node's one copy of `nbytes`, to the host's memory or from it."""
        if not nbytes:
            return ()
        part = _part(nbytes, self.gpus_per_node)
        return tuple(Flow(path, part, 1, False) for path in self._host_paths[to_host])

    @cached_property
    def _host_paths(self) -> dict[bool, tuple[Path, ...]]:
        gpus = [gpu for node in range(self.num_nodes) for gpu in self._node(node)]
        ways = (True, False)
        return {to_host: tuple(self.machine.host_path(gpu, to_host=to_host) for gpu in gpus) for to_host in ways}

    def _node(self, node: int) -> Sequence[str]:
        first = node * len(self.machine.tree.gpus)
        return [f"gpu{number}" for number in range(first, first + self.gpus_per_node)]

    def _ring(self, members: Sequence[str], nbytes: int, num_passes: int = 1) -> Phase:
        if not nbytes or len(members) < 2:
            return ()
        hops = self._hops.get(tuple(members))
        if hops is None:
            hops = self._hops[tuple(members)] = tuple(self._hops_of(members))
        piece, num_turns = _part(nbytes, len(members)), num_passes * (len(members) - 1)
        return tuple(Flow(path, piece, num_turns, crosses) for path, crosses in hops)

    @cached_property
    def _hops(self) -> dict[tuple[str, ...], tuple[tuple[Path, bool], ...]]:
        """Of the rings that have been asked for."""
        return {}

    def _hops_of(self, members: Sequence[str]) -> Iterator[tuple[Path, bool]]:
        """Every member's way to its next, and whether it leaves the node."""
        for source, target in zip(members, [*members[1:], members[0]], strict=True):
            crosses = self.machine.node_of(source) != self.machine.node_of(target)
            yield self.machine.path(source, target), crosses


def crossing_nbytes(phase: Phase) -> int:
    """Bytes that leave a node, of all nodes together."""
    return sum(flow.nbytes * flow.num_turns for flow in phase if flow.crosses)


def _part(nbytes: int, num_parts: int) -> int:
    """The largest of equal parts."""
    return -(-nbytes // num_parts)
