"""What a training on the digits is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from coarse.errors import ConfigError

STRATEGIES = ("none", "mirrored", "coarse")
"""Each is a module of this package, whose `train` is a user's script."""


@dataclass(frozen=True, kw_only=True)
class DigitsTraining:
    """A training on scikit-learn's digits; the batch is the global one, of all workers together."""

    strategy: str = "coarse"
    epochs: int = 12
    batch: int = 64
    learning_rate: float = 0.05
    seed: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"a strategy is one of {', '.join(STRATEGIES)}, got {self.strategy!r}", key="strategy")
        for name, least in (("epochs", 1), ("batch", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} must be at least {least}, got {getattr(self, name)}", key=name)
        if not self.learning_rate > 0:
            raise ConfigError(f"--learning-rate must be above 0, got {self.learning_rate}", key="learning_rate")


def check_batch(batch: int, num_images: int, rank: int, num_workers: int) -> None:
    """Refuse a global batch that the workers cannot share evenly, or that the images do not fill."""
    if batch % num_workers or batch > num_images:
        raise ConfigError(
            f"rank {rank}: the global batch must be a multiple of {num_workers}, the number of workers, and at most "
            f"{num_images}, the images to train on, but is {batch}; give another --batch, or start other workers",
            key="batch",
        )
