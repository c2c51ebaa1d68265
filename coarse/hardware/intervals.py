# Pure: no MPI, threads, clock or environment.
"""Intervals of a machine's uncertain numbers, draws from them, and the machines that they make.

A machine file states intervals of its fields in a table `[intervals]`, in the units in which it states the fields.
Every machine has four more: the speed of its compute, all its rates together, all its latencies together, and the
factor on workers' compute while a ring of theirs is under way.
"""

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coarse.errors import ConfigError
from coarse.hardware.machine import Machine
from coarse.hardware.machine_field import QUANTITIES, changed_machine, stated_value
from coarse.hardware.machine_file import TABLES_OF_MANY, TABLES_OF_ONE
from coarse.hardware.quantities import RATES, TABLES, TIMES, Quantity
from coarse.protocol.toml import TomlFile

COMPUTE, RATE, LATENCY, RING = "compute", "rates", "latencies", "ring_slow_down"
FACTORS = {
    COMPUTE: (0.9, 1.1, "runs of one job differ by as much"),
    RATE: (0.9, 1.1, "what benchmarks reach of one link differs by as much"),
    LATENCY: (0.5, 2.0, "start-ups are seldom published, and differ between drivers"),
    RING: (1.0, 1.4, "measured on A100, H100, MI210 and MI250: 1.19 in the mean, 1.4 at most (arXiv 2507.03114)"),
}
"""Factors of every machine, as name -> (low, high, why). They are on the times of compute, on all rates of wires,
pools, devices and coherence, on all their latencies, and on compute beside a collective of the workers. All but the
last are assumptions."""
_LOW_IS_FAST = ("latency", "growth", LATENCY, COMPUTE, RING)
_OF_LINKS = ("memory_device", "coherence", "pool", "wire")


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Interval of one input, with its ends as the machine's file states it, or as factors."""

    key: str
    """Field of the machine's file, or one of `FACTORS`."""
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and 0 <= self.low <= self.high):
            raise ConfigError(
                f"the interval of {self.key} must go up from at least 0, got {self.low:g} to {self.high:g}; correct it",
                key=self.key,
            )

    @property
    def fast(self) -> float:
        """End with which an iteration takes less time."""
        return self.low if any(word in self.key for word in _LOW_IS_FAST) else self.high

    @property
    def slow(self) -> float:
        """End with which an iteration takes more time."""
        return self.high if self.fast == self.low else self.low

    def at(self, share: float) -> float:
        """Return the value at a share from 0, the low end, to 1; even steps of the logarithm if possible."""
        if self.low > 0:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


def intervals_of(
    toml: TomlFile, own: Mapping[str, tuple[float, float]], factors: Mapping[str, tuple[float, float]] | None = None
) -> tuple[Interval, ...]:
    """Return the intervals that the file states, and the four of every machine; `own` goes before both.

    `factors` are the ends of some of `FACTORS` if a job knows them better than every machine does; equal ends if one is
    stated.

    Raises:
        ConfigError: with file and line, an interval that is not ordered, of a field that the file does not
            state, or that does not hold the field's value.
    """
    stated = toml.values.get("intervals", {})
    if not isinstance(stated, Mapping):
        raise ConfigError(f"{toml.where(('intervals',))}: write one table [intervals]", key="intervals")
    found = {name: (low, high) for name, (low, high, _) in FACTORS.items()}
    found.update(factors or {})
    for key, ends in stated.items():
        with toml.located(("intervals",)):
            found[key] = _ends(key, ends)
            _require_central(toml, key, found[key])
    for key, ends in own.items():
        _require_central(toml, key, ends)
    return tuple(Interval(key=key, low=low, high=high) for key, (low, high) in {**found, **own}.items() if low < high)


def draws(intervals: Sequence[Interval], num_samples: int, seed: int = 0) -> Iterator[dict[str, float]]:
    """Yield all inputs at their fast ends, all at their slow ends, and so many of a Latin hypercube."""
    yield {each.key: each.fast for each in intervals}
    yield {each.key: each.slow for each in intervals}
    draw = np.random.default_rng(seed)
    places = [draw.permutation(num_samples) + draw.random(num_samples) for _ in intervals]
    for number in range(num_samples):
        yield {
            each.key: each.at(float(column[number]) / num_samples)
            for each, column in zip(intervals, places, strict=True)
        }


def machine_at(toml: TomlFile, values: Mapping[str, float], fixed: Mapping[str, Any] | None = None) -> Machine:
    """Return the machine with inputs at other values; `fixed` are stated fields, which no factor changes."""
    fixed = dict(fixed or {})
    fields = {key: value for key, value in values.items() if key not in FACTORS and key not in fixed}
    if toml.values.get("intervals"):
        toml = TomlFile(toml.path, toml.text, {key: value for key, value in toml.values.items() if key != "intervals"})
    kept = {*fields, *fixed}
    scaled = _scaled(toml, values.get(RATE, 1.0), values.get(LATENCY, 1.0), kept)
    return changed_machine(scaled, {**fields, **fixed})


def _scaled(toml: TomlFile, rates: float, latencies: float, kept: Collection[str]) -> TomlFile:
    """Return the file with all rates and latencies multiplied, but for those that are kept.

    They are those of links, memory devices, pools and coherence.
    """
    values = copy.deepcopy(toml.values)
    for kind, name, table in _tables(values):
        for quantity in QUANTITIES.get(kind, ()):
            own = {key.removeprefix(f"{name}.") for key in kept if key.startswith(f"{name}.")}
            if not own & set(quantity.keys):
                _scale(table, quantity, rates, latencies)
    return TomlFile(toml.path, toml.text, values)


def _tables(values: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (kind, name in fields, table) of everything that carries or keeps bytes."""
    for kind in _OF_LINKS:
        if kind in TABLES_OF_ONE and kind in values:
            yield kind, kind, values[kind]
        elif kind in TABLES_OF_MANY:
            yield from ((kind, f"{kind}.{entry['name']}", entry) for entry in values.get(kind, ()))


def _scale(table: dict[str, Any], quantity: Quantity, rates: float, latencies: float) -> None:
    for key in quantity.keys:
        if key not in table:
            continue
        if quantity.units is TABLES:
            table[key] = [[nbytes, time / rates] for nbytes, time in table[key]]
        elif quantity.units is RATES:
            table[key] *= rates
        elif quantity.units is TIMES:
            table[key] *= latencies


def _ends(key: str, ends: object) -> tuple[float, float]:
    numbers = ends if isinstance(ends, list) and len(ends) == 2 else ["", ""]
    low, high = (end if isinstance(end, int | float) and not isinstance(end, bool) else math.nan for end in numbers)
    if math.isnan(low) or math.isnan(high):
        raise ConfigError(f"the interval of {key} must be [low, high], two numbers, got {ends!r}; correct it", key=key)
    Interval(key=key, low=low, high=high)
    return float(low), float(high)


def _require_central(toml: TomlFile, key: str, ends: tuple[float, float]) -> None:
    if key.startswith("accelerator."):
        raise ConfigError(f"{key} has no interval of its own; state one of {COMPUTE}, a factor on its times", key=key)
    if "." not in key and key not in FACTORS:
        raise ConfigError(
            f"there is no input {key}; state an interval of a field of the machine's file, such as "
            f"wire.cci.latency_us, or of {', '.join(FACTORS)}",
            key=key,
        )
    central = 1.0 if key in FACTORS else stated_value(toml, key)
    if not ends[0] <= central <= ends[1]:
        raise ConfigError(
            f"the interval of {key} must hold its value, {central:g}, got {ends[0]:g} to {ends[1]:g}; correct its "
            "ends, or remove it",
            key=key,
        )
