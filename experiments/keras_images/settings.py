"""What a training on images is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from coarse.errors import ConfigError
from experiments.keras_images.rates import SCHEDULES

MODES = ("single", "dense", "allreduce", "coarse")
PRECISIONS = ("float32", "float16", "bfloat16")
SMALLEST_IMAGE = 32
"""What ResNet50 shrinks to a single pixel."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How training images are varied."""

    least_area: float = 0.08
    """Smallest part of an image that a random crop keeps."""
    flip: bool = True
    """Whether half of the images are mirrored, left to right."""

    def __post_init__(self) -> None:
        if not 0 < self.least_area <= 1:
            raise ConfigError(f"--least-area must lie in (0, 1], got {self.least_area}", key="least_area")


@dataclass(frozen=True, kw_only=True)
class ImageTraining:
    """A training of ResNet50; the batch is the global one, of all workers together."""

    mode: str = "coarse"
    epochs: int = 90
    steps: int | None = None
    """Steps in all, in place of epochs."""
    batch: int = 32
    image_size: int = 224
    learning_rate: float = 0.1
    """The highest, for a batch of 256 images; others in proportion (Goyal et al. 2017)."""
    schedule: str = "cosine"
    warmup: float = 0.05
    """The part of all steps in which the rate grows from zero to its highest."""
    precision: str = "float32"
    """What layers compute in; weights are float32."""
    augmentation: Augmentation = Augmentation()
    seed: int = 1

    def __post_init__(self) -> None:
        for name, choices in (("mode", MODES), ("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} is one of {', '.join(choices)}, got {getattr(self, name)!r}", key=name)
        for name, least in (("epochs", 1), ("steps", 1), ("batch", 1), ("image_size", SMALLEST_IMAGE), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}", key=name)
        if not self.learning_rate > 0:
            raise ConfigError(f"--learning-rate must be above 0, got {self.learning_rate}", key="learning_rate")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"--warmup must lie in [0, 1), got {self.warmup}", key="warmup")

    def steps_per_epoch(self, num_images: int) -> int:
        """Whole global batches of the images; with `steps` given, all of them are one epoch."""
        return num_images // self.batch if self.steps is None else self.steps

    @property
    def num_epochs(self) -> int:
        """How often `fit` ends an epoch."""
        return self.epochs if self.steps is None else 1
