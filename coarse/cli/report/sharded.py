"""Answer of `coarse shard`: a row of simulated sharded training per mode."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from coarse.cli.report.prediction import disturbed_notes
from coarse.errors import CapacityError
from coarse.protocol.units import GIB
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.strategy.sharding import Fcdp, Hybrid


@dataclass(frozen=True, kw_only=True)
class ShardedRow:
    """Iteration of one mode."""

    mode: str
    batch: int
    """Samples per GPU; 0 if not even 1 fits."""
    memory_gib: float
    """Memory of a GPU at the peak."""
    samples_per_s: float = 0.0
    iteration_s: float = 0.0
    compute_s: float = 0.0
    exposed_s: float = 0.0
    idle_s: float = 0.0
    """Mean seconds that GPUs wait for slower ones."""
    forward_gb: float = 0.0
    """Gigabytes that leave a node in forward, or after the optimizer's step."""
    backward_gb: float = 0.0
    note: str = ""
    kind: str = "simulated"

    def cells(self, *, has_idle: bool = False) -> list[str]:
        """Return the cells of the table's row; `has_idle` adds the wait for slower GPUs."""
        if self.batch == 0:
            return [self.mode, *["-"] * (7 + has_idle), f"{self.memory_gib:.1f}"]
        idle = [self.idle_s] if has_idle else []
        seconds = [f"{value:.3g}" for value in (self.iteration_s, self.compute_s, self.exposed_s, *idle)]
        volume = [f"{value:.3g}" for value in (self.forward_gb, self.backward_gb)]
        return [self.mode, str(self.batch), f"{self.samples_per_s:.3g}", *seconds, *volume, f"{self.memory_gib:.1f}"]


HEAD = ("mode", "batch", "samples/s", "total s", "compute s", "exposed s", "forward GB", "backward GB", "GPU GiB")
"""Heads of the table's columns."""


def table_of(rows: Sequence[ShardedRow]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return head and cells of a table."""
    has_idle = any(row.idle_s > 0 for row in rows)
    place = HEAD.index("exposed s") + 1
    return (*HEAD[:place], *(["idle s"] if has_idle else []), *HEAD[place:]), [
        row.cells(has_idle=has_idle) for row in rows
    ]


def predicted(scenario: ShardedScenario, *, threshold: float, at_largest_batch: bool) -> ShardedRow:
    """Predict one mode; a batch that does not fit gives an empty row with the reason."""
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
    reports = scenario.runs()
    report, disturbances = reports[-1], scenario.disturbances
    mode, factor = scenario.policy.mode, scenario.factor
    if isinstance(scenario.policy.sharding, Hybrid) and factor != scenario.gpus_per_node:
        mode = f"{mode} {factor}"
    notes = disturbed_notes(
        mode, [each.iteration_s for each in reports], disturbances.jitter, has_changes=bool(disturbances.degradations)
    )
    return ShardedRow(
        mode=mode,
        batch=scenario.batch,
        samples_per_s=scenario.batch * scenario.num_microbatches * scenario.num_gpus / report.iteration_s,
        iteration_s=report.iteration_s,
        compute_s=report.compute_s,
        exposed_s=report.exposed_s,
        idle_s=report.idle_s,
        forward_gb=report.crossing_nbytes("forward gather", "gather after the step") / scenario.num_nodes / 1e9,
        backward_gb=report.crossing_nbytes("backward gather", "reduce-scatter") / scenario.num_nodes / 1e9,
        memory_gib=memory_bytes / GIB,
        note=" ".join((note, *notes) if note else notes),
    )


def document(rows: Sequence[ShardedRow], inputs: dict[str, str]) -> dict[str, Any]:
    """Return the rows as values for JSON."""
    return {"kind": "simulated", "inputs": inputs, "rows": [asdict(row) for row in rows]}
