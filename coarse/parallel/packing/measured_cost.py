# Reads the clock. Reads and writes files.
"""Cost of samples on this machine: a step of the user's model, timed at several lengths; in a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coarse.errors import ConfigError
from coarse.parallel.packing.costs import Cost, fit_cost
from coarse.protocol.clock import WallClock
from coarse.protocol.toml import TomlFile, refuse_unknown_keys

LENGTHS = (64, 256, 1024, 2048)
ADDITIVE_WITHIN = 0.05
"""Share by which packed samples may take longer than apart. Beyond it they attend to one another, or are padded."""
Step = Callable[[Sequence[int]], object]
"""Forward and backward over one microbatch of samples of these lengths, packed as in training. It
returns when the device has ended them."""
_KEYS = ("quadratic", "linear", "scale")


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """Measured cost of one step."""

    cost: Cost
    seconds: tuple[tuple[int, float], ...]
    """Seconds of a sample alone, by its length."""
    packed: tuple[int, ...]
    """Lengths that were packed together."""
    packed_s: float

    @property
    def packed_share(self) -> float:
        """Share by which packed samples took longer than apart."""
        alone = dict(self.seconds)
        return self.packed_s / sum(alone[length] for length in self.packed) - 1

    @property
    def worst_share(self) -> float:
        """Largest error of the fitted cost at any length, as a share."""
        return max(abs(self.cost.of(length) / seconds - 1) for length, seconds in self.seconds)


def measure_cost(
    step: Step, lengths: Sequence[int] = LENGTHS, repeats: int = 5, now_s: Callable[[], float] | None = None
) -> MeasuredCost:
    """Time a step at each length and with samples packed: the fastest of several repeats after a warm-up.

    Args:
        step: forward and backward over one microbatch.
        lengths: tokens of samples, at least two that differ.
        repeats: timed steps at each length.
        now_s: function that tells the time; by default the wall clock.

    Raises:
        ConfigError: too few lengths, no repeats, or a step that takes no time.
    """
    if repeats < 1 or len(set(lengths)) < 2 or min(lengths) < 1:
        raise ConfigError(
            f"wanted at least one repeat and two lengths above 0, got {repeats} and {list(lengths)}", key="lengths"
        )
    clock = now_s or WallClock().now_s

    def seconds_of(sample_lengths: Sequence[int]) -> float:
        step(sample_lengths)
        took = []
        for _ in range(repeats):
            began_s = clock()
            step(sample_lengths)
            took.append(clock() - began_s)
        return min(took)

    distinct = sorted(set(lengths))
    alone = [(length, seconds_of([length])) for length in distinct]
    *_, short, long = distinct
    packed = (short, short, long)
    cost = fit_cost(distinct, [seconds for _, seconds in alone])
    return MeasuredCost(cost=cost, seconds=tuple(alone), packed=packed, packed_s=seconds_of(packed))


def save_cost(found: MeasuredCost, path: Path, of: str) -> None:
    """Write a file for `load_cost`; `of` names the timed step."""
    cost = found.cost
    lines = [
        f"# Measured {datetime.now(UTC):%Y-%m-%d}: {of}.",
        "# Seconds of forward and backward of a sample of s tokens: quadratic (s / scale)^2 + linear (s / scale).",
        *(f"# {length} tokens took {seconds:.6f} s, {cost.of(length) / seconds - 1:+.1%} by these coefficients."
          for length, seconds in found.seconds),
        f"# {', '.join(map(str, found.packed))} packed took {found.packed_share:+.1%} of their sum more.",
        *(f"{key} = {float(getattr(cost, key))!r}" for key in _KEYS),
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_cost(path: str | Path) -> Cost:
    """Return the cost of a file that `coarse profile --costs` saved.

    Raises:
        ConfigError: no such file, or one that states something else, with file and line.
    """
    toml = TomlFile.read(path)
    refuse_unknown_keys(toml.values, _KEYS, (), toml.where)
    for key in _KEYS:
        value = toml.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{toml.where((key,))}: {key} must be a number, got {value!r}", key=key)
    with toml.located(()):
        return Cost(**{key: float(toml.values[key]) for key in _KEYS})
