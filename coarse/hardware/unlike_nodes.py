# Pure: no MPI, threads, clock or environment.
"""Nodes that differ from the others of a machine: slower GPUs, another network wire, no NVLinks."""

from collections.abc import Sequence
from dataclasses import dataclass

from coarse.errors import ConfigError
from coarse.hardware.quantities import require_name, require_positive
from coarse.hardware.wire import Wire

NodeRange = tuple[int, int]
"""Numbers of the first and the last of consecutive nodes."""
_FORM = 'a list of numbers from 0 and of ranges, such as [3, "8-15"]'


@dataclass(frozen=True, kw_only=True)
class UnlikeNodes:
    """Group of nodes of a machine that differ from the others."""

    name: str
    ranges: tuple[NodeRange, ...]
    compute_slow_down: float = 1.0
    """Factor on their GPUs' compute times."""
    network: Wire | None = None
    """Wire from their hosts to the network; None for that of the others."""
    nvlink: bool = True
    """True if their NVLinks are on, if the machine's are."""

    def __post_init__(self) -> None:
        require_name("name", self.name)
        require_positive("compute_slow_down", self.compute_slow_down)

    def __contains__(self, node: int) -> bool:
        return any(first <= node <= last for first, last in self.ranges)


    @property
    def first(self) -> int:
        """Lowest number of its nodes."""
        return min(first for first, _ in self.ranges)

    def text(self) -> str:
        """Return the group, how many nodes it has, and its differences, for readers."""
        num_nodes = sum(last + 1 - first for first, last in self.ranges)
        differences = [f"compute {self.compute_slow_down:g} times as long"] if self.compute_slow_down != 1 else []
        differences += [f"network wire {self.network.name!r}"] if self.network is not None else []
        differences += [] if self.nvlink else ["no NVLinks"]
        return f"{self.name} ({num_nodes} nodes: {', '.join(differences) or 'as the others'})"


def node_ranges(numbers: object) -> tuple[NodeRange, ...]:
    """Return the ranges that a setting `numbers` states.

    Raises:
        ConfigError: the setting is anything else.
    """
    if not isinstance(numbers, list | tuple) or not numbers:
        raise ConfigError(f"numbers must be {_FORM}, got {numbers!r}; set it", key="numbers")
    return tuple(_range_of(entry, numbers) for entry in numbers)


def ranges_text(ranges: Sequence[NodeRange]) -> str:
    """Return the list that states ranges in a machine file."""
    texts = (str(first) if first == last else f'"{first}-{last}"' for first, last in ranges)
    return f"[{', '.join(texts)}]"


def require_nodes(groups: Sequence[UnlikeNodes], num_nodes: int, network: Wire | None) -> None:
    """Raise ConfigError, by the group's number, if a node is named twice, or is none of the machine's."""
    of_node: dict[int, str] = {}
    names = [group.name for group in groups]
    for number, group in enumerate(groups):
        if group.name in names[:number]:
            raise ConfigError(f"node {group.name!r} stands twice; rename one", key=f"node.{number}.name")
        for first, last in group.ranges:
            if last >= num_nodes:
                raise ConfigError(
                    f"numbers of node {group.name!r} must lie in 0..{num_nodes - 1}, got {last}; "
                    f"correct them, or set num_nodes = {last + 1}",
                    key=f"node.{number}.numbers",
                )
            for node in range(first, last + 1):
                if node in of_node:
                    raise ConfigError(
                        f"number {node} stands in node {of_node[node]!r} and in {group.name!r}, or twice in one; "
                        "remove it from one of them",
                        key=f"node.{number}.numbers",
                    )
                of_node[node] = group.name
        if group.network is not None and network is None:
            raise ConfigError(
                f"node {group.name!r} has a network_wire and the machine none; set network_wire of the machine",
                key=f"node.{number}.network_wire",
            )


def _range_of(entry: object, numbers: object) -> NodeRange:
    if isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
        return entry, entry
    first, dash, last = entry.partition("-") if isinstance(entry, str) else ("", "", "")
    if dash and first.strip().isdecimal() and last.strip().isdecimal() and int(first) <= int(last):
        return int(first), int(last)
    raise ConfigError(f"numbers must be {_FORM}, got {entry!r} in {numbers!r}; correct it", key="numbers")
