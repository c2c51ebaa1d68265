# Pure: no MPI, threads, clock or environment.
"""Links of all nodes of a machine, and the links that a transfer between two endpoints uses."""

import re
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal

from coarse.errors import ConfigError
from coarse.hardware.links import Link
from coarse.hardware.network_tree import TreeLevel, switches_between, tree_links
from coarse.hardware.shared_pool import SharedPool
from coarse.hardware.topology_tree import HOST, Tree
from coarse.hardware.unlike_nodes import UnlikeNodes
from coarse.hardware.wire import Wire

PathKind = Literal["pcie", "nvlink", "cci", "load", "store", "auto"]
PATH_KINDS: tuple[PathKind, ...] = ("pcie", "nvlink", "cci", "load", "store", "auto")

LinkKey = tuple[int, str, str]
"""Key of a link: (node, who uses the wire, role of the link)."""
_ALL_NODES = -1
"""Stand-in for the node of a link that all nodes share."""


@dataclass(frozen=True, kw_only=True)
class Cable:
    """Wire between two GPUs of a node; "up" leads from the first to the second."""

    between: tuple[str, str]
    wire: Wire


class Wiring:
    """Wiring of a machine, with link ids in the order of the tree, node by node.

    A machine always has the same ids.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        peer_to_peer: bool,
        nvlinks: tuple[Cable, ...],
        cci_wire: Wire | None,
        load_store: tuple[Wire, ...],
        network: Wire | None,
        num_nodes: int,
        pool: SharedPool | None = None,
        tree_levels: Sequence[TreeLevel] = (),
        unlike_nodes: Sequence[UnlikeNodes] = (),
    ) -> None:
        """Build the links. Between nodes transfers go by the pool if there is one, else by the network's tree."""
        self._tree = tree
        self._peer_to_peer = peer_to_peer
        self._nvlinks = nvlinks
        self._cci_wire = cci_wire
        self._load_store = load_store
        self._num_nodes = num_nodes
        self._pool = pool
        self._cable_of = {
            ends: (" - ".join(cable.between), role)
            for cable in nvlinks
            for ends, role in ((cable.between, "up"), (cable.between[::-1], "down"))
        }
        self._tree_levels = tree_levels
        kinds = [(network, True), *((each.network or network, each.nvlink) for each in unlike_nodes)]
        self._links_of_kind = [tuple(self._links_of_one(wire, has_nvlink)) for wire, has_nvlink in kinds]
        """Links of one node of each kind, as ((who uses the wire, role), link). The nodes' links follow each other."""
        self._positions = [{key: number for number, (key, _) in enumerate(links)} for links in self._links_of_kind]
        self._kind_of = [0] * num_nodes
        for kind, group in enumerate(unlike_nodes, start=1):
            for first, last in group.ranges:
                self._kind_of[first : last + 1] = [kind] * (last + 1 - first)
        *self._begins, end = accumulate((len(self._links_of_kind[kind]) for kind in self._kind_of), initial=0)
        """Id of the first link of each node."""
        pooled = () if pool is None else tuple(((_ALL_NODES, link.name, ""), link) for link in pool.shared(num_nodes))
        switched = () if network is None or pool else tree_links(tree_levels, num_nodes, network.reached_bytes_per_s)
        of_all = [*pooled, *(((_ALL_NODES, switch, role), link) for switch, role, link in switched)]
        self._links_of_all = [link for _, link in of_all]
        self._id_of_all = {key: end + number for number, (key, _) in enumerate(of_all)}
        self.shared = frozenset(range(end, end + len(pooled)))
        """Ids of links that every transfer between nodes takes."""

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Links of the machine; a link's id is its position."""
        last = self._num_nodes - 1
        num_links = self._begins[last] + len(self._links_of_kind[self._kind_of[last]]) + len(self._links_of_all)
        return tuple(map(self.link, range(num_links)))

    def link(self, number: int) -> Link:
        """Return one of the links, by its id: cheaper than all, if a machine has thousands of nodes."""
        node = bisect_right(self._begins, number) - 1
        position, of_node = number - self._begins[node], self._links_of_kind[self._kind_of[node]]
        if position >= len(of_node):
            return self._links_of_all[position - len(of_node)]
        link = of_node[position][1]
        return link if self._num_nodes == 1 else replace(link, name=f"node{node} {link.name}")

    def likeness(self, source: str, target: str) -> Hashable:
        """Return a key that is equal for pairs of endpoints whose paths are equal, link by link, on any nodes."""
        (node, name), (other_node, other_name) = self.locate(source), self.locate(target)
        up, _ = switches_between(self._tree_levels, node, other_node)
        return name, other_name, node == other_node, self._kind_of[node], self._kind_of[other_node], len(up)

    def locate(self, endpoint: str) -> tuple[int, str]:
        """Return (node, name in that node's tree) of an endpoint.

        Raises:
            ConfigError: there is none such.
        """
        found = re.fullmatch(r"(gpu|memory)(0|[1-9][0-9]{0,8})", endpoint)
        if found:
            per_node = len(self._tree.gpus if found[1] == "gpu" else self._tree.memories)
            number = int(found[2])
            if number < per_node * self._num_nodes:
                return number // per_node, f"{found[1]}{number % per_node}"
        num_gpus, num_memories = (
            self._num_nodes * len(names) for names in (self._tree.gpus, self._tree.memories)
        )
        raise ConfigError(
            f"the machine has no endpoint {endpoint!r}: it has {num_gpus} GPUs (gpu0, ...) and "
            f"{num_memories} memory devices (memory0, ...); choose one of these or add it to the machine"
        )

    def path(self, source: str, target: str, kind: PathKind) -> tuple[int, ...]:
        """Return link ids from `source` to `target`; see Machine.path."""
        if kind not in PATH_KINDS:
            raise ConfigError(f"kind of a path must be one of {', '.join(PATH_KINDS)}, got {kind!r}", key="kind")
        at, to = self.locate(source), self.locate(target)
        if at == to:
            return ()
        is_cabled = at[0] == to[0] and self._has(at[0], *self._cable_of.get((at[1], to[1]), ("", "")))
        if kind == "nvlink" or (kind == "auto" and is_cabled):
            if not is_cabled:
                raise self._no_path(source, target, "NVLink", 'ask for "auto"')
            return self._ids(at[0], *self._cable_of[at[1], to[1]])
        if kind == "cci":
            return self._cci_path(source, target)
        tree = [number for key in self._tree_keys(at, to) for number in self._ids(*key)]
        if kind in ("load", "store"):
            tree.insert(0, self._access(source, target, kind))
        return tuple(tree)

    def host_path(self, endpoint: str, *, to_host: bool) -> tuple[int, ...]:
        """Return link ids between a device and its socket's memory; see Machine.host_path."""
        node, name = self.locate(endpoint)
        rising = self._below(name, self._tree.socket_of(name))
        places, role = (rising, "up") if to_host else (rising[::-1], "down")
        return tuple(number for place in places for number in self._ids(node, place, role))

    def pool_path(self, endpoint: str, *, stores: bool) -> tuple[int, ...]:
        """Return link ids between an endpoint and the pool; see Machine.pool_path."""
        if self._pool is None:
            raise ConfigError(f"there is no pool that {endpoint} could use; state [pool] in the machine", key="pool")
        node, name = self.locate(endpoint)
        rising = self._below(name, HOST)
        keys = [*((node, place, "up") for place in rising), *self._into_pool(self._pool, node)]
        if not stores:
            falling = ((node, place, "down") for place in reversed(rising))
            keys = [*self._out_of_pool(self._pool, node), *falling]
        return tuple(number for key in keys for number in self._ids(*key))

    def _access(self, source: str, target: str, kind: PathKind) -> int:
        """Return the link that limits a GPU's loads from, or stores to, coherent memory."""
        client = target if kind == "load" else source
        node, name = self.locate(client)
        if name not in self._tree.gpus:
            raise self._no_path(source, target, kind, "a GPU loads from its source and stores to its target")
        if not self._load_store:
            raise self._no_path(source, target, kind, "state [coherence] in the machine")
        return self._number(node, name, kind)

    def _cci_path(self, source: str, target: str) -> tuple[int, ...]:
        (node, at), (other_node, to) = self.locate(source), self.locate(target)
        if self._cci_wire is None or node != other_node:
            raise self._no_path(source, target, "CCI", 'ask for "pcie", or switch cci on')
        return (*self._ids(node, f"{at} cci", "up"), *self._ids(node, f"{to} cci", "down"))

    def _no_path(self, source: str, target: str, kind: str, remedy: str) -> ConfigError:
        return ConfigError(f"there is no {kind} path from {source} to {target}; {remedy}", key="kind")

    def _ids(self, node: int, user: str, role: str) -> tuple[int, ...]:
        """Return the link of one direction, and the duplex limit if there is one."""
        number = self._number(node, user, role)
        if role == "duplex" or not self._has(node, user, "duplex"):
            return (number,)
        return number, self._number(node, user, "duplex")

    def _number(self, node: int, user: str, role: str) -> int:
        if node == _ALL_NODES:
            return self._id_of_all[node, user, role]
        return self._begins[node] + self._positions[self._kind_of[node]][user, role]

    def _has(self, node: int, user: str, role: str) -> bool:
        return node != _ALL_NODES and (user, role) in self._positions[self._kind_of[node]]

    def _tree_keys(self, at: tuple[int, str], to: tuple[int, str]) -> Iterator[LinkKey]:
        """Yield the links up from `at` to the place where both meet, and down to `to`."""
        (node, source), (other_node, target) = at, to
        staged = not self._peer_to_peer
        meeting = HOST if node != other_node else self._tree.meeting_place(source, target, staged=staged)
        rising = self._below(source, meeting)
        falling = self._below(target, meeting)
        yield from ((node, name, "up") for name in rising)
        if node != other_node and self._pool is not None:
            yield from self._into_pool(self._pool, node)
            yield from self._out_of_pool(self._pool, other_node)
        elif node != other_node:
            yield node, "network", "up"
            up, down = switches_between(self._tree_levels, node, other_node)
            yield from ((_ALL_NODES, switch, "up") for switch in up)
            yield from ((_ALL_NODES, switch, "down") for switch in down)
            yield other_node, "network", "down"
        else:
            yield from self._inside(node, rising, falling, meeting, staged=staged)
        yield from ((other_node, name, "down") for name in reversed(falling))

    def _into_pool(self, pool: SharedPool, node: int) -> Iterator[LinkKey]:
        """Yield the links of a node's stores into the pool."""
        yield node, "pool", "up"
        yield from ((_ALL_NODES, link.name, "") for link in pool.shared(self._num_nodes))

    def _out_of_pool(self, pool: SharedPool, node: int) -> Iterator[LinkKey]:
        """Yield the links of a node's loads from the pool."""
        yield from ((_ALL_NODES, link.name, "") for link in pool.shared(self._num_nodes))
        yield node, "pool", "down"

    def _inside(
        self, node: int, rising: tuple[str, ...], falling: tuple[str, ...], meeting: str, *, staged: bool
    ) -> Iterator[LinkKey]:
        """Yield the links at the turn of a transfer; see [Note: limits that directions share]."""
        if staged:
            socket = self._tree.socket_of(rising[0])
            if self._tree.by_name[socket].staging:
                yield node, socket, "staging"
        shared = [name for name in rising if name in falling]
        yield from ((node, name, "turn") for name in shared if self._has(node, name, "turn"))
        if not shared and meeting != HOST and self._tree.by_name[meeting].crossing:
            yield node, meeting, "crossing"

    def _below(self, name: str, meeting: str) -> tuple[str, ...]:
        chain = self._tree.ancestors(name)
        return chain[: chain.index(meeting)]

    def _links_of_one(self, network: Wire | None, has_nvlink: bool) -> Iterator[tuple[tuple[str, str], Link]]:
        for user, wire in self._wires(network, has_nvlink):
            for role, link in wire.links(user):
                yield (user, role), link
        for place in self._tree.places:
            for role, inner in (("crossing", place.crossing), ("staging", place.staging)):
                if inner is not None:
                    yield (place.name, role), inner.one_way(f"{place.name} {role}")
        if self._pool is not None:
            for role in ("up", "down"):
                yield ("pool", role), self._pool.port(f"pool {role}", stores=role == "up")
        for gpu in self._tree.gpus:
            for access in self._load_store:
                yield (gpu, access.name), access.one_way(f"{gpu} {access.name}")

    def _wires(self, network: Wire | None, has_nvlink: bool) -> Iterator[tuple[str, Wire]]:
        """Yield (who uses it, wire) for every wire of a node that has two directions."""
        yield from ((place.name, place.wire) for place in self._tree.places)
        yield from ((" - ".join(cable.between), cable.wire) for cable in self._nvlinks if has_nvlink)
        if self._cci_wire is not None:
            yield from ((f"{name} cci", self._cci_wire) for name in (*self._tree.gpus, *self._tree.memories))
        if network is not None:
            yield "network", network
