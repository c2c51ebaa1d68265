# Pure: no MPI, threads, clock or environment.
"""Mode luwu of a model that is stated by its layers: a step beside those of other modes, on the same times of compute.

Units are what sharded modes gather. Each is pulled in bfloat16 in forward and again in backward, and its gradients are
pushed in bfloat16, whatever it is computed in; activations stay on the GPU, as live (`ct.model_in_network`). A node's
memory device adds for its workers and hands on what comes, so that a unit crosses between nodes once each way.
"""

from dataclasses import dataclass, replace

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.accelerator import MemoryAccount, MemoryRow
from coarse.hardware.machine import Disks, Machine
from coarse.luwu.simulation.capacity import HELD_UNITS, NUM_SLOTS
from coarse.luwu.simulation.cluster import BYTES_PER_PULL, CHUNKS_PER_BLOCK, SUMS_BYTES, PagedCluster, model_of_blocks
from coarse.luwu.simulation.moves import BF16_BYTES, STATE_BYTES
from coarse.luwu.simulation.training import simulate
from coarse.luwu.store.layout import PagedModel
from coarse.protocol.units import GIB
from coarse.simulation.sharded.report import PredictedIteration
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.simulation.sharded.units import Unit

_KEPT_ROWS = ("activations", "logits and loss", "framework")
"""Rows of sharded training's account that a GPU holds in this mode too."""


@dataclass(frozen=True, kw_only=True)
class TrainedUnits:
    """Units of any sizes, whose seconds are given."""

    units: tuple[Unit, ...]
    itemsize: int
    """Bytes of a parameter in `Unit.nbytes`."""
    input_bytes: int = 0

    @property
    def num_blocks(self) -> int:
        """Count the units."""
        return len(self.units)

    def elements(self, block: int) -> int:
        """Count a unit's parameters."""
        return self.units[block].nbytes // self.itemsize

    def forward_s(self, cluster: PagedCluster, block: int) -> float:
        """Return a unit's seconds of forward."""
        return self.units[block].forward_s

    def backward_s(self, cluster: PagedCluster, block: int) -> float:
        """Return a unit's seconds of backward."""
        return self.units[block].backward_s

    def compute_s(self, cluster: PagedCluster) -> float:
        """Return a step's seconds of compute."""
        return sum(unit.forward_s + unit.backward_s for unit in self.units)

    def model(self) -> PagedModel:
        """Return the units as an optimizer node keeps them."""
        return model_of_blocks([self.elements(block) for block in range(self.num_blocks)], CHUNKS_PER_BLOCK)


def predict_in_network(scenario: ShardedScenario) -> PredictedIteration:
    """Simulate steps of a scenario in mode luwu.

    Raises:
        ConfigError: the machine states no disks of an optimizer node, or other than equal nodes.
        CapacityError: a GPU, or the optimizer node's disks, have no room.
    """
    machine, num_nodes = scenario.machine, scenario.num_nodes
    disks = require_optimizer_node(machine)
    training = TrainedUnits(units=with_parameters(scenario.units), itemsize=scenario.precision.itemsize)
    memory = _account(scenario, training)
    _require_room(scenario, training, disks, memory)
    cluster = PagedCluster(
        num_workers=scenario.num_gpus, worker_flops_per_s=0.0, link_bytes_per_s=_link_bytes_per_s(machine, num_nodes),
        num_disks=disks.num_optimizer_disks, sums_bytes=SUMS_BYTES,
        disk_bytes_per_s=disks.optimizer_bytes_per_s / disks.num_optimizer_disks,
    )  # fmt: skip
    times = simulate(cluster, training)
    nbytes = BYTES_PER_PULL * sum(map(training.elements, range(training.num_blocks)))
    read, written = (seconds * disks.optimizer_bytes_per_s for seconds in cluster.disks_s(training.model()).values())
    return PredictedIteration(
        iteration_s=times.step_s,
        compute_s=times.compute_s,
        uses=(
            ("the optimizer node to workers", 2.0 * nbytes), ("workers to the optimizer node", float(nbytes)),
            ("the optimizer node's disks, read", read), ("the optimizer node's disks, written", written),
        ),
        memory=memory,
    )  # fmt: skip


def require_optimizer_node(machine: Machine) -> Disks:
    """Return the disks of the machine's optimizer node.

    Raises:
        ConfigError: it states none, or nodes or a network that are not all alike.
    """
    if machine.tree_levels or machine.unlike_nodes:
        raise ConfigError(
            f"{machine.name} states [[tree_level]]s or [[node]]s, and LuWu's predictions take equal nodes on a network "
            "that holds nobody back; name a machine without them",
            key="machine",
        )
    if machine.disks is None:
        raise ConfigError(
            f"{machine.name} states no [disks]; add them to its file, or take the machine luwu", key="machine"
        )
    return machine.disks


def _link_bytes_per_s(machine: Machine, num_nodes: int) -> float:
    """Return the rate of a worker's link to the optimizer node: its GPU's wire, and between nodes the network."""
    tree = machine.tree
    wire = tree.by_name[tree.gpus[0]].wire.bytes_per_s
    if num_nodes == 1:
        return wire
    if machine.network is None:  # a pool carries messages of memory devices, and no datagrams of trees
        raise ConfigError(
            f"{machine.name} has no network between its nodes; name a machine with network_wire", key="machine"
        )
    return min(wire, machine.network.bytes_per_s)


def with_parameters(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Return units that have parameters; what is computed without any is computed with the unit before."""
    found: list[Unit] = []
    waiting = (0.0, 0.0)
    for unit in units:
        if unit.nbytes:
            found.append(replace(unit, forward_s=unit.forward_s + waiting[0], backward_s=unit.backward_s + waiting[1]))
            waiting = (0.0, 0.0)
        elif found:
            last = found[-1]
            found[-1] = replace(
                last, forward_s=last.forward_s + unit.forward_s, backward_s=last.backward_s + unit.backward_s
            )
        else:
            waiting = (waiting[0] + unit.forward_s, waiting[1] + unit.backward_s)
    return tuple(found)


def _account(scenario: ShardedScenario, training: TrainedUnits) -> MemoryAccount:
    """Return what a GPU holds: the units under way, and of the sharded account what no mode moves."""
    whole = scenario.account()
    largest = max(training.elements(block) for block in range(training.num_blocks))
    held = MemoryRow("units under way", HELD_UNITS * BF16_BYTES * largest)
    return MemoryAccount(whole.batch, (held, *(row for row in whole.rows if row.name in _KEPT_ROWS)))


def _require_room(scenario: ShardedScenario, training: TrainedUnits, disks: Disks, memory: MemoryAccount) -> None:
    if memory.total_bytes > scenario.capacity_bytes:
        rows = ", ".join(f"{row.name} {row.nbytes / GIB:.2f}" for row in memory.rows)
        raise CapacityError(
            f"{scenario.model_name} with luwu at batch {scenario.batch} per GPU needs {memory.total_bytes / GIB:.2f} "
            f"GiB ({rows}) but the GPU has {scenario.capacity_bytes / GIB:.2f} GiB; lower the batch"
        )
    num_parameters = sum(map(training.elements, range(training.num_blocks)))
    nbytes = NUM_SLOTS * (STATE_BYTES + BF16_BYTES) * num_parameters
    if nbytes > disks.optimizer_capacity_bytes:
        raise CapacityError(
            f"{scenario.model_name} with luwu needs {nbytes / GIB:.1f} GiB of the optimizer node's disks, which have "
            f"{disks.optimizer_capacity_bytes / GIB:.1f}; state more in [disks] of the machine's file"
        )
