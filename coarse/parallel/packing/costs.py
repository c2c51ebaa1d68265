# Pure: no MPI, threads, clock or environment.
"""What a sample costs by its length."""

from collections.abc import Iterable
from dataclasses import dataclass

from coarse.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of forward and backward of a sample of s tokens: a (s / scale)^2 + b (s / scale).

    Packed samples attend to themselves alone, so that a microbatch costs the sum of its samples.
    """

    quadratic: float
    """a: attention."""
    linear: float
    """b: everything else."""
    scale: float = 1.0
    """Tokens that count as one."""

    def __post_init__(self) -> None:
        if min(self.quadratic, self.linear) < 0 or self.quadratic + self.linear <= 0 or self.scale <= 0:
            raise ConfigError(
                f"a cost has coefficients of at least 0, not both 0, and a scale above 0; got {self}", key="cost"
            )

    def of(self, length: int) -> float:
        """Of one sample."""
        scaled = length / self.scale
        return self.quadratic * scaled * scaled + self.linear * scaled

    def of_all(self, lengths: Iterable[int]) -> float:
        """Of several, one after the other or packed."""
        return sum(map(self.of, lengths))


QWEN_1_5B = Cost(quadratic=1.982, linear=2.612, scale=32_000)
"""DeepSeek-R1-Distill-Qwen-1.5B on an A100, as measured in sail-sg/odc (ODC's code)."""
QWEN_7B = Cost(quadratic=4.348, linear=8.768, scale=32_000)
"""The same of 7B."""
TOKENS = Cost(quadratic=0.0, linear=1.0)
"""As if a sample cost its tokens: what packing by length balances."""
