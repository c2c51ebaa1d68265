# Pure: no MPI, threads, clock or environment.
"""What is simulated: gradients and when backward has them, who synchronises which, and how ranks differ."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from coarse.hardware.degradation import RateChange
from coarse.protocol.config import MeasuredRouting
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement, RoutingTable
from coarse.protocol.records import Descriptor
from coarse.simulation.site import Site

DTYPE = DType.FLOAT32


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """One tensor, or several fused ones, that are synchronised as a whole."""

    name: str
    num_elements: int
    ready_s: float
    """Seconds from the start of backward until its last part is there."""

    @property
    def nbytes(self) -> int:
        """Its bytes in float32."""
        return self.num_elements * DTYPE.itemsize

    def descriptor(self, priority: int) -> Descriptor:
        """As clients register it."""
        return Descriptor(self.name, int(DTYPE), int(Op.AVERAGE), (self.num_elements,), priority)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job on a site.

    The first `num_proxy_gradients` gradients in the order of backward go to the memory devices, and
    the workers all-reduce the rest themselves (COARSE III-F).
    """

    site: Site
    placement: Placement
    tables: tuple[RoutingTable, ...]
    gradients: tuple[Gradient, ...]
    """In the order in which backward produces them: the model's last layer first."""
    forward_s: float
    backward_s: float
    num_proxy_gradients: int
    ring_blocks_compute: bool = True
    """Whether the workers' ring waits for the end of backward, as COARSE's T_train has it (III-F)."""
    slow_downs: tuple[float, ...] = ()
    """Of each worker how many times longer its compute takes; () for equal ones."""
    num_iterations: int = 3
    one_stands_for_all: bool = False
    """Simulate the first worker and its proxy, as slow as the slowest, for all: see macro.py."""
    routing: MeasuredRouting = field(default_factory=MeasuredRouting)
    """How tables follow from measurements."""
    profile_every: int = 0
    """Iterations after which all workers profile again, and the job is decided anew; 0: never."""
    rate_changes: tuple[RateChange, ...] = ()
    """What happens to links while the job runs; its first iteration begins at second 0."""

    def __post_init__(self) -> None:
        _require(0 <= self.num_proxy_gradients <= len(self.gradients), "num_proxy_gradients", self.num_proxy_gradients)
        _require(self.num_iterations >= 1, "num_iterations", self.num_iterations)
        _require(self.profile_every >= 0, "profile_every", self.profile_every)
        known = range(len(self.site.links))
        _require(all(change.link in known for change in self.rate_changes), "rate_changes", self.rate_changes)
        _require(self.forward_s >= 0 and self.backward_s >= 0, "compute", (self.forward_s, self.backward_s))
        _require(len(self.slow_downs) in (0, self.num_workers), "slow_downs", self.slow_downs)
        _require(all(factor > 0 for factor in self.slow_downs), "slow_downs", self.slow_downs)
        _require(_rises([gradient.ready_s for gradient in self.gradients]), "gradients", "ready in another order")
        late = [gradient.name for gradient in self.gradients if gradient.ready_s > self.backward_s * (1 + 1e-9)]
        _require(not late, "gradients", f"{late[:3]} ready after backward has ended")

    @property
    def num_workers(self) -> int:
        """How many workers train."""
        return self.placement.num_clients

    @property
    def simulated_workers(self) -> range:
        """Workers that the report has rows of."""
        return range(1 if self.one_stands_for_all else self.num_workers)

    def slow_down(self, worker: int) -> float:
        """How many times longer a worker's compute takes."""
        if not self.slow_downs:
            return 1.0
        return max(self.slow_downs) if self.one_stands_for_all else self.slow_downs[worker]


def _rises(times_s: Sequence[float]) -> bool:
    return all(earlier <= later for earlier, later in pairwise(times_s))


def _require(holds: bool, name: str, came: object) -> None:
    if not holds:
        raise ValueError(f"Job.{name} makes no sense: {came}")
