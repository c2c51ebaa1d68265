# Pure: no MPI, threads, clock or environment.
"""Machines: nodes of GPUs and memory devices, their figures, links between them, and rates of pairs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coarse.errors import ConfigError
from coarse.hardware.coherence import Coherence
from coarse.hardware.fabric import Fabric
from coarse.hardware.links import Link
from coarse.hardware.network_tree import TreeLevel, require_levels
from coarse.hardware.quantities import require_name, require_positive
from coarse.hardware.shared_pool import SharedPool
from coarse.hardware.topology_tree import Tree
from coarse.hardware.unlike_nodes import UnlikeNodes, require_nodes
from coarse.hardware.wire import Wire
from coarse.hardware.wiring import Cable, PathKind, Wiring

MAX_NODES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """GPU as data sheets describe it."""

    name: str
    memory_bytes: int
    fp32_flops_per_s: float
    fp16_flops_per_s: float
    memory_bytes_per_s: float

    def __post_init__(self) -> None:
        require_name("name", self.name)
        for key in ("memory_bytes", "fp32_flops_per_s", "fp16_flops_per_s", "memory_bytes_per_s"):
            require_positive(key, getattr(self, key))


@dataclass(frozen=True, kw_only=True)
class MemoryDevice:
    """Processor beside the memory, with its rates of adding and of stepping an optimizer."""

    adder_bytes_per_s: float
    """Bytes of a tensor to which another is added, in a second (COARSE IV-A, sync cores)."""
    optimizer_bytes_per_s: float
    """Bytes of parameters that an optimizer steps in a second."""
    capacity_bytes: int

    def __post_init__(self) -> None:
        for key in ("adder_bytes_per_s", "optimizer_bytes_per_s", "capacity_bytes"):
            require_positive(key, getattr(self, key))


@dataclass(frozen=True, kw_only=True)
class Disks:
    """Disks that keep states beyond memory: of each worker's host, and of an optimizer node (LuWu 4.1)."""

    host_memory_bytes: int
    """Bytes of memory of a worker's host."""
    worker_bytes_per_s: float
    """Rate of all disks of a worker, each way, both at once."""
    worker_capacity_bytes: int
    optimizer_bytes_per_s: float
    """Rate of all disks of the optimizer node, each way, both at once."""
    optimizer_capacity_bytes: int
    num_optimizer_disks: int

    def __post_init__(self) -> None:
        for key in ("host_memory_bytes", "worker_bytes_per_s", "worker_capacity_bytes", "optimizer_bytes_per_s",
                    "optimizer_capacity_bytes", "num_optimizer_disks"):  # fmt: skip
            require_positive(key, getattr(self, key))
        if not isinstance(self.num_optimizer_disks, int):
            raise ConfigError(
                f"num_optimizer_disks must be a whole number, got {self.num_optimizer_disks!r}",
                key="num_optimizer_disks",
            )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine of nodes with one tree, and a network.

    `dataclasses.replace` switches parts off or adds nodes. Endpoints are "gpu0", "gpu1", ... and "memory0", ...,
    numbered on from node to node.
    """

    name: str
    tree: Tree
    """Tree of each node."""
    accelerator: Accelerator
    memory_device: MemoryDevice
    peer_to_peer: bool
    """True if a device writes to another through a switch; else it goes through the host's memory."""
    coherence: Coherence | None = None
    """Loads and stores to device memory; None if GPUs have none."""
    disks: Disks | None = None
    nvlinks: tuple[Cable, ...] = ()
    nvlink: bool = True
    """True if the NVLinks are on."""
    cci_wire: Wire | None = None
    """Wire from each memory device to the CCI switch that joins them; any GPU may play a device."""
    cci: bool = True
    """True if the CCI links among memory devices are on."""
    network: Wire | None = None
    """Wire from each node's host to the network."""
    tree_levels: tuple[TreeLevel, ...] = ()
    """Levels of the network's switches, from the nodes upwards. () stands for one that only the nodes' wires limit."""
    unlike_nodes: tuple[UnlikeNodes, ...] = ()
    """Nodes that differ from the others, each named once."""
    pool: SharedPool | None = None
    """Memory that all nodes share."""
    pool_on: bool = True
    """True if nodes send to one another by the pool, if the machine has one, and not by the network."""
    num_nodes: int = 1
    num_sharers: int = 1
    """Number of clients that share coherent memory; loads and stores slow down with them."""

    def __post_init__(self) -> None:
        require_name("name", self.name)
        for key, most in (("num_nodes", MAX_NODES), ("num_sharers", 2**31)):
            count = getattr(self, key)
            if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
                raise ConfigError(f"{key} must be a whole number in 1..{most}, got {count!r}", key=key)
        if self.num_nodes > 1 and self.network is None and not self.sends_by_pool:
            raise ConfigError(
                f"{self.num_nodes} nodes have no network between them; add a network or a pool, or set one node",
                key="num_nodes",
            )
        if self.tree_levels and self.network is None:
            raise ConfigError(
                "a tree_level is of the network, and the machine has none; set network_wire, or remove it",
                key="tree_level",
            )
        require_levels(self.tree_levels)
        require_nodes(self.unlike_nodes, self.num_nodes, self.network)
        self._check_nvlinks()

    @property
    def sends_by_pool(self) -> bool:
        """True if bytes between nodes are stored in memory that these share and loaded from there."""
        return self.pool is not None and self.pool_on

    @cached_property
    def wiring(self) -> Wiring:
        """Links of all nodes, built when first asked for."""
        return Wiring(
            tree=self.tree,
            peer_to_peer=self.peer_to_peer,
            nvlinks=self.nvlinks if self.nvlink else (),
            cci_wire=self.cci_wire if self.cci else None,
            load_store=self._load_store(),
            network=self.network,
            num_nodes=self.num_nodes,
            pool=self.pool if self.pool_on else None,
            tree_levels=self.tree_levels,
            unlike_nodes=self.unlike_nodes,
        )

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of the machine; a link's id is its position."""
        return self.wiring.links

    def link(self, number: int) -> Link:
        """Return one of the links, by its id: cheaper than all, if there are thousands of nodes."""
        return self.wiring.link(number)

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Names of all GPUs, node by node."""
        return tuple(f"gpu{number}" for number in range(self.num_nodes * len(self.tree.gpus)))

    @cached_property
    def memories(self) -> tuple[str, ...]:
        """Names of all memory devices that are no GPUs, node by node."""
        return tuple(f"memory{number}" for number in range(self.num_nodes * len(self.tree.memories)))

    def node_of(self, endpoint: str) -> int:
        """Return the number of the node on which an endpoint stands."""
        return self.wiring.locate(endpoint)[0]

    def compute_slow_down(self, node: int) -> float:
        """Return the factor of a node's GPUs on the accelerator's compute times."""
        return next((group.compute_slow_down for group in self.unlike_nodes if node in group), 1.0)

    def switch_of(self, endpoint: str) -> str:
        """Return the switch or socket on which an endpoint hangs; names count within one node."""
        return self.tree.by_name[self.wiring.locate(endpoint)[1]].parent

    def num_wires_up(self, endpoint: str, other: str) -> int:
        """Return the number of wires from `endpoint` up to the lowest place above both.

        It is one if they share a switch.
        """
        (node, name), (other_node, other_name) = self.wiring.locate(endpoint), self.wiring.locate(other)
        above = self.tree.ancestors(name)
        if node != other_node:
            return len(above)
        return above.index(self.tree.meeting_place(name, other_name, staged=False))

    def path(self, source: str, target: str, *, kind: PathKind = "auto") -> tuple[int, ...]:
        """Return link ids from `source` to `target`; empty from an endpoint to itself.

        "pcie" goes through the tree (and the network, or the pool), "nvlink" and "cci" by those links alone, "load" (by
        the GPU at the target) and "store" (by the GPU at the source) through the tree, but no faster than coherent
        loads and stores are (DENSE), and "auto" by NVLink if there is one, else through the tree.

        Raises:
            ConfigError: there is no such path.
        """
        return self.wiring.path(source, target, kind)

    def host_path(self, endpoint: str, *, to_host: bool) -> tuple[int, ...]:
        """Return link ids between a device and the memory of the socket that it hangs on, to it or from it."""
        return self.wiring.host_path(endpoint, to_host=to_host)

    def pool_path(self, endpoint: str, *, stores: bool) -> tuple[int, ...]:
        """Return link ids by which an endpoint stores into the pool, or loads from it.

        Raises:
            ConfigError: there is none.
        """
        return self.wiring.pool_path(endpoint, stores=stores)

    def _load_store(self) -> tuple[Wire, ...]:
        """Return wires at the rate of one client's loads and of its stores, as slow as the sharers make them."""
        return () if self.coherence is None else self.coherence.wires(self.num_sharers)

    def _check_nvlinks(self) -> None:
        seen: set[frozenset[str]] = set()
        for cable in self.nvlinks:
            ends = frozenset(cable.between)
            strangers = [end for end in cable.between if end not in self.tree.gpus]
            if strangers:
                raise ConfigError(
                    f"between of an nvlink must name GPUs of the node, got {strangers[0]!r}; "
                    f"there are: {', '.join(self.tree.gpus)}",
                    key="between",
                )
            if len(ends) != 2 or ends in seen:
                raise ConfigError(
                    f"an nvlink joins two GPUs, each pair once, got {list(cable.between)}; "
                    "remove it, or state the rate of all its lanes together",
                    key="between",
                )
            seen.add(ends)


def pair_s(machine: Machine, source: str, target: str, nbytes: int, *, bidirectional: bool, kind: PathKind) -> float:
    """Return the seconds until a pair has moved `nbytes`, or `nbytes` each way, on otherwise idle links."""
    fabric = Fabric(machine.links)
    fabric.start(0, machine.path(source, target, kind=kind), nbytes, 0.0)
    if bidirectional:
        fabric.start(1, machine.path(target, source, kind=kind), nbytes, 0.0)
    ended_s = 0.0
    while (due_s := fabric.next_s()) is not None:
        for finish_s, _ in fabric.advance(due_s):
            ended_s = max(ended_s, finish_s)
    return ended_s


def bandwidth_matrix(
    machine: Machine, nbytes: int, *, bidirectional: bool, kind: PathKind = "pcie"
) -> np.ndarray:  # (g, g) float64 bytes/s, 0 on the diagonal; g GPUs
    """Return bytes per second, latency included, from each GPU to each other.

    They are both ways together if `bidirectional`.
    """
    bandwidth = np.zeros((len(machine.gpus), len(machine.gpus)))
    for row, source in enumerate(machine.gpus):
        for column, target in enumerate(machine.gpus):
            if row < column or (row > column and not bidirectional):
                seconds = pair_s(machine, source, target, nbytes, bidirectional=bidirectional, kind=kind)
                bandwidth[row, column] = nbytes * (2 if bidirectional else 1) / seconds
    return bandwidth + bandwidth.T if bidirectional else bandwidth
