"""Prediction of one mode, data-parallel or sharded: numbers, memory, and the run that was simulated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from coarse.cli.report.prediction import OnProgress, Scenarios, predict, result_of
from coarse.cli.report.ranges import Ranges
from coarse.cli.report.run import Result
from coarse.cli.report.sharded_prediction import AnyMode, sharded_outcome, sharded_samples_s
from coarse.hardware.accelerator import Optimizer
from coarse.simulation.job import Job
from coarse.simulation.report import Report
from coarse.simulation.scenario import Scenario
from coarse.strategy.named import mode_name
from coarse.strategy.sharding import Sharding, name_of

Begin = Callable[[str], OnProgress]
"""Function that begins a task of that name and returns the function that receives its progress."""


class Simulated(NamedTuple):
    """Run of a data-parallel mode."""

    scenario: Scenario
    job: Job
    report: Report


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Numbers of one mode."""

    result: Result
    memory_bytes: int
    """Bytes that a GPU holds."""
    run: Simulated | None
    """Simulated run; None for sharded modes, whose timelines `coarse shard` does not draw either."""
    notes: tuple[str, ...] = ()
    """Sentences on a sharded mode's iterations."""


def name_of_mode(mode: AnyMode) -> str:
    """Return a mode's name as tables and rows have it."""
    return name_of(mode) if isinstance(mode, Sharding) else mode_name(mode)


def outcome_of(
    scenarios: Scenarios, mode: AnyMode, ranges: Ranges | None, begin: Begin = lambda _: lambda _: None, *,
    record: bool = True,
) -> Outcome:  # fmt: skip
    """Simulate one mode, and again at all points of its ranges.

    Args:
        scenarios: The question, looked up.
        mode: A data-parallel mode's name, or a sharded mode.
        ranges: Other inputs; None without.
        begin: Shows progress.
        record: Keep every transfer, for timelines.

    Raises:
        CapacityError: a GPU's memory is too small.
        ConfigError: the machine or the question does not suit the mode.
    """
    name = name_of_mode(mode)
    if isinstance(mode, Sharding):
        found = sharded_outcome(scenarios, mode)
        samples_s = sharded_samples_s(ranges, scenarios, mode, begin(f"{name}: ranges")) if ranges else ()
        return Outcome(
            result=replace(found.result, samples_s=samples_s), memory_bytes=found.memory_bytes, run=None,
            notes=found.notes,
        )  # fmt: skip
    scenario = scenarios.of(mode)
    memory = scenario.gpu_memory(Optimizer(scenarios.question.optimizer))
    job, report = predict(scenario, begin(f"{name}: plan"), begin(f"{name}: simulate"), record=record)
    samples_s = ranges.iterations_s(scenarios, mode, job, begin(f"{name}: ranges")) if ranges else ()
    result = replace(result_of(scenario, job, report), samples_s=samples_s)
    return Outcome(result=result, memory_bytes=memory.total_bytes, run=Simulated(scenario, job, report))
