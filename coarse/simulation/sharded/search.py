# Pure: no MPI, threads, clock or environment.
"""Search of the plans by which FSDP may train one model on one machine, for the fastest that fits.

A plan states the blocks that are gathered together, the number of GPUs that share parameters (F), whether a unit is
freed behind its forward, the gathers ahead, and the batch. Compute grows with the batch and transfers do not, so each
plan is simulated at the largest batch that fits, unless the batch is given.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from coarse.errors import CapacityError
from coarse.simulation.sharded.modes import Schedule
from coarse.simulation.sharded.report import ShardedReport
from coarse.simulation.sharded.scenario import ShardedScenario
from coarse.strategy.sharding import Fsdp, Hybrid, Sharding, factors_of

_ALIKE = 1e-9
"""Relative difference of samples/s below which plans are one."""


class Prefetch(enum.StrEnum):
    """Passes in which a unit is gathered while another is computed (FSDP 3.3.2 and 3.3.3)."""

    BOTH = "both"
    """Prefetch of the next unit, in forward and in backward: as live, and FSDP's default."""
    FORWARD = "forward"
    """Prefetch in forward alone."""
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class ShardedPlan:
    """Plan to shard a model."""

    blocks_per_unit: int
    """Neighbouring blocks that are gathered together; 0: the whole model."""
    factor: int
    """GPUs that share parameters."""
    reshards: bool
    prefetch: Prefetch

    def sharding(self, num_gpus: int) -> Sharding:
        """Return its mode."""
        return Fsdp() if self.factor == num_gpus else Hybrid(factor=self.factor)

    def of(self, asked: ShardedScenario) -> ShardedScenario:
        """Return the scenario of this plan."""
        policy = replace(asked.policy, sharding=self.sharding(asked.num_gpus), reshards=self.reshards)
        return replace(
            asked, policy=policy, blocks_per_unit=self.blocks_per_unit,
            in_flight_limit=1 if self.prefetch is Prefetch.NONE else 2,
            backward_prefetch=self.prefetch is Prefetch.BOTH,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FoundPlan:
    """Plan that fits, simulated."""

    plan: ShardedPlan
    batch: int
    samples_per_s: float
    """Samples per second of all GPUs together."""
    memory_bytes: int
    """Memory of a GPU, at the peak."""
    report: ShardedReport
    alike: tuple[ShardedPlan, ...] = ()
    """Other plans that take the same time and batch."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """Outcome of a search."""

    found: tuple[FoundPlan, ...]
    """Plans that fit, the fastest first."""
    num_too_large: int
    """Number of plans that fit with no batch, or not with the given one."""

    @property
    def ahead(self) -> float:
        """Samples/s of the first over those of the second; 1 if there is no second."""
        return self.found[0].samples_per_s / self.found[1].samples_per_s if len(self.found) > 1 else 1.0


def plans_of(asked: ShardedScenario) -> Iterator[ShardedPlan]:
    """Yield every plan: blocks of a unit, each F that fits the nodes, freed or not, prefetch.

    Units have 1, 2, 4, ... blocks or all of them.
    """
    num_blocks = sum(not unit.is_of_root for unit in replace(asked, blocks_per_unit=1).units)
    counts = [1]
    while 2 * counts[-1] < num_blocks:
        counts.append(2 * counts[-1])
    for count in (*counts, 0):
        for factor in reversed(factors_of(asked.num_nodes, asked.gpus_per_node)):
            for reshards in (True, False):
                for prefetch in Prefetch:
                    plan = ShardedPlan(blocks_per_unit=count, factor=factor, reshards=reshards, prefetch=prefetch)
                    if not _is_needless(plan, has_root=asked.schedule is Schedule.FSDP2):
                        yield plan


def _is_needless(plan: ShardedPlan, *, has_root: bool) -> bool:
    """Return whether a plan repeats another one: nothing is gathered, or all once, as the root's unit."""
    is_plain = plan.reshards and plan.prefetch is Prefetch.BOTH
    gathers_once = plan.factor == 1 or (plan.blocks_per_unit == 0 and has_root)
    return gathers_once and not is_plain


def search_plans(
    asked: ShardedScenario, *, at_largest_batch: bool = False,
    on_progress: Callable[[float], None] = lambda _: None, plans: Sequence[ShardedPlan] | None = None,
) -> Searched:  # fmt: skip
    """Simulate plans of a scenario.

    Args:
        asked: Model, machine, GPUs, batch and schedule.
        at_largest_batch: Take each plan's largest power of two that fits, in place of the scenario's batch.
        on_progress: Told the share that is done.
        plans: Those to simulate; all by default.

    Raises:
        CapacityError: none fits; it says what the one that needs least would need.
    """
    chosen = list(plans_of(asked)) if plans is None else list(plans)
    found: list[FoundPlan] = []
    refused: list[tuple[int, CapacityError]] = []
    for number, plan in enumerate(chosen, start=1):
        scenario = plan.of(asked)
        if at_largest_batch:
            scenario = replace(scenario, batch=scenario.largest_batch() or 1)
        try:
            memory_bytes = scenario.require_fit().total_bytes
        except CapacityError as error:
            refused.append((scenario.account().total_bytes, error))
        else:
            report = scenario.run()
            samples = scenario.batch * scenario.num_microbatches * scenario.num_gpus
            found.append(
                FoundPlan(
                    plan=plan, batch=scenario.batch, samples_per_s=samples / report.iteration_s,
                    memory_bytes=memory_bytes, report=report,
                )
            )  # fmt: skip
        on_progress(number / len(chosen))
    if not found:
        raise min(refused, key=lambda each: each[0])[1]
    ranked = sorted(found, key=lambda each: (-each.samples_per_s, each.memory_bytes))
    return Searched(found=tuple(_without_alike(ranked)), num_too_large=len(refused))


def _without_alike(ranked: Sequence[FoundPlan]) -> Iterator[FoundPlan]:
    """Yield plans, of which those that take the same time are one: that with the least memory."""
    waiting: list[FoundPlan] = []
    for each in ranked:
        if waiting and not _is_alike(waiting[0], each):
            yield _merged(waiting)
            waiting = []
        waiting.append(each)
    if waiting:
        yield _merged(waiting)


def _is_alike(one: FoundPlan, other: FoundPlan) -> bool:
    return one.batch == other.batch and abs(one.samples_per_s / other.samples_per_s - 1) < _ALIKE


def _merged(alike: Sequence[FoundPlan]) -> FoundPlan:
    first, *others = sorted(alike, key=lambda each: each.memory_bytes)
    return replace(first, alike=tuple(each.plan for each in others))
