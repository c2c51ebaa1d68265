# Pure: no MPI, threads, clock or environment.
"""Question about sharded training, as `coarse shard` takes it: declared once, checked when it is made."""

from dataclasses import dataclass
from typing import Annotated

from coarse.collectives.shape import Collective
from coarse.hardware.machine import Machine
from coarse.hardware.models import Model
from coarse.protocol.fields import Says, check
from coarse.simulation.question import LinkOptions, SlowDownOptions
from coarse.simulation.sharded.disturbed import Disturbances
from coarse.simulation.sharded.modes import Schedule, ShardedPolicy
from coarse.simulation.sharded.scenario import CACHE_SHARE, PEAK_SHARE, ShardedScenario
from coarse.strategy.sharding import SIMULATED, Fsdp, Hybrid, Sharding, ZeroPP

_GPT_SEQUENCE = 256
_MANY = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ShardedQuestion(SlowDownOptions, LinkOptions):
    """Model, machine, and the sharding of the model over its GPUs."""

    machine: Annotated[str, Says("A preset, or the path of a machine file (.toml).")] = "fcdp-a40-10gbe"
    model: Annotated[str, Says("A GPT by its name or shape, or a model of your own.")] = "gpt-10b"
    batch: Annotated[int, Says(
        "Samples per GPU and microbatch; 0: each mode's largest power of two that fits.", low=0, high=1 << 20
    )] = 8
    num_nodes: Annotated[int, Says("Nodes of the cluster.", low=1, high=_MANY, key="nodes")] = 2
    gpus_per_node: Annotated[int, Says("GPUs per node; 0: all.", low=0, high=_MANY, key="gpus")] = 0
    modes: Annotated[str, Says(
        f"Of {','.join(SIMULATED)}, MODULE:CLASS or FILE.py:CLASS.", wanted="modes with commas between"
    )] = ",".join(SIMULATED)
    options: Annotated[tuple[str, ...], Says(
        "An option of a class of yours: NAME=VALUE or CLASS.NAME=VALUE.", flag="--set"
    )] = ()
    factor: Annotated[int, Says(
        "GPUs that share a model's parameters in mode hybrid (FSDP's F): a part of a node or whole nodes; 0: a node's.",
        low=0, high=_MANY,
    )] = 0
    blocks: Annotated[int, Says("Neighbouring blocks gathered together; 0: the whole model.", low=0, high=_MANY)] = 1
    keep_gathered: Annotated[bool, Says(
        "Whether units stay gathered from forward to backward (reshard_after_forward=False)."
    )] = False
    in_flight: Annotated[int, Says("Units that may be gathered at once.", low=1, high=_MANY)] = 2
    backward_prefetch: Annotated[bool, Says("Whether backward gathers a unit while another is computed.")] = True
    microbatches: Annotated[int, Says("Passes between two steps of the optimizer.", low=1, high=_MANY)] = 1
    reduce_each: Annotated[bool, Says(
        "Whether gradients are reduced behind each microbatch and kept sharded, and not the last alone."
    )] = False
    collective: Annotated[str, Says("hierarchical, as live, or ring.", choices=tuple(Collective))] = (
        Collective.HIERARCHICAL.value
    )
    schedule: Annotated[str, Says(
        "fsdp2, as live, or overlapped: reductions beside compute, and no root unit that stays.",
        choices=tuple(Schedule),
    )] = Schedule.FSDP2.value
    lora_rank: Annotated[int, Says(
        "Of adapters at q, k, v and o; 0: full fine-tuning.", low=0, high=_MANY
    )] = 0
    freeze: Annotated[tuple[str, ...], Says(
        "A pattern with * and ? of parameters that are not trained, such as 'h.0.*'.", is_swept=False
    )] = ()
    sequence: Annotated[int | None, Says(
        "Tokens of a sample; of GPTs 256 by default.", low=1, high=1 << 24
    )] = None
    peak_share: Annotated[float, Says("Share of the GPU's fp16 peak that it computes at.")] = PEAK_SHARE
    recompute: Annotated[bool, Says("Whether backward computes forward again.")] = False
    quantised: Annotated[bool, Says("Whether zeropp gathers int8 in forward.")] = False
    tau: Annotated[float, Says("Share of GPU memory below which fcdp keeps shards there.")] = CACHE_SHARE
    num_iterations: Annotated[int, Says(
        "Iterations that --jitter and --degrade make differ; the last is shown.", low=1, high=100_000, key="iterations"
    )] = 3

    def __post_init__(self) -> None:
        check(self, as_flags=True)
        _ = self.changes_of_links, self.chance(), self.slow_downs

    def as_asked(self, sharding: Sharding) -> Sharding:
        """Return a mode with the options that are asked for it."""
        if type(sharding) is ZeroPP:
            return ZeroPP(quantised=self.quantised)
        return Hybrid(factor=self.factor) if type(sharding) is Hybrid else sharding

    def scenario(self, machine: Machine, own: Model | None, sharding: Sharding | None = None) -> ShardedScenario:
        """Return the scenario of one mode, fsdp by default.

        Args:
            machine: The one of that name, with nodes enough.
            own: A model that is none of the GPTs.
            sharding: The mode.
        """
        gpus_per_node = self.gpus_per_node or len(machine.tree.gpus)
        return ShardedScenario(
            machine=machine,
            model_name=own.name if own else self.model,
            own_model=own,
            policy=ShardedPolicy(
                sharding=self.as_asked(sharding or Fsdp()), collective=Collective(self.collective),
                reshards=not self.keep_gathered,
            ),
            batch=self.batch or 1,
            num_nodes=self.num_nodes,
            gpus_per_node=gpus_per_node,
            sequence=_GPT_SEQUENCE if self.sequence is None else self.sequence,
            lora_rank=self.lora_rank,
            frozen=self.freeze,
            peak_share=self.peak_share,
            recomputes=self.recompute,
            in_flight_limit=self.in_flight,
            backward_prefetch=self.backward_prefetch,
            schedule=Schedule(self.schedule),
            blocks_per_unit=self.blocks,
            num_microbatches=self.microbatches,
            reduces_each=self.reduce_each,
            disturbances=Disturbances(
                slow_downs=self.slow_downs_of(self.num_nodes * gpus_per_node), jitter=self.chance(),
                degradations=self.changes_of_links, num_iterations=self.num_iterations,
            ),
        )  # fmt: skip
