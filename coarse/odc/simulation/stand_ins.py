# Pure: no MPI, threads, clock or environment.
"""Nodes that stand for all in mode odc: their choice, their weights, and the links that fit them.

[Note: stand-ins] Each node sends all others together, and receives from them, the same bytes for any number of them,
except for its own share, 1/N. Pairs of nodes are alike, and messages of unlike pairs overlap. So a few nodes keep one
another waiting as many do, where each has its own workers and links, and the network's links are scaled: by the bytes
of a stand-in over those of a node of all, and links that several nodes share by the stand-ins' share of all nodes.

[Note: unlike nodes] Nodes whose links have unlike rates have separate stand-ins. Among like nodes, the one with the
slowest worker of an iteration stands for itself, and the others are drawn by rank.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from coarse.hardware.degradation import Degradation, rate_changes
from coarse.hardware.machine import Machine
from coarse.odc.simulation.sites import host_site
from coarse.simulation.sites import Site

NUM_STAND_INS = 6
"""Number of nodes that stand for all; more where more of them have unlike links."""


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """Nodes with like links, and the places among the simulated nodes of their stand-ins."""

    nodes: tuple[int, ...]
    places: tuple[int, ...]


class StandIns:
    """Nodes of a machine that are simulated, and the nodes that each stands for."""

    def __init__(
        self, machine: Machine, num_nodes: int, gpus_per_node: int, degradations: Sequence[Degradation] = ()
    ) -> None:
        """Choose the stand-ins; `num_nodes` of the machine have a job, more than stand for them."""
        self._machine = machine
        self._num_nodes = num_nodes
        self._gpus_per_node = gpus_per_node
        by_kind: dict[Hashable, list[int]] = {}
        changes = rate_changes(machine.links, degradations)
        changed: dict[int, tuple[tuple[float, float], ...]] = {}
        for at_s, link, bytes_per_s in changes:
            changed[link] = (*changed.get(link, ()), (at_s, bytes_per_s))
        for node in range(num_nodes):
            kind = tuple(
                (machine.links[link].bytes_per_s, machine.links[link].latency_s, changed.get(link))
                for link in (*self._own_links(node), *self._host_links(node))
            )
            by_kind.setdefault(kind, []).append(node)
        self._alike = _shared_out([*by_kind.values()])
        chosen = {
            place: alike.nodes[(2 * rank + 1) * len(alike.nodes) // (2 * len(alike.places))]
            for alike in self._alike for rank, place in enumerate(alike.places)
        }  # fmt: skip
        self.nodes = tuple(chosen[place] for place in range(len(chosen)))
        """Nodes whose links are simulated, by place."""

    @property
    def weights(self) -> tuple[float, ...]:
        """Number of nodes that each one stands for, by place; see [Note: unlike nodes]."""
        found = [0.0] * len(self.nodes)
        for alike in self._alike:
            *others, slowest = alike.places
            for place in others:
                found[place] = (len(alike.nodes) - 1) / len(others)
            found[slowest] = 1.0 if others else len(alike.nodes)
        return tuple(found)

    def factors(self, of_workers: Sequence[float]) -> tuple[float, ...]:
        """Return factors on the simulated workers' compute, from all workers' factors in an iteration."""
        per_node = self._gpus_per_node
        own = [tuple(of_workers[node * per_node : (node + 1) * per_node]) for node in range(self._num_nodes)]
        found: list[tuple[float, ...]] = [()] * len(self.nodes)
        for alike in self._alike:
            ranked = sorted((own[node] for node in alike.nodes), key=max)
            *others, slowest = alike.places
            found[slowest] = ranked[-1]
            for rank, place in enumerate(others):
                found[place] = ranked[(2 * rank + 1) * (len(ranked) - 1) // (2 * len(others))]
        return tuple(factor for factors in found for factor in factors)

    @property
    def far_share(self) -> float:
        """Bytes that a stand-in sends over those that a node of all sends."""
        return (1 - 1 / len(self.nodes)) / (1 - 1 / self._num_nodes)

    def site(self) -> Site:
        """Return their links; see [Note: stand-ins]."""
        site = host_site(self._machine, self.nodes, self._gpus_per_node)
        near = {link for paths in (site.push, site.pull) for path in paths.values() for link in path}
        between = {link for path in site.between_devices.values() for link in path} - near
        own = {link for node in self.nodes for link in self._own_links(node)}
        scales = {
            link: self.far_share * (1.0 if link in own else len(self.nodes) / self._num_nodes) for link in between
        }
        links = [
            replace(link, bytes_per_s=link.bytes_per_s * scales[number], table=_scaled(link.table, scales[number]))
            if number in scales else link
            for number, link in enumerate(site.links)
        ]  # fmt: skip
        return replace(site, links=tuple(links))

    def _own_links(self, node: int) -> tuple[int, ...]:
        """Return the links of all bytes that leave a node, and of all that come to it."""
        num_gpus, num = len(self._machine.tree.gpus), self._num_nodes
        near = dict.fromkeys((node + far) % num for far in (-2, -1, 1, 2))
        own = f"gpu{node * num_gpus}"
        ends = [f"gpu{other * num_gpus}" for other in near if other != node]
        found: list[int] = []
        for paths in ([self._machine.path(own, end) for end in ends], [self._machine.path(end, own) for end in ends]):
            times = Counter(link for path in paths for link in {*path})
            found += [link for link in paths[0] if times[link] == len(paths)]
        return tuple(found)

    def _host_links(self, node: int) -> tuple[int, ...]:
        """Return the links of a node's workers to their host and back."""
        first = node * len(self._machine.tree.gpus)
        gpus = [f"gpu{first + place}" for place in range(self._gpus_per_node)]
        return tuple(
            link for gpu in gpus for to_host in (True, False) for link in self._machine.host_path(gpu, to_host=to_host)
        )


def _shared_out(kinds: Sequence[Sequence[int]]) -> list[_Alike]:
    """Divide the stand-ins among kinds of nodes.

    Each has one, and the most numerous for its stand-ins gets the next.
    """
    counts = [1] * len(kinds)
    while sum(counts) < NUM_STAND_INS:
        most = max(range(len(kinds)), key=lambda kind: len(kinds[kind]) / counts[kind])
        counts[most] += 1
    found, place = [], 0
    for nodes, count in zip(kinds, counts, strict=True):
        found.append(_Alike(nodes=tuple(nodes), places=tuple(range(place, place + count))))
        place += count
    return found


def _scaled(table: tuple[tuple[int, float], ...], scale: float) -> tuple[tuple[int, float], ...]:
    return tuple((nbytes, seconds / scale) for nbytes, seconds in table)
