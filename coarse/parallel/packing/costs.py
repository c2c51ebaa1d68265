# Pure: no MPI, threads, clock or environment.
"""Cost of a sample by its length."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coarse.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of forward and backward of a sample of s tokens: a (s / scale)^2 + b (s / scale).

    Packed samples attend to themselves alone, so that a microbatch costs the sum of its samples.
    """

    quadratic: float
    """Coefficient a: attention."""
    linear: float
    """Coefficient b: everything else."""
    scale: float = 1.0
    """Tokens that count as one."""

    def __post_init__(self) -> None:
        if min(self.quadratic, self.linear) < 0 or self.quadratic + self.linear <= 0 or self.scale <= 0:
            raise ConfigError(
                f"a cost has coefficients of at least 0, not both 0, and a scale above 0; got {self}", key="cost"
            )

    def of(self, length: int) -> float:
        """Return the cost of one sample."""
        scaled = length / self.scale
        return self.quadratic * scaled * scaled + self.linear * scaled

    def of_all(self, lengths: Iterable[int]) -> float:
        """Return the cost of several samples, one after the other or packed."""
        return sum(map(self.of, lengths))


def fit_cost(lengths: Sequence[int], seconds: Sequence[float], scale: float = 1024.0) -> Cost:
    """Return the cost whose relative errors are least, by least squares.

    So short samples count as much as long ones.

    Args:
        lengths: tokens of samples, at least two that differ.
        seconds: time of each, above 0.
        scale: tokens that count as one.

    Raises:
        ConfigError: too few lengths, or times of 0.
    """
    if len(lengths) != len(seconds) or len(set(lengths)) < 2 or min(lengths) < 1 or min(seconds) <= 0:
        raise ConfigError(
            f"a s^2 + b s follows from at least two lengths above 0 and their seconds above 0; got {list(lengths)} and "
            f"{list(seconds)}",
            key="lengths",
        )
    squares = [(length / scale) ** 2 / s for length, s in zip(lengths, seconds, strict=True)]
    lines = [length / scale / s for length, s in zip(lengths, seconds, strict=True)]
    ones = [1.0] * len(lines)
    along = _dot(squares, lines) / _dot(lines, lines)
    across = [square - along * line for square, line in zip(squares, lines, strict=True)]  # orthogonal to the lines
    alone = _dot(lines, ones) / _dot(lines, lines)
    rest = [one - alone * line for one, line in zip(ones, lines, strict=True)]
    a = _dot(across, rest) / _dot(across, across)
    b = alone - a * along
    if a < 0:
        a, b = 0.0, alone
    elif b < 0:
        a, b = _dot(squares, ones) / _dot(squares, squares), 0.0
    return Cost(quadratic=a, linear=b, scale=scale)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(one * other for one, other in zip(left, right, strict=True))


QWEN_1_5B = Cost(quadratic=1.982, linear=2.612, scale=32_000)
"""Cost of DeepSeek-R1-Distill-Qwen-1.5B on an A100, as measured in sail-sg/odc (ODC's code)."""
QWEN_7B = Cost(quadratic=4.348, linear=8.768, scale=32_000)
"""Cost of DeepSeek-R1-Distill-Qwen-7B on an A100, as measured there."""
TOKENS = Cost(quadratic=0.0, linear=1.0)
"""Cost of a sample as its number of tokens, which packing by length balances."""
