"""Sharded modes in the table of data-parallel ones: with equal model, machine, GPUs and compute times."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from coarse.cli.report.prediction import Scenarios, disturbed_notes
from coarse.cli.report.ranges import Ranges
from coarse.cli.report.run import Result
from coarse.errors import ConfigError
from coarse.protocol.features import part_of
from coarse.simulation.sharded.disturbed import Disturbances
from coarse.simulation.sharded.modes import ShardedPolicy
from coarse.simulation.sharded.report import PredictedIteration, ShardedReport
from coarse.simulation.sharded.scenario import CACHE_SHARE, ShardedScenario
from coarse.strategy.named import BUILT_IN, mode_name, options_from
from coarse.strategy.named_sharding import names_sharding, sharding_named
from coarse.strategy.sharding import PREDICTED, SIMULATED, Fcdp, Fsdp, Sharding, name_of

ALL = "all"
"""Name for every mode, data-parallel and sharded."""

AnyMode = str | Sharding
"""Data-parallel mode by its name, or a sharded mode."""


NOTE = (
    "Sharded modes gather a block of layers at a time, in the precision of the compute, and take the same times of "
    "compute; data-parallel ones synchronise gradients in fp32. luwu moves bfloat16, and its states lie on the "
    "optimizer node's disks; LuWu's baselines are asked for by themselves."
)


@dataclass(frozen=True, kw_only=True)
class ShardedOutcome:
    """Iteration of one sharded mode, and its GPU memory."""

    result: Result
    memory_bytes: int
    notes: tuple[str, ...] = ()
    """Sentences on iterations that differ."""


def any_modes_of(text: str | None, options: Sequence[str] = ()) -> Iterator[AnyMode]:
    """Yield the modes of a comma-separated list, each once.

    Without a list these are the data-parallel ones; "all" stands for every mode. `options` are those of classes of a
    user's own, such as "Mine.every=8".
    """
    names = list(BUILT_IN if text is None else dict.fromkeys(part.strip() for part in text.split(",")))
    if ALL in names:
        own = [name for name in names if ":" in name]
        names = list(dict.fromkeys((*BUILT_IN, *SIMULATED, *own)))
    shown = [mode_name(name) for name in names]
    if twice := [name for name in shown if shown.count(name) > 1]:
        raise ConfigError(f"--modes has two classes of the name {twice[0]!r}; name one otherwise", key="modes")
    for name in names:
        if name not in BUILT_IN and name not in PREDICTED and ":" not in name:
            known = ", ".join((*BUILT_IN, *PREDICTED))
            raise ConfigError(
                f"--modes must be one of {known}, {ALL}, or a strategy as MODULE:CLASS or FILE.py:CLASS, got {name!r}",
                key="modes",
            )
        yield _mode_of(name, options)


def _mode_of(name: str, options: Sequence[str]) -> AnyMode:
    if name in PREDICTED:
        return sharding_named(name, PREDICTED)
    if names_sharding(name):
        return sharding_named(name, SIMULATED, options=options_from(options, name))
    return name


def sharded_scenario(scenarios: Scenarios, mode: Sharding) -> ShardedScenario:
    """Return the scenario of a sharded mode over all workers, with the data-parallel compute times."""
    asked, profile = scenarios.question, scenarios.profile
    found = ShardedScenario(
        machine=scenarios.machine,
        model_name=scenarios.model.name,
        own_model=scenarios.model,
        profile=profile,
        precision=profile.precision,
        policy=ShardedPolicy(sharding=mode if mode.meets else Fsdp()),  # the others hold what fsdp does
        batch=asked.batch,
        num_nodes=asked.num_nodes,
        gpus_per_node=asked.num_workers // asked.num_nodes,
        ring_slow_down=scenarios.ring_slow_down,
        disturbances=Disturbances(
            slow_downs=asked.slow_downs_of(asked.num_workers), jitter=asked.chance(),
            degradations=asked.changes_of_links, num_iterations=asked.num_iterations,
        ),
    )  # fmt: skip
    return found.with_gpu_cache(CACHE_SHARE) if isinstance(mode, Fcdp) else found


def sharded_samples_s(
    ranges: Ranges, scenarios: Scenarios, mode: Sharding, on_progress: Callable[[float], None] = lambda _: None
) -> tuple[float, ...]:
    """Return a sharded mode's seconds per iteration at each point of its inputs."""
    def iteration_s(other: Scenarios) -> float:
        scenario = sharded_scenario(other, mode)
        return (scenario.run() if mode.meets else _predicted(scenario, mode)).iteration_s

    return ranges.everywhere(scenarios, iteration_s, on_progress)


def _predicted(scenario: ShardedScenario, mode: Sharding) -> PredictedIteration:
    found: PredictedIteration = part_of(mode.predicts_by)(scenario)
    return found


def sharded_outcome(scenarios: Scenarios, mode: Sharding) -> ShardedOutcome:
    """Return one sharded mode's numbers.

    Raises:
        CapacityError: a GPU's memory is too small for it.
    """
    scenario = sharded_scenario(scenarios, mode)
    report: ShardedReport | PredictedIteration
    notes: list[str] = []
    if mode.meets:
        memory = scenario.require_fit()
        reports = scenario.runs()
        report = reports[-1]
        iterations_s = tuple(each.iteration_s for each in reports)
        uses = [*zip((link.name for link in scenario.machine.links), report.link_nbytes, strict=True)]
    else:
        report = _predicted(scenario, mode)
        memory, uses, iterations_s = report.memory, [*report.uses], report.iterations_s
        notes += report.notes
    disturbances = scenario.disturbances
    notes += disturbed_notes(
        name_of(mode), iterations_s, disturbances.jitter, has_changes=bool(disturbances.degradations)
    )
    return ShardedOutcome(
        result=Result(
            name=name_of(mode),
            policy="-",
            iteration_s=report.iteration_s,
            compute_s=report.compute_s,
            exposed_s=max(0.0, report.exposed_s),
            idle_s=report.idle_s,
            link_bytes=tuple(use for use in sorted(uses, key=lambda use: -use[1]) if use[1] > 0),
        ),
        memory_bytes=memory.total_bytes + scenario.cached_bytes,
        notes=tuple(notes),
    )
