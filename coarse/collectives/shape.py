# Pure: no MPI, threads, clock or environment.
"""Shape of a group: its members on each node, and the members of each rail."""

import enum
from dataclasses import dataclass
from functools import cached_property

from coarse.errors import ConfigError


class Collective(enum.StrEnum):
    """Way in which the bytes of a group's all-gathers and reduce-scatters move."""

    HIERARCHICAL = "hierarchical"
    """Way along rails between nodes, each byte once; within a node through mapped memory."""
    RING = "ring"
    """Way from each member to the next, without regard to nodes."""


@dataclass(frozen=True)
class GroupShape:
    """Members of a group by node.

    Nodes are counted in the order in which the group's ranks name them.
    """

    node_by_rank: tuple[int, ...]
    """Number of each group rank's node, any that tells nodes apart."""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.node_by_rank)

    @cached_property
    def members_by_node(self) -> tuple[tuple[int, ...], ...]:
        """Group ranks of each node, in order."""
        found: dict[int, list[int]] = {}
        for rank, node in enumerate(self.node_by_rank):
            found.setdefault(node, []).append(rank)
        return tuple(tuple(members) for members in found.values())

    @property
    def num_nodes(self) -> int:
        """Number of nodes that have members."""
        return len(self.members_by_node)

    @property
    def is_even(self) -> bool:
        """True if all nodes have equally many members."""
        return len({len(members) for members in self.members_by_node}) == 1

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {
            rank: (node, position)
            for node, members in enumerate(self.members_by_node)
            for position, rank in enumerate(members)
        }

    def place(self, rank: int) -> tuple[int, int]:
        """Return a member's node, counted as above, and its position on it."""
        return self._places[rank]

    def near(self, rank: int) -> tuple[int, ...]:
        """Return the members of a member's node, including itself."""
        return self.members_by_node[self.place(rank)[0]]

    def rail(self, rank: int) -> tuple[int, ...]:
        """Return each node's member in the position of `rank`, by node; nodes must be even."""
        position = self.place(rank)[1]
        return tuple(members[position] for members in self.members_by_node)

    def require_even(self) -> None:
        """Raise ConfigError if some node has more members than another: then there are no rails."""
        if not self.is_even:
            counts = ", ".join(str(len(members)) for members in self.members_by_node)
            raise ConfigError(
                f'collective "hierarchical" wants equally many members on every node, got {counts} of {self.size}; '
                'start as many workers on each node, or use collective "ring"',
                key="collective",
            )
