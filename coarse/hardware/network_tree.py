# Pure: no MPI, threads, clock or environment.
"""Network that is a tree of switches (a fat tree), and the links that transfers between nodes cross.

[Note: uplinks] A switch of a level has its nodes below it and its uplinks above, to switches of the next level or, from
the last one, to a core that holds no transfer back. All uplinks of a switch are one link each way, which its transfers
share: the cost of hashing flows to single uplinks (ECMP's collisions) is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coarse.errors import ConfigError
from coarse.hardware.links import Link
from coarse.hardware.quantities import require_name, require_positive


@dataclass(frozen=True, kw_only=True)
class TreeLevel:
    """Level of a network: its switches."""

    name: str
    """Name of its switches, with a number behind."""
    nodes_per_switch: int
    """Nodes below each switch, at any depth; the last one may have fewer."""
    oversubscription: float = 1.0
    """Ratio of the rate from below a switch to that of its uplinks: 1 for a full bisection."""
    hop_latency_s: float = 0.0
    """Seconds of each crossing of the uplinks, up or down."""

    def __post_init__(self) -> None:
        require_name("name", self.name)
        if self.name[-1].isdigit():
            raise ConfigError(
                f"name of a tree_level must not end with a digit, got {self.name!r}; its switches are numbered, so "
                "rename it",
                key="name",
            )
        nodes = self.nodes_per_switch
        if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
            raise ConfigError(
                f"nodes_per_switch must be a whole number of at least 1, got {nodes!r}", key="nodes_per_switch"
            )
        require_positive("oversubscription", self.oversubscription)
        require_positive("hop_latency_s", self.hop_latency_s, or_zero=True)


def require_levels(levels: Sequence[TreeLevel]) -> None:
    """Raise ConfigError, by the level's number, unless each switch is wholly below one of the next level."""
    names = [level.name for level in levels]
    for number, (below, above) in enumerate(pairwise(levels), start=1):
        if names.count(above.name) > 1:
            raise ConfigError(f"tree_level {above.name!r} stands twice; rename one", key=f"tree_level.{number}.name")
        if above.nodes_per_switch <= below.nodes_per_switch or above.nodes_per_switch % below.nodes_per_switch:
            raise ConfigError(
                f"nodes_per_switch of tree_level {above.name!r} must be a multiple of {below.nodes_per_switch}, that "
                f"of {below.name!r} below it, and more, got {above.nodes_per_switch}; state levels from the nodes up",
                key=f"tree_level.{number}.nodes_per_switch",
            )


def tree_links(levels: Sequence[TreeLevel], num_nodes: int, node_bytes_per_s: float) -> Iterator[tuple[str, str, Link]]:
    """Yield (switch, "up" or "down", link) of all uplinks; nodes send and receive at most at this rate."""
    for depth, level in enumerate(levels):
        rate = level.nodes_per_switch * node_bytes_per_s
        for below in levels[: depth + 1]:
            rate /= below.oversubscription
        for number in range(-(-num_nodes // level.nodes_per_switch)):
            for role in ("up", "down"):
                switch = f"{level.name}{number}"
                yield switch, role, Link(name=f"{switch} {role}", latency_s=level.hop_latency_s, bytes_per_s=rate)


def switches_between(levels: Sequence[TreeLevel], node: int, other_node: int) -> tuple[list[str], list[str]]:
    """Return the switches whose uplinks a transfer goes up, in its order, and those that it comes down."""
    up, down = [], []
    for level in levels:
        here, there = node // level.nodes_per_switch, other_node // level.nodes_per_switch
        if here == there:
            break
        up.append(f"{level.name}{here}")
        down.append(f"{level.name}{there}")
    return up, down[::-1]
