"""Graph of a trace's nodes: its checks, and the order in which they may run."""

import heapq
from collections.abc import Mapping, Sequence

from coarse.cli.chakra.messages import Node


class GraphError(ValueError):
    """Error of nodes that do not form an acyclic graph."""


def unknown_controls(nodes: Sequence[Node]) -> int:
    """Return how many control dependencies name no node of the trace.

    Chakra's converter leaves roots out, and keeps these dependencies.
    """
    known = {node.id for node in nodes}
    return sum(parent not in known for node in nodes for parent in node.ctrl_deps)


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes after those whose data they need; of several ready ones the lowest id comes first.

    Control dependencies do not count, as in ASTRA-sim, which issues nodes by their data alone.

    Raises:
        GraphError: an id that occurs twice, a dependency on no node, or a circle; it names records.
    """
    by_id: dict[int, Node] = {}
    for node in nodes:
        if node.id in by_id:
            raise GraphError(f"records {by_id[node.id].record} and {node.record} both have id {node.id}")
        by_id[node.id] = node
    for node in nodes:
        for parent in node.data_deps:
            if parent not in by_id:
                raise GraphError(f"record {node.record} ({_named(node)}) depends on node {parent}, and there is none")
    children: dict[int, list[int]] = {node_id: [] for node_id in by_id}
    waiting = {node.id: len(set(node.data_deps)) for node in nodes}
    for node in nodes:
        for parent in set(node.data_deps):
            children[parent].append(node.id)
    free = [node_id for node_id, num_parents in waiting.items() if not num_parents]
    heapq.heapify(free)
    ordered = []
    while free:
        ordered.append(by_id[heapq.heappop(free)])
        for child in children[ordered[-1].id]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(free, child)
    if len(ordered) < len(nodes):
        raise GraphError(f"a circle: {_circle(by_id, waiting)}")
    return ordered


def _circle(by_id: Mapping[int, Node], waiting: Mapping[int, int]) -> str:
    """Return one circle as records that each wait for the next."""
    at = min(node_id for node_id, num_parents in waiting.items() if num_parents)
    walked: list[int] = []
    while at not in walked:
        walked.append(at)
        at = min(parent for parent in by_id[at].data_deps if waiting[parent])
    ring = walked[walked.index(at) :]
    return " waits for ".join(f"record {by_id[node_id].record} ({_named(by_id[node_id])})" for node_id in (*ring, at))


def _named(node: Node) -> str:
    return repr(node.name[:60]) if node.name else f"id {node.id}"
