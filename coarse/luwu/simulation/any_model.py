# Pure: no MPI, threads, clock or environment.
"""Mode luwu for a model stated by its layers: a step beside other modes, on equal compute times.

Units are those that sharded modes gather. Each is pulled in bfloat16 in forward and again in backward, and its
gradients are pushed in bfloat16, for any type of compute; activations stay on the GPU, as live (`ct.model_in_network`).
A node's memory device adds for its workers and copies to them, so that a unit crosses between nodes once each way.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from coarse.errors import CapacityError
from coarse.hardware.accelerator import MemoryAccount, MemoryRow
from coarse.hardware.machine import Disks
from coarse.luwu.simulation.capacity import HELD_UNITS, optimizer_disks_bytes
from coarse.luwu.simulation.cluster import (
    BYTES_PER_PULL,
    CHUNKS_PER_BLOCK,
    PagedCluster,
    cluster_of,
    model_of_blocks,
    require_optimizer_node,
)
from coarse.luwu.simulation.moves import BF16_BYTES
from coarse.luwu.simulation.training import LEAST_STEPS, NUM_STEPS, LinkChange, simulate
from coarse.luwu.store.layout import PagedModel, step_bytes
from coarse.protocol.units import GIB
from coarse.simulation.sharded.disturbed import Pace
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
        """Number of units."""
        return len(self.units)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of all units."""
        return sum(map(self.elements, range(self.num_blocks)))

    def elements(self, block: int) -> int:
        """Return the number of a unit's parameters."""
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
    disks = require_optimizer_node(scenario.machine)
    training = TrainedUnits(units=with_parameters(scenario.units), itemsize=scenario.precision.itemsize)
    memory = _account(scenario, training)
    _require_room(scenario, training, disks, memory)
    cluster = cluster_of(scenario.machine, scenario.num_gpus, is_spread=scenario.num_nodes > 1)
    is_unlike = scenario.disturbances.are_unlike
    num_steps = max(LEAST_STEPS, scenario.num_unlike) if is_unlike else NUM_STEPS
    paces = [Pace.of(scenario.factors(step)) for step in range(num_steps)]
    times = simulate(
        cluster, training, num_steps=num_steps, paces=[pace.slowest for pace in paces],
        changes=_link_changes(scenario, cluster),
    )  # fmt: skip
    shown = paces[scenario.num_unlike - 1]
    compute_s = shown.mean * times.compute_s
    iterations_s = tuple(end - begin for begin, end in pairwise((0.0, *times.ends_s)))[: scenario.num_unlike]
    nbytes = BYTES_PER_PULL * training.num_parameters
    read, written = step_bytes(training.model(), 0)
    return PredictedIteration(
        iteration_s=iterations_s[-1] if is_unlike else times.step_s,
        compute_s=compute_s,
        idle_s=shown.slowest * times.compute_s - compute_s,
        iterations_s=iterations_s if is_unlike else (),
        uses=(
            ("the optimizer node to workers", 2.0 * nbytes), ("workers to the optimizer node", float(nbytes)),
            ("the optimizer node's disks, read", float(read)), ("the optimizer node's disks, written", float(written)),
        ),
        memory=memory,
    )  # fmt: skip


def _link_changes(scenario: ShardedScenario, cluster: PagedCluster) -> tuple[LinkChange, ...]:
    """Return the changes of the workers' rates by degraded links.

    All workers wait for the one with the slowest way.
    """
    if not scenario.disturbances.degradations:
        return ()
    machine, spread = scenario.machine, scenario.num_nodes > 1
    gpus = [
        (f"gpu{node * len(machine.tree.gpus) + place}", node)
        for node in range(scenario.num_nodes) for place in range(scenario.gpus_per_node)
    ]  # fmt: skip
    ways: dict[str, set[int]] = {"up": set(), "down": set()}
    for gpu, node in gpus:
        other = next((each for each, home in gpus if home != node), gpu)
        ways["up"].update(machine.path(gpu, other) if spread else machine.host_path(gpu, to_host=True))
        ways["down"].update(machine.path(other, gpu) if spread else machine.host_path(gpu, to_host=False))
    now: dict[int, float] = {}
    found = []
    for change in scenario.disturbances.changes(machine.links):
        now[change.link] = change.bytes_per_s
        for direction, links in ways.items():
            if change.link in links:
                rate = min([cluster.link_bytes_per_s, *(each for link, each in now.items() if link in links)])
                found.append(LinkChange(change.at_s, direction, rate))
    return tuple(found)


def with_parameters(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Return the units that have parameters.

    A unit without any is computed with the unit before, or with the first one that has some.
    """
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
    """Return a GPU's memory: the units under way, and the rows of the sharded account that no mode moves."""
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
    nbytes = optimizer_disks_bytes(training.num_parameters)
    if nbytes > disks.optimizer_capacity_bytes:
        raise CapacityError(
            f"{scenario.model_name} with luwu needs {nbytes / GIB:.1f} GiB of the optimizer node's disks, which have "
            f"{disks.optimizer_capacity_bytes / GIB:.1f}; state more in [disks] of the machine's file"
        )
