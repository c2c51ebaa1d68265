"""Predictions under alternative inputs: a mode's iteration at other points of all intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coarse.cli.report.prediction import Scenarios
from coarse.errors import ConfigError
from coarse.hardware.intervals import COMPUTE, FACTORS, RING, Interval, draws, intervals_of, machine_at
from coarse.protocol.toml import TomlFile
from coarse.simulation.job import Job
from coarse.simulation.training import simulate

NO_RANGES = "No ranges: these are simulations of the central values alone; --samples 6 asks for ranges."
MOST_SAMPLES = 10_000
NUM_SAMPLES = 6
"""Default number of points drawn beside the two ends."""
MOST_WORKERS_UNASKED = 16
"""Largest number of workers with ranges by default. Simulations of more take too long."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Points at which all modes are simulated again."""

    toml: TomlFile
    """File of the machine."""
    intervals: tuple[Interval, ...]
    num_samples: int
    fixed: Mapping[str, Any] | None = None
    """Fields of the machine with stated values."""

    def iterations_s(
        self, scenarios: Scenarios, mode: str, decided: Job, on_progress: Callable[[float], None] = lambda _: None
    ) -> tuple[float, ...]:
        """Return a mode's seconds per iteration at each point, with the facts and round of the decided job."""

        def iteration_s(other: Scenarios) -> float:
            job = replace(other.of(mode), profile_every=0).job_of(decided.facts, decided.round)
            return simulate(job, record=False).iteration_s

        return self.everywhere(scenarios, iteration_s, on_progress)

    def everywhere(
        self,
        scenarios: Scenarios,
        iteration_s: Callable[[Scenarios], float],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> tuple[float, ...]:
        """Return the result of `iteration_s` at each point."""
        points = list(draws(self.intervals, self.num_samples))
        found = []
        for number, values in enumerate(points, start=1):
            machine = machine_at(self.toml, values, self.fixed)
            machine = replace(machine, nvlink=scenarios.machine.nvlink, num_nodes=scenarios.machine.num_nodes)
            profile = scenarios.profile.slowed(values.get(COMPUTE, 1.0))
            question = replace(scenarios.question, ring_slow_down=values.get(RING, scenarios.question.ring_slow_down))
            found.append(iteration_s(replace(scenarios, machine=machine, profile=profile, question=question)))
            on_progress(number / len(points))
        return tuple(found)

    def note(self) -> str:
        """Return a note on the varied inputs, for the reader of a range."""
        stated = ", ".join(f"{each.key} {each.low:g} to {each.high:g}" for each in self.intervals)
        return (
            f"Ranges: {self.num_samples + 2} more simulations with {stated}; the table and the split of the central "
            "values. Ends are fast and slow altogether, points between are drawn (Latin hypercube)."
        )


def ranges_of(
    toml: TomlFile,
    asked: Sequence[str],
    num_samples: int | None,
    num_workers: int,
    fixed: Mapping[str, Any] | None = None,
    factors: Mapping[str, tuple[float, float]] | None = None,
) -> Ranges | None:
    """Return the points of a question, or None if it asks for none or its simulations would take long.

    `factors` are as of `intervals_of`.
    """
    if num_samples is None:
        num_samples = NUM_SAMPLES if asked or num_workers <= MOST_WORKERS_UNASKED else 0
    if not 0 <= num_samples <= MOST_SAMPLES:
        raise ConfigError(f"--samples must lie in 0..{MOST_SAMPLES}, got {num_samples}", key="samples")
    own = dict(map(interval_of, asked))
    found = tuple(each for each in intervals_of(toml, own, factors) if each.key not in (fixed or {}))
    return Ranges(toml=toml, intervals=found, num_samples=num_samples, fixed=fixed) if num_samples else None


def interval_of(text: str) -> tuple[str, tuple[float, float]]:
    """Return (field or factor, its ends) of an option `--interval compute=0.8:1.2`."""
    key, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        interval = Interval(key=key, low=float(low), high=float(high))
    except ConfigError as error:
        raise ConfigError(f"--interval {text}: {error}", key="interval") from None
    except ValueError:
        raise ConfigError(
            f"--interval must be KEY=LOW:HIGH such as {COMPUTE}=0.8:1.2, got {text!r}; KEY is a field of the machine's "
            f"file, or {', '.join(FACTORS)}",
            key="interval",
        ) from None
    return key, (interval.low, interval.high)
