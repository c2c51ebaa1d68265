"""What a worker computes, in emulated seconds: this core's CPU time over a scale.

CPU time of a process hardly moves where others want the same cores, and wall time does. What coarse itself does on
behalf of a call is left out.
"""

import time

import numpy as np

from coarse.hardware.compute import PEAK_SHARE
from coarse.hardware.machine import Accelerator

_SIDE = 512
_LEAST_CPU_S = 0.2


class ComputeClock:
    """CPU seconds of this process between two calls of coarse, as the modelled accelerator would take them."""

    def __init__(self, scale: float) -> None:
        """`scale`: how many times faster the accelerator computes than one core here."""
        self.scale = scale
        self._mark_s: float | None = None
        """CPU seconds at which the stretch began; None within calls of coarse."""

    def peek(self) -> float:
        """Return the emulated seconds of the stretch so far."""
        return 0.0 if self._mark_s is None else (time.process_time() - self._mark_s) / self.scale

    def stop(self) -> float:
        """End the stretch; return its emulated seconds."""
        seconds = self.peek()
        self._mark_s = None
        return seconds

    def start(self) -> None:
        """Begin a stretch."""
        self._mark_s = time.process_time()


def flops_per_cpu_s() -> float:
    """Return the float32 operations that a matrix product does in a second of CPU time here: measured, for 0.2 s."""
    left = np.random.default_rng(0).random((_SIDE, _SIDE), np.float32)
    product = left @ left  # the first one allocates
    began_s, num_products = time.process_time(), 0
    while (spent_s := time.process_time() - began_s) < _LEAST_CPU_S:
        np.matmul(left, left, out=product)
        num_products += 1
    return 2.0 * _SIDE**3 * num_products / spent_s


def scale_of(accelerator: Accelerator, own_flops_per_s: float) -> float:
    """Return how many times faster an accelerator computes than a core that does so many operations a second, at the
    share of its peak that predictions assume (coarse.hardware.compute.PEAK_SHARE)."""
    return accelerator.fp32_flops_per_s * PEAK_SHARE / own_flops_per_s
