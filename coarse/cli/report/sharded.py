"""What `coarse shard` answers: a row per mode, of simulated sharded training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from coarse.errors import CapacityError
from coarse.protocol.units import GIB
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.strategy.sharding import Fcdp


@dataclass(frozen=True, kw_only=True)
class ShardedRow:
    """One mode's iteration."""

    mode: str
    batch: int
    """Per GPU; 0 where not even 1 fits."""
    memory_gib: float
    """Of a GPU, at the peak."""
    samples_per_s: float = 0.0
    iteration_s: float = 0.0
    compute_s: float = 0.0
    exposed_s: float = 0.0
    forward_gb: float = 0.0
    """That leave a node in forward, or after the optimizer's step."""
    backward_gb: float = 0.0
    note: str = ""
    kind: str = "simulated"

    @property
    def cells(self) -> list[str]:
        """As the table shows it."""
        if self.batch == 0:
            return [self.mode, "-", "-", "-", "-", "-", "-", "-", f"{self.memory_gib:.1f}"]
        seconds = [f"{value:.3g}" for value in (self.iteration_s, self.compute_s, self.exposed_s)]
        volume = [f"{value:.3g}" for value in (self.forward_gb, self.backward_gb)]
        return [self.mode, str(self.batch), f"{self.samples_per_s:.3g}", *seconds, *volume, f"{self.memory_gib:.1f}"]


HEAD = ("mode", "batch", "samples/s", "total s", "compute s", "exposed s", "forward GB", "backward GB", "GPU GiB")
"""Of the table."""


def predicted(scenario: ShardedScenario, *, threshold: float, at_largest_batch: bool) -> ShardedRow:
    """One mode; a batch that does not fit is a row of nothing, with the reason."""
    note = ""
    if at_largest_batch and (largest := scenario.largest_batch()):
        scenario = replace(scenario, batch=largest)
    try:
        memory = scenario.require_fit()
    except CapacityError as error:
        needed = scenario.account().total_bytes / GIB
        return ShardedRow(mode=scenario.policy.mode, batch=0, memory_gib=needed, note=str(error))
    memory_bytes = memory.total_bytes
    if isinstance(scenario.policy.sharding, Fcdp):
        scenario = scenario.with_gpu_cache(threshold)
        memory_bytes += scenario.cached_bytes
        num_cached, num_units = scenario.policy.num_cached_units, len(scenario.units)
        mode = scenario.policy.mode
        note = f"{mode} keeps {num_cached} of {num_units} units gathered on the GPU, below tau = {threshold:g}"
    report = scenario.run()
    return ShardedRow(
        mode=scenario.policy.mode,
        batch=scenario.batch,
        samples_per_s=scenario.batch * scenario.num_gpus / report.iteration_s,
        iteration_s=report.iteration_s,
        compute_s=report.compute_s,
        exposed_s=report.exposed_s,
        forward_gb=report.crossing_nbytes("forward gather", "gather after the step") / scenario.num_nodes / 1e9,
        backward_gb=report.crossing_nbytes("backward gather", "reduce-scatter") / scenario.num_nodes / 1e9,
        memory_gib=memory_bytes / GIB,
        note=note,
    )


def document(rows: Sequence[ShardedRow], inputs: dict[str, str]) -> dict[str, Any]:
    """For JSON."""
    return {"kind": "simulated", "inputs": inputs, "rows": [asdict(row) for row in rows]}
