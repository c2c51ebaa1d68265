# Pure: no MPI, threads, clock or environment.
"""Cluster and model of a training in the network: rates, all stated by the caller."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coarse.errors import ConfigError
from coarse.hardware.machine import Disks, Machine
from coarse.hardware.wire import Wire
from coarse.luwu.store.layout import ALIGN_ELEMENTS, PagedModel, PagedTensor, PagedUnit, step_bytes
from coarse.protocol.dtypes import DType

_STATES = 2
_FORWARD_FLOPS = 2
"""Operations of a parameter and token in forward."""
BYTES_PER_PULL = 2
"""Bytes of a pulled parameter: workers compute in bfloat16."""
SUMS_BYTES = 10**12
"""Bytes of the optimizer node's memory for sums that wait: an assumption; LuWu does not state it."""
CHUNKS_PER_BLOCK = 48
"""Number of chunks of a block, or of the largest one: so much work on disks and links overlaps."""


@dataclass(frozen=True, kw_only=True)
class PagedCluster:
    """Workers behind a switch that adds and copies, and one optimizer node."""

    num_workers: int
    worker_flops_per_s: float
    """Rate that a worker attains, not its peak."""
    link_bytes_per_s: float
    """Rate of each worker's link, and of the optimizer node's, in each direction."""
    num_disks: int
    disk_bytes_per_s: float
    """Rate of one disk, in each direction, both at once."""
    sums_bytes: int = 0
    """Bytes of the optimizer node's memory for sums of gradients whose update has to wait."""
    updates_per_s: float = 10e9
    """Elements that the optimizer node steps in a second."""

    def disks_s(self, model: PagedModel) -> dict[str, float]:
        """Return the seconds of a step by direction: two pulls and the states are read, all is written."""
        rate = self.disk_bytes_per_s * self.num_disks
        read, written = step_bytes(model, 0)
        return {"reads": read / rate, "writes": written / rate}


def require_optimizer_node(machine: Machine) -> Disks:
    """Return the disks of the machine's optimizer node.

    Raises:
        ConfigError: it states none, or nodes or a network that are not all equal.
    """
    if machine.tree_levels or machine.unlike_nodes:
        raise ConfigError(
            f"{machine.name} states [[tree_level]]s or [[node]]s, and LuWu's predictions take equal nodes on a network "
            "that holds no node back; name a machine without them",
            key="machine",
        )
    if machine.disks is None:
        raise ConfigError(
            f"{machine.name} states no [disks]; add them to its file, or take the machine luwu", key="machine"
        )
    return machine.disks


def cluster_of(machine: Machine, num_workers: int, *, is_spread: bool, flops_per_s: float = 0.0) -> PagedCluster:
    """Return a machine's workers and its optimizer node, whose card reaches the GPU by itself.

    Args:
        machine: the machine that states them.
        num_workers: number of its GPUs that are workers.
        is_spread: the network lies between workers and optimizer node.
        flops_per_s: rate that a worker attains, where its seconds are not given.

    Raises:
        ConfigError: see `require_optimizer_node`; or there is no network.
    """
    disks, tree = require_optimizer_node(machine), machine.tree
    link_bytes_per_s = tree.by_name[tree.gpus[0]].wire.bytes_per_s
    if is_spread:
        link_bytes_per_s = min(link_bytes_per_s, require_network(machine).bytes_per_s)
    return PagedCluster(
        num_workers=num_workers, worker_flops_per_s=flops_per_s, link_bytes_per_s=link_bytes_per_s,
        num_disks=disks.num_optimizer_disks, sums_bytes=SUMS_BYTES,
        disk_bytes_per_s=disks.optimizer_bytes_per_s / disks.num_optimizer_disks,
    )  # fmt: skip


def require_network(machine: Machine) -> Wire:
    """Return the network between a machine's nodes; a pool carries memory devices' messages, no datagrams.

    Raises:
        ConfigError: it states none.
    """
    if machine.network is None:
        raise ConfigError(
            f"{machine.name} has no network between its nodes; name a machine with network_wire", key="machine"
        )
    return machine.network


class Trained(Protocol):
    """Blocks of a model, and the compute time of each."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        ...

    @property
    def input_bytes(self) -> int:
        """Bytes of a block's input, which go to the host in forward and come back in backward."""
        ...

    def elements(self, block: int) -> int:
        """Return the number of a block's parameters."""
        ...

    def forward_s(self, cluster: PagedCluster, block: int) -> float:
        """Return a block's seconds of forward."""
        ...

    def backward_s(self, cluster: PagedCluster, block: int) -> float:
        """Return a block's seconds of backward."""
        ...

    def compute_s(self, cluster: PagedCluster) -> float:
        """Return a step's seconds of compute."""
        ...

    def model(self) -> PagedModel:
        """Return the blocks as an optimizer node keeps them."""
        ...


def model_of_blocks(elements: Sequence[int], chunks_per_block: int) -> PagedModel:
    """Return a model of blocks as an optimizer node keeps it; the largest has `chunks_per_block` chunks."""
    units = tuple(
        PagedUnit(f"{number}", (PagedTensor(f"{number}.w", (count,)),)) for number, count in enumerate(elements)
    )
    chunk = -(-max(elements) // chunks_per_block // ALIGN_ELEMENTS) * ALIGN_ELEMENTS
    return PagedModel(
        units=units, pulled=DType.BFLOAT16, num_states=_STATES, chunk_elements=max(chunk, ALIGN_ELEMENTS)
    )


@dataclass(frozen=True, kw_only=True)
class PagedTraining:
    """Model of equal blocks, and a micro-batch."""

    num_blocks: int
    block_elements: int
    tokens: int
    """Tokens of a worker's micro-batch."""
    chunks_per_block: int = 12
    flops_per_token: int = 6
    """Operations of a parameter and token: forward two, backward four; 8 where backward computes forward again."""
    input_elements: int = 0
    """Elements of a block's input, which goes to the host in forward and comes back in backward (LuWu, figure 5); 0:
    none."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters of all blocks."""
        return self.num_blocks * self.block_elements

    def elements(self, block: int) -> int:
        """Return the number of a block's parameters."""
        return self.block_elements

    def forward_s(self, cluster: PagedCluster, block: int = 0) -> float:
        """Return a block's seconds of forward."""
        return _FORWARD_FLOPS * self.block_elements * self.tokens / cluster.worker_flops_per_s

    def backward_s(self, cluster: PagedCluster, block: int = 0) -> float:
        """Return a block's seconds of backward."""
        return self.forward_s(cluster) * (self.flops_per_token / _FORWARD_FLOPS - 1)

    def compute_s(self, cluster: PagedCluster) -> float:
        """Return a step's seconds of compute."""
        return self.num_blocks * (self.forward_s(cluster) + self.backward_s(cluster))

    @property
    def input_bytes(self) -> int:
        """Bytes of a block's input."""
        return BYTES_PER_PULL * self.input_elements

    def network_s(self, cluster: PagedCluster) -> float:
        """Return the network's seconds of a step in the busier direction; every parameter is pulled twice."""
        return max(self.link_s(cluster).values())

    def link_s(self, cluster: PagedCluster) -> dict[str, float]:
        """Return the link's seconds of a step by direction: gradients go up, parameters come down twice.

        Blocks' inputs pass the same bus, each way.
        """
        nbytes, inputs = BYTES_PER_PULL * self.num_parameters, self.num_blocks * self.input_bytes
        rate = cluster.link_bytes_per_s
        return {"up": (nbytes + inputs) / rate, "down": (2 * nbytes + inputs) / rate}

    def disk_s(self, cluster: PagedCluster) -> float:
        """Return the disks' seconds of a step in the busier direction."""
        return max(self.disks_s(cluster).values())

    def disks_s(self, cluster: PagedCluster) -> dict[str, float]:
        """Return the disks' seconds of a step by direction: two pulls and the states are read, all is written."""
        return cluster.disks_s(self.model())

    def model(self) -> PagedModel:
        """Return the blocks as an optimizer node keeps them."""
        return model_of_blocks([self.block_elements] * self.num_blocks, self.chunks_per_block)
