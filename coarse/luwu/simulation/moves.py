# Pure: no MPI, threads, clock or environment.
"""Moves and computes of LuWu's baselines in a step, and the step's lower bound: arithmetic alone.

These are the bytes for P parameters of a unit, N workers, and 2 bytes of each parameter in bfloat16:

- zero3: each unit is gathered in forward and in backward, 2P (N-1)/N each, and its gradients are reduce-scattered, as
  much again. The optimizer steps a worker's shard in the GPU's memory, by 28 bytes a parameter (ZeRO, section 3.1).
- zero-infinity: before a gather each worker reads its shard from its disks (2P/N) and brings it to the GPU; gradients
  go the way back. Then the CPU steps the shard: 14 bytes a parameter are read, gradients and three float32 states, and
  14 written, parameters in bfloat16 and the states (LuWu, figure 2a).
- sharp: zero-infinity whose gathers and reductions a switch does: in a gather a worker sends 2P/N and receives
  2P (N-1)/N; in a reduction it sends 2P, of which its shard comes back (LuWu 4.4).
- switchml: all states on each GPU, in float32. After backward 4P go to the switch and 4P come back, in packets that the
  CPU makes and takes, between two copies over PCIe (LuWu 2.2 and figure 4).

In all of them each unit's input goes to the host in forward and comes back in backward (LuWu, figure 5a).
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from coarse.luwu.simulation.cluster import PagedTraining

BF16_BYTES, FP32_BYTES = 2, 4
STATE_BYTES = 12
"""State bytes of a parameter: a master copy and two states, in float32."""
GPU_STEP_BYTES = 28
"""Memory traffic of a parameter that a GPU steps: 16 bytes read, 12 written."""
PACKET_BYTES = 1024
"""Gradient bytes of a packet, which a switch with folded pipes adds at once (SwitchML; LuWu 4.1 has them folded)."""


FLOAT32_SHARE, DISK_SHARE = 0.5, 0.68
"""Default shares; see BaselineCluster."""


class Baseline(enum.StrEnum):
    """Baselines of LuWu, which differ in the place of states and in the adder of gradients."""

    ZERO_INFINITY = "zero-infinity"
    ZERO3 = "zero3"
    SWITCHML = "switchml"
    SHARP = "sharp"

    @property
    def has_disks(self) -> bool:
        """True if states lie on each worker's disks."""
        return self in (Baseline.ZERO_INFINITY, Baseline.SHARP)


@dataclass(frozen=True, kw_only=True)
class BaselineCluster:
    """Resources of a baseline's workers; all stated by the caller."""

    num_workers: int
    worker_flops_per_s: float
    """Rate that a worker attains in bfloat16, not its peak."""
    float32_share: float = FLOAT32_SHARE
    """Share of that rate that it attains in float32: TF32's share of bfloat16's peak on an A100 (data sheet)."""
    gpu_memory_bytes_per_s: float
    link_bytes_per_s: float
    """Rate of a worker's network card, each way."""
    pcie_bytes_per_s: float
    """Rate between a GPU and its host, each way."""
    disk_bytes_per_s: float
    """Rate of a worker's disks, each way."""
    disk_share: float = DISK_SHARE
    """Share of the disks' rate that their reads and writes attain together: calibrated on the optimizer's 37 % of
    ZeRO-Infinity's step at OPT-175B and micro-batch 16 (LuWu 2.1)."""
    updates_per_s: float = 1e9
    """Parameters that a worker's CPU steps in a second: an assumption, which never bounds here."""
    packets_per_s: float = 12.2e6
    """Packets that a worker's CPU sends in a second, and as many that it receives: an assumption, the 100 Gbit/s of the
    card."""
    interference: float = 0.3
    """Share of a collective that takes the GPU's time where both run at once (LuWu, figure 3a)."""
    prefetch: bool = False

    @property
    def attained_disk_bytes_per_s(self) -> float:
        """Rate that a worker's disks attain, each way."""
        return self.disk_bytes_per_s * self.disk_share


@dataclass(frozen=True)
class Stage:
    """Move that ends before the next one begins; it takes its resources at once."""

    took_s: dict[str, float]
    """Seconds by resource."""
    sent_bytes: float = 0.0
    """Bytes sent by the network."""
    received_bytes: float = 0.0
    takes_gpu_s: float = 0.0
    """Seconds of the GPU's time, taken by kernels that add and copy."""


Way = tuple[Stage, ...]


@dataclass(frozen=True, kw_only=True)
class StepStages:
    """Moves of a step: those of each unit, then the optimizer's, in equal parts."""

    num_units: int
    before_forward: Way
    forward_s: float
    after_forward: Way
    before_backward: Way
    backward_s: float
    after_backward: Way
    step_part: Way
    num_step_parts: int

    @property
    def _of_unit(self) -> tuple[Stage, ...]:
        return (*self.before_forward, *self.after_forward, *self.before_backward, *self.after_backward)

    def least_s(self, *, prefetch: bool) -> float:
        """Return the lower bound of a step's seconds.

        Units' moves come one after the other, or at best take the busiest resource's time. Then comes the optimizer,
        none of which may begin before, and whose parts overlap.
        """
        compute_s = self.forward_s + self.backward_s
        if prefetch:
            busy_s = _busy_s(self._of_unit)
            busy_s["gpu"] = busy_s.get("gpu", 0.0) + compute_s
            unit_s = max(busy_s.values())
        else:
            unit_s = compute_s + sum(max(move.took_s.values()) for move in self._of_unit)
        part = [max(move.took_s.values()) for move in self.step_part]
        busiest_s = max(_busy_s(self.step_part).values())
        return self.num_units * unit_s + max(sum(part), self.num_step_parts * busiest_s)


def _busy_s(way: Iterable[Stage]) -> dict[str, float]:
    """Return the busy seconds by resource."""
    busy_s: dict[str, float] = {}
    for move in way:
        for resource, took_s in (*move.took_s.items(), ("gpu", move.takes_gpu_s)):
            busy_s[resource] = busy_s.get(resource, 0.0) + took_s
    return busy_s


def moves_of(mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> StepStages:
    """Return the moves of one worker."""
    pace = cluster.worker_flops_per_s * (cluster.float32_share if mode is Baseline.SWITCHML else 1.0)
    forward_s = 2 * training.block_elements * training.tokens / pace
    itemsize = FP32_BYTES if mode is Baseline.SWITCHML else BF16_BYTES
    input_s = itemsize * training.input_elements / cluster.pcie_bytes_per_s
    kept, back = ((Stage({name: input_s}),) if input_s else () for name in ("pcie out", "pcie in"))
    gathered, reduced = _collectives(mode, cluster, training)
    step_part, num_parts = _step(mode, cluster, training)
    return StepStages(
        num_units=training.num_blocks, before_forward=gathered, forward_s=forward_s, after_forward=kept,
        before_backward=(*gathered, *back), backward_s=forward_s * (training.flops_per_token / 2 - 1),
        after_backward=reduced, step_part=step_part, num_step_parts=num_parts,
    )  # fmt: skip


def _collectives(mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> tuple[Way, Way]:
    """Return the moves of a unit's parameters before its compute, and of its gradients after it."""
    if mode is Baseline.SWITCHML:
        return (), ()
    nbytes = BF16_BYTES * training.block_elements
    shard = nbytes / cluster.num_workers
    others = nbytes - shard
    if mode is Baseline.SHARP and cluster.num_workers > 1:
        gather, reduction = _collective(cluster, shard, others, 0.0), _collective(cluster, nbytes, shard, 0.0)
    else:
        gather = reduction = _collective(cluster, others, others, cluster.interference if cluster.prefetch else 0.0)
    if not mode.has_disks:
        return (gather,), (reduction,)
    disk_s, pcie_s = shard / cluster.attained_disk_bytes_per_s, shard / cluster.pcie_bytes_per_s
    return (
        (Stage({"reads": disk_s}), Stage({"pcie in": pcie_s}), gather),
        (reduction, Stage({"pcie out": pcie_s}), Stage({"writes": disk_s})),
    )


def _collective(cluster: BaselineCluster, sent: float, received: float, interference: float) -> Stage:
    took_s = {"up": sent / cluster.link_bytes_per_s, "down": received / cluster.link_bytes_per_s}
    return Stage(took_s, sent, received, interference * max(took_s.values()))


def _step(mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> tuple[Way, int]:
    """Return the moves of one part of the optimizer after the last gradients, and the number of parts."""
    num = training.num_parameters
    on_gpu_s = GPU_STEP_BYTES * num / cluster.gpu_memory_bytes_per_s
    if mode is Baseline.SWITCHML:
        sums = FP32_BYTES * num
        wire_s, pcie_s = sums / cluster.link_bytes_per_s, sums / cluster.pcie_bytes_per_s
        packets_s = sums / PACKET_BYTES / cluster.packets_per_s
        exchange = Stage({"up": wire_s, "down": wire_s, "cpu": packets_s}, sums, sums)
        return (Stage({"pcie out": pcie_s}), exchange, Stage({"pcie in": pcie_s}), Stage({"gpu": on_gpu_s})), 1
    if not mode.has_disks:
        return (Stage({"gpu": on_gpu_s / cluster.num_workers}),), 1
    shard = training.block_elements / cluster.num_workers
    disk_s = (STATE_BYTES + BF16_BYTES) * shard / cluster.attained_disk_bytes_per_s
    return (
        (Stage({"reads": disk_s}), Stage({"cpu": shard / cluster.updates_per_s}), Stage({"writes": disk_s})),
        training.num_blocks,
    )
