"""The learning rate of every step: it grows linearly, then falls."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SCHEDULES = ("cosine", "thirds", "constant")
USUAL_BATCH = 256
"""The batch that a learning rate is stated for."""
FALLS = (1 / 3, 2 / 3, 8 / 9)
"""After these parts of the run `thirds` divides the rate by 10: after epochs 30, 60 and 80 of 90 (He et al. 2016)."""


def highest_rate(learning_rate: float, batch: int) -> float:
    """The rate for a batch of this many images, in proportion to one for USUAL_BATCH."""
    return learning_rate * batch / USUAL_BATCH


def rate_at(step: int, num_steps: int, highest: float, schedule: str, warmup: float) -> float:
    """The rate of a step, from 0; `warmup` is the part of all steps in which it grows."""
    num_growing = round(warmup * num_steps)
    if step < num_growing:
        return highest * (step + 1) / num_growing
    if schedule == "cosine":
        return highest * (1 + math.cos(math.pi * (step - num_growing) / (num_steps - num_growing))) / 2
    if schedule == "thirds":
        return highest * 0.1 ** sum(step >= part * num_steps for part in FALLS)
    return highest


def rates(num_steps: int, highest: float, schedule: str, warmup: float) -> NDArray[np.float32]:
    """(num_steps,) the rate of every step."""
    return np.array([rate_at(step, num_steps, highest, schedule, warmup) for step in range(num_steps)], np.float32)
