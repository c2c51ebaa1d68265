# Pure: no MPI, threads, clock or environment.
"""Local SGD and DiLoCo: workers step alone, and exchange what their steps changed once in so many."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coarse.strategy import Coarse, ConfigError, Exchanges, Round


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Coarse):
    """Averages updates by Nesterov momentum every `every` steps (Douillard et al., 2023, algorithm 1)."""

    exchanges: ClassVar[Exchanges] = Exchanges.UPDATES
    every: int = 10
    lr: float = 1.0
    """Of the outer optimizer; 1 without momentum is local SGD."""
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"every must be at least 1, got {self.every}", key="every")

    @property
    def period(self) -> int:
        """Steps from one exchange to the next."""
        return self.every

    def round(self, number: int, decided: Round) -> Round:
        """Return the decided round for the last step of a period, and nobody's for the others."""
        return decided if number % self.every == self.every - 1 else decided.of_nobody()

    def outer(self, mean: np.ndarray, state: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the step of SGD with Nesterov momentum by the mean update, and its velocity."""
        if not self.momentum:
            return self.lr * mean, None
        velocity = mean if state is None else self.momentum * state + mean
        return self.lr * (mean + self.momentum * velocity), velocity
