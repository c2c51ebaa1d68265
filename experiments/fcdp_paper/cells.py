"""One simulated training job of FCDP's evaluation, and its outcome, computed once however many figures use it."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.report import ShardedReport
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.strategy.sharding import Fcdp, Fsdp, Sharding, ZeroPP
from experiments.fcdp_paper.inputs import CENTRAL, Inputs, Network, machine_with
from experiments.validation.declared import Taken

MODELS = ("gpt-10b", "gpt-15b", "gpt-20b", "gpt-25b", "gpt-30b")
GPUS_PER_NODE = 8
BATCH = 8
"""Per GPU, where nothing else is said (V-B)."""
LORA_RANK = 8


class System(enum.StrEnum):
    """Of the paper's comparisons."""

    ZERO3 = "ZeRO-3"
    ZEROPP = "ZeRO++"
    SCHED = "FCDP-Sched"
    COMM = "FCDP-Comm"
    FCDP = "FCDP"
    """With FCDP-Cache."""

    @property
    def sharding(self) -> Sharding:
        """How it shards."""
        if self in (System.ZERO3, System.ZEROPP):
            return Fsdp() if self is System.ZERO3 else ZeroPP()
        return Fcdp(comm=self is not System.SCHED)


_taken = Taken(CENTRAL)
under, taken_inputs = _taken.under, _taken.now
"""Take these inputs where a cell states none; those that are taken now."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What trains where and how."""

    model: str = "gpt-10b"
    network: Network = Network.IPOIB
    num_nodes: int = 2
    system: System = System.ZERO3
    batch: int = BATCH
    is_lora: bool = False
    inputs: Inputs = field(default_factory=taken_inputs)

    def scenario(self) -> ShardedScenario:
        """What is simulated."""
        inputs = self.inputs
        policy = ShardedPolicy(
            sharding=self.system.sharding,
            collective=inputs.collective,
            keeps_adapters=inputs.keeps_adapters,
        )
        found = ShardedScenario(
            machine=machine_with(self.network, inputs.border_step_s, inputs.staging_bytes_per_s),
            model_name=self.model,
            policy=policy,
            batch=self.batch,
            num_nodes=self.num_nodes,
            gpus_per_node=GPUS_PER_NODE,
            sequence=inputs.sequence,
            lora_rank=LORA_RANK if self.is_lora else 0,
            peak_share=inputs.peak_share,
            recomputes=inputs.recomputes,
            in_flight_limit=inputs.in_flight_limit,
            bucket_numel=inputs.bucket_numel,
            secondary_growth=inputs.secondary_growth,
            memory_bytes=inputs.memory_bytes,
            logit_bytes=inputs.logit_bytes,
            schedule=Schedule.OVERLAPPED,
        )
        return found.with_gpu_cache(inputs.gpu_threshold) if self.system is System.FCDP else found

    @property
    def num_gpus(self) -> int:
        """Of all nodes."""
        return self.num_nodes * GPUS_PER_NODE

    @property
    def largest_batch(self) -> int:
        """Per GPU, by the account of memory; 0 where none fits."""
        return self.scenario().largest_batch()

    @property
    def fits(self) -> bool:
        """Whether the batch does."""
        return self.batch <= self.largest_batch

    def of(self, system: System) -> "Cell":
        """The same training by another system."""
        return replace(self, system=system)

    def at_largest_batch(self) -> "Cell | None":
        """The same at the largest batch that fits; None where none does."""
        batch = self.largest_batch
        return replace(self, batch=batch) if batch else None


@cache
def report_of(cell: Cell) -> ShardedReport:
    """One iteration, simulated if it has not been; deterministic."""
    return cell.scenario().run()


def samples_per_s(cell: Cell) -> float:
    """Of all GPUs together."""
    return cell.batch * cell.num_gpus / report_of(cell).iteration_s


def gain(cell: Cell, over: System) -> float:
    """How many times as many samples/s as another system has, at the same batch."""
    return samples_per_s(cell) / samples_per_s(cell.of(over))


def gain_at_largest_batches(cell: Cell, over: System) -> float | None:
    """The same, each at its own largest batch; None where one of them has none."""
    ours, theirs = cell.at_largest_batch(), cell.of(over).at_largest_batch()
    return samples_per_s(ours) / samples_per_s(theirs) if ours and theirs else None


def that_fit(cells: Iterable[Cell], *others: System) -> list[Cell]:
    """Those whose batch fits, for their own system and for others."""
    return [cell for cell in cells if cell.fits and all(cell.of(other).fits for other in others)]
