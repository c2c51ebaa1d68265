# Pure: no MPI, threads, clock or environment.
"""GPT training in the network, or by a baseline, on a stated machine: its memory needs and step times."""

from dataclasses import dataclass
from functools import cached_property

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.gpt import gpt, gpt_shape
from coarse.hardware.machine import Disks, Machine
from coarse.hardware.models import Model
from coarse.luwu.simulation.baselines import simulate_baseline
from coarse.luwu.simulation.capacity import LUWU, MODES, ClusterCapacity, MemoryNeed
from coarse.luwu.simulation.cluster import (
    CHUNKS_PER_BLOCK,
    PagedCluster,
    PagedTraining,
    cluster_of,
    require_network,
    require_optimizer_node,
)
from coarse.luwu.simulation.moves import BF16_BYTES, DISK_SHARE, FLOAT32_SHARE, Baseline, BaselineCluster, moves_of
from coarse.luwu.simulation.training import simulate

PEAK_SHARE = 183 / 312
"""Share of an A100's bfloat16 peak that LuWu attains with OPT-175B (LuWu, figure 11a), where compute bounds it."""
MOST = 1 << 16


@dataclass(frozen=True)
class ModeStep:
    """Step of one mode (kind: simulated)."""

    mode: str
    step_s: float
    busy_s: dict[str, float]
    """Busy seconds by resource; luwu's disks are the optimizer node's ("node reads", "node writes"), the others' a
    worker's."""
    bound_s: float
    """Least seconds that these rates allow, in closed form: luwu's busiest resource; of baselines see `Moves.least_s`.
    """
    sent_bytes: float
    """Bytes that a worker sends."""
    received_bytes: float
    model_flops: float
    """Operations of a worker's step."""

    @property
    def slowest(self) -> str:
        """Busiest resource."""
        return max(self.busy_s, key=lambda name: self.busy_s[name])

    @property
    def flops_per_s(self) -> float:
        """Rate of a worker, counted by the model's own operations."""
        return self.model_flops / self.step_s

    @property
    def idle_share(self) -> float:
        """Idle share of a worker's GPU."""
        return 1.0 - self.busy_s["gpu"] / self.step_s


@dataclass(frozen=True, kw_only=True)
class PagedScenario:
    """Training on a machine; `dataclasses.replace` makes others."""

    machine: Machine
    model_name: str
    num_workers: int
    batch: int
    """Samples of a worker."""
    sequence: int = 1024
    peak_share: float = PEAK_SHARE
    prefetch: bool = False
    """True if baselines prefetch; see `baselines`."""
    float32_share: float = FLOAT32_SHARE
    """Float32 share of switchml; see `BaselineCluster`."""
    disk_share: float = DISK_SHARE
    """Disk share of baselines with disks; see `BaselineCluster`."""

    def __post_init__(self) -> None:
        for key, value in (("batch", self.batch), ("workers", self.num_workers)):
            if not 1 <= value <= MOST:
                raise ConfigError(f"{key} must lie in 1..{MOST}, got {value}; set --{key}", key=key)
        if not 0.0 < self.peak_share <= 1.0:
            raise ConfigError(f"peak_share must lie in (0, 1], got {self.peak_share}; set it", key="peak_share")
        gpt_shape(self.model_name)
        require_network(self.machine)
        require_optimizer_node(self.machine)

    @property
    def disks(self) -> Disks:
        """Disks of the machine."""
        assert self.machine.disks is not None
        return self.machine.disks

    @cached_property
    def model(self) -> Model:
        """GPT of this name and sequence."""
        return gpt(self.model_name, self.sequence)

    @cached_property
    def training(self) -> PagedTraining:
        """Blocks of the model, of 12 h^2 parameters each, without embedding and head, as in the paper's FLOPS."""
        shape = gpt_shape(self.model_name)
        return PagedTraining(
            num_blocks=shape.num_layers, block_elements=12 * shape.hidden**2, tokens=self.batch * self.sequence,
            chunks_per_block=CHUNKS_PER_BLOCK, input_elements=self.batch * self.sequence * shape.hidden,
        )  # fmt: skip

    @property
    def capacity(self) -> ClusterCapacity:
        """Memory that there is."""
        return ClusterCapacity(
            gpu_bytes=self.machine.accelerator.memory_bytes, disks=self.disks, num_workers=self.num_workers,
            sequence=self.sequence,
        )  # fmt: skip

    def require_fit(self, mode: str) -> tuple[MemoryNeed, ...]:
        """Return the needs of a mode, all of which have to fit.

        Raises:
            CapacityError: some of it does not fit; with the largest batch that does.
        """
        needs = self.capacity.needs(mode, self.model, self.batch)
        lacking = [str(need) for need in needs if not need.is_met]
        if lacking:
            largest = self.capacity.largest_batch(mode, self.model)
            remedy = f"lower the batch to {largest}" if largest else "take more workers, or a smaller model"
            raise CapacityError(f"{mode} needs of {' and of '.join(lacking)}; {remedy}")
        return needs

    def step(self, mode: str) -> ModeStep:
        """Simulate a step of a mode, one of MODES, whether it fits or not."""
        if mode == LUWU:
            return self._luwu()
        baseline = Baseline(mode)
        cluster = self.baseline_cluster
        found = simulate_baseline(baseline, cluster, self.training)
        bound_s = moves_of(baseline, cluster, self.training).least_s(prefetch=cluster.prefetch)
        return ModeStep(
            mode, found.step_s, found.busy_s, bound_s, found.sent_bytes, found.received_bytes, self.model_flops
        )

    @property
    def model_flops(self) -> float:
        """Operations of a worker's step: 6 for each parameter and token."""
        return 6.0 * self.training.num_parameters * self.training.tokens

    @property
    def _flops_per_s(self) -> float:
        return self.peak_share * self.machine.accelerator.fp16_flops_per_s

    @property
    def _gpu_wire_bytes_per_s(self) -> float:
        tree = self.machine.tree
        return tree.by_name[tree.gpus[0]].wire.bytes_per_s

    @property
    def _network_bytes_per_s(self) -> float:
        assert self.machine.network is not None
        return self.machine.network.bytes_per_s

    @property
    def luwu_cluster(self) -> PagedCluster:
        """Cluster for luwu: each worker is a node, and the network is between any two."""
        return cluster_of(self.machine, self.num_workers, is_spread=True, flops_per_s=self._flops_per_s)

    @property
    def baseline_cluster(self) -> BaselineCluster:
        """Cluster for the baselines."""
        return BaselineCluster(
            num_workers=self.num_workers, worker_flops_per_s=self._flops_per_s,
            gpu_memory_bytes_per_s=self.machine.accelerator.memory_bytes_per_s,
            link_bytes_per_s=self._network_bytes_per_s, pcie_bytes_per_s=self._gpu_wire_bytes_per_s,
            disk_bytes_per_s=self.disks.worker_bytes_per_s, prefetch=self.prefetch,
            float32_share=self.float32_share, disk_share=self.disk_share,
        )  # fmt: skip

    def _luwu(self) -> ModeStep:
        cluster, training = self.luwu_cluster, self.training
        step_s = simulate(cluster, training).step_s
        disks_s = {f"node {direction}": took_s for direction, took_s in training.disks_s(cluster).items()}
        busy_s = {"gpu": training.compute_s(cluster), **training.link_s(cluster), **disks_s}
        nbytes = float(BF16_BYTES * training.num_parameters)
        return ModeStep(LUWU, step_s, busy_s, max(busy_s.values()), nbytes, 2 * nbytes, self.model_flops)


def modes_of(text: str) -> tuple[str, ...]:
    """Return the modes that a comma-separated list names, each once.

    Raises:
        ConfigError: a mode is not of MODES.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise ConfigError(
            f"--modes must be of {', '.join(MODES)}, got {unknown[0]!r}; ask for other modes by themselves",
            key="modes",
        )
    return names
