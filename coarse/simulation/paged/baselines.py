# Pure: no MPI, threads, clock or environment.
"""What a step takes with LuWu's baselines in virtual time: unit by unit over a worker's GPU, links and disks.

All workers do the same, so one stands for them. By P parameters of a unit, N workers, and 2 bytes of each in bfloat16:

- zero3: each unit is gathered in forward and in backward, 2P (N-1)/N each, and its gradients are reduce-scattered, as
  much again. The optimizer steps a worker's shard in the GPU's memory, by 28 bytes a parameter (ZeRO, section 3.1).
- zero-infinity: before a gather each worker reads its shard from its disks (2P/N) and brings it to the GPU; gradients
  go the way back. Then the CPU steps the shard: 14 bytes a parameter are read, gradients and three float32 states, and
  14 written, parameters in bfloat16 and the states (LuWu, figure 2a).
- sharp: zero-infinity whose gathers and reductions a switch does: a worker receives 2P (N-1)/N in a gather, and sends
  2P in a reduction, of which its shard comes back (LuWu 4.4).
- switchml: all states on each GPU, in float32. After backward 4P go to the switch and 4P come back, between two copies
  over PCIe (LuWu 2.2 and figure 4).

Without prefetch a unit's way to the GPU begins when the unit before has been computed, as LuWu's figure 5a is written,
and gradients have left before the next unit is asked for. With it the next unit comes meanwhile, and a share of each
collective takes the GPU's time (`interference`).
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from coarse.simulation.engine import Engine
from coarse.simulation.paged.cluster import PagedTraining

BF16_BYTES, FP32_BYTES = 2, 4
STATE_BYTES = 12
"""Of a parameter: a master copy and two states, in float32."""
_GPU_STEP_BYTES = 28
"""Of a parameter that a GPU steps: 16 read, 12 written."""


class Baseline(enum.StrEnum):
    """Who keeps what, and who adds."""

    ZERO_INFINITY = "zero-infinity"
    ZERO3 = "zero3"
    SWITCHML = "switchml"
    SHARP = "sharp"

    @property
    def has_disks(self) -> bool:
        """Whether states lie on each worker's disks."""
        return self in (Baseline.ZERO_INFINITY, Baseline.SHARP)


@dataclass(frozen=True, kw_only=True)
class BaselineCluster:
    """What the workers of a baseline have; all stated by the caller."""

    num_workers: int
    worker_flops_per_s: float
    """What a worker attains in bfloat16, not its peak."""
    float32_share: float = 0.5
    """Of that what it attains in float32: TF32's share of bfloat16's peak on an A100 (data sheet)."""
    gpu_memory_bytes_per_s: float
    link_bytes_per_s: float
    """Of a worker's network card, each way."""
    pcie_bytes_per_s: float
    """Between a GPU and its host, each way."""
    disk_bytes_per_s: float
    """Of a worker's disks, each way."""
    disk_share: float = 0.68
    """Of it what their reads and writes attain together: calibrated on the optimizer's 37 % of ZeRO-Infinity's step at
    OPT-175B and micro-batch 16 (LuWu 2.1)."""
    updates_per_s: float = 1e9
    """Parameters that a worker's CPU steps: an assumption, which never bounds here."""
    interference: float = 0.3
    """Share of a collective that takes the GPU's time where both run at once (LuWu, figure 3a)."""
    prefetch: bool = False


@dataclass(frozen=True)
class BaselineStep:
    """A step (kind: simulated)."""

    step_s: float
    busy_s: dict[str, float]
    """By resource."""
    sent_bytes: float
    """Of a worker."""
    received_bytes: float
    ends_s: dict[str, float]
    """When forward, backward and the optimizer ended."""


class _Iteration:
    """One step of one worker."""

    def __init__(self, mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> None:
        self._mode, self._cluster, self._training = mode, cluster, training
        self._engine = Engine([])
        self._busy: dict[str, float] = {}
        self._sent = self._received = 0.0
        self._num_loaded = self._num_ready = self._num_computed = self._num_left = 0
        self._is_computing = False
        self._ends: dict[str, float] = {}
        blocks = training.num_blocks
        self._order = [(False, block) for block in range(blocks)] + [(True, block) for block in reversed(range(blocks))]

    def run(self) -> BaselineStep:
        """To its end."""
        self._load()
        self._engine.run()
        return BaselineStep(self._engine.now_s, dict(self._busy), self._sent, self._received, self._ends)

    # --- units

    def _load(self) -> None:
        """Bring the next unit to the GPU."""
        if self._num_loaded == len(self._order):
            return
        self._num_loaded += 1
        self._chain(self._way_in(), self._arrived)

    def _arrived(self) -> None:
        self._num_ready += 1
        self._compute()

    def _compute(self) -> None:
        """Compute the next unit, if it is there and the GPU is free."""
        if self._is_computing or self._num_computed == self._num_ready:
            return
        is_backward, _ = self._order[self._num_computed]
        forward_s = 2 * self._training.block_elements * self._training.tokens / self._training_rate()
        took_s = forward_s * (self._training.flops_per_token / 2 - 1) if is_backward else forward_s
        self._is_computing = True
        if self._cluster.prefetch and self._num_loaded == self._num_computed + 1:
            self._load()
        self._work("gpu", took_s, partial(self._computed, is_backward=is_backward))

    def _computed(self, *, is_backward: bool) -> None:
        self._is_computing = False
        self._num_computed += 1
        if self._num_computed == self._training.num_blocks:
            self._ends["forward"] = self._engine.now_s
        if not is_backward:
            self._next()
        elif self._cluster.prefetch:
            self._chain(self._way_out(), self._gone)
            self._next()
        else:
            self._chain(self._way_out(), self._gone_then_next)

    def _next(self) -> None:
        """Go on with the unit that is there, or, without prefetch, have it brought now."""
        if self._num_loaded == self._num_computed:
            self._load()
        self._compute()

    def _gone_then_next(self) -> None:
        self._next()
        self._gone()

    def _gone(self) -> None:
        """A unit's gradients have left."""
        self._num_left += 1
        if self._num_left == self._training.num_blocks:
            self._ends["backward"] = self._engine.now_s
            self._step()

    # --- what moves

    def _way_in(self) -> list[tuple[str, float]]:
        """What a unit's parameters pass before they are computed: (resource, seconds)."""
        cluster, nbytes = self._cluster, BF16_BYTES * self._training.block_elements
        if self._mode is Baseline.SWITCHML:
            return []
        shard = nbytes / cluster.num_workers
        way = []
        if self._mode.has_disks:
            way += [("reads", shard / self._disk_rate()), ("pcie", shard / cluster.pcie_bytes_per_s)]
        received = nbytes - shard
        self._received += received
        self._sent += shard if self._mode is Baseline.SHARP and cluster.num_workers > 1 else received
        return [*way, *self._collective(received)]

    def _way_out(self) -> list[tuple[str, float]]:
        """What its gradients pass."""
        cluster, nbytes = self._cluster, BF16_BYTES * self._training.block_elements
        if self._mode is Baseline.SWITCHML:
            return []
        shard = nbytes / cluster.num_workers
        moved = nbytes - shard
        if self._mode is Baseline.SHARP and cluster.num_workers > 1:
            self._sent += nbytes
            self._received += shard
            way = self._collective(nbytes)
        else:
            self._sent += moved
            self._received += moved
            way = self._collective(moved)
        if self._mode.has_disks:
            way += [("pcie", shard / cluster.pcie_bytes_per_s), ("writes", shard / self._disk_rate())]
        return way

    def _collective(self, nbytes: float) -> list[tuple[str, float]]:
        """So many bytes of a worker, the busier way."""
        took_s = nbytes / self._cluster.link_bytes_per_s
        if self._cluster.prefetch and self._mode is not Baseline.SHARP:
            self._work("gpu", self._cluster.interference * took_s, lambda: None)
        return [("network", took_s)]

    # --- the optimizer

    def _step(self) -> None:
        """All gradients are where they belong."""
        cluster, num = self._cluster, self._training.num_parameters
        if self._mode is Baseline.SWITCHML:
            sums = FP32_BYTES * num
            self._sent += sums
            self._received += sums
            copied_s = sums / cluster.pcie_bytes_per_s
            on_gpu_s = _GPU_STEP_BYTES * num / cluster.gpu_memory_bytes_per_s
            way = [("pcie", copied_s), ("network", sums / cluster.link_bytes_per_s), ("pcie", copied_s)]
            self._chain([*way, ("gpu", on_gpu_s)], self._end)
            return
        shard = num / cluster.num_workers
        if not self._mode.has_disks:
            self._work("gpu", _GPU_STEP_BYTES * shard / cluster.gpu_memory_bytes_per_s, self._end)
            return
        per_block = shard / self._training.num_blocks
        nbytes = (STATE_BYTES + BF16_BYTES) * per_block
        for _ in range(self._training.num_blocks):  # reads, updates and writes of blocks overlap
            way = [
                ("reads", nbytes / self._disk_rate()), ("cpu", per_block / cluster.updates_per_s),
                ("writes", nbytes / self._disk_rate()),
            ]  # fmt: skip
            self._chain(way, self._end)

    def _end(self) -> None:
        self._ends["optimizer"] = self._engine.now_s

    # --- time

    def _training_rate(self) -> float:
        share = self._cluster.float32_share if self._mode is Baseline.SWITCHML else 1.0
        return self._cluster.worker_flops_per_s * share

    def _disk_rate(self) -> float:
        return self._cluster.disk_bytes_per_s * self._cluster.disk_share

    def _chain(self, way: list[tuple[str, float]], then: Callable[[], None]) -> None:
        """One resource after the other, each in its turn."""
        if not way:
            then()
            return
        (resource, took_s), *rest = way
        self._work(resource, took_s, partial(self._chain, rest, then))

    def _work(self, resource: str, took_s: float, then: Callable[[], None]) -> None:
        self._busy[resource] = self._busy.get(resource, 0.0) + took_s
        self._engine.work(resource, took_s, then)


def in_turn_s(busy_s: dict[str, float]) -> float:
    """A step whose units come one after the other: all that is busy, but that the optimizer's reads, updates and writes
    overlap. Of 18 bytes that are read of a parameter 4 are its pulls, and of 16 that are written 2 its gradient."""
    reads_s, writes_s, cpu_s = (busy_s.get(name, 0.0) for name in ("reads", "writes", "cpu"))
    others_s = sum(took_s for name, took_s in busy_s.items() if name not in ("reads", "writes", "cpu"))
    return others_s + reads_s * 4 / 18 + writes_s * 2 / 16 + max(reads_s * 14 / 18, writes_s * 14 / 16, cpu_s)


def simulate_baseline(mode: Baseline, cluster: BaselineCluster, training: PagedTraining) -> BaselineStep:
    """One step."""
    return _Iteration(mode, cluster, training).run()
