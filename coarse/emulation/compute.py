"""Compute of a worker in emulated seconds: this core's CPU time over a scale, or the times of a file.

CPU time of a process hardly moves if others want the same cores, and wall time does. Time within coarse's own calls is
left out.
"""

import contextlib
import threading
import time

import numpy as np

from coarse.emulation.compute_file import ComputeTimes, stretch
from coarse.hardware.compute import PEAK_SHARE
from coarse.hardware.machine import Accelerator
from coarse.protocol.clock import WallClock

_SIDE = 512
_LEAST_CPU_S = 0.2
_START = "start"
_MOST_PASSES = 1 << 12
"""Passes of a stretch that are kept: their median counts."""


class ComputeClock:
    """Clock of this process's CPU seconds between two calls of coarse, scaled to the modelled accelerator."""

    def __init__(self, scale: float, *, is_by_wall: bool = False) -> None:
        """Begin outside of a stretch.

        `scale` is how many times faster the accelerator computes than one core here. With `is_by_wall` the time that
        passes counts, and not that of this process's CPU.
        """
        self.scale = scale
        self._is_by_wall = is_by_wall
        self._own_threads: dict[int, float] = {}
        """Clock of each thread that works for coarse alone, and its last reading: it may end."""
        self._mark_s: float | None = None
        """CPU seconds at which the stretch began; None within calls of coarse."""

    def peek(self) -> float:
        """Return the emulated seconds of the stretch so far."""
        return 0.0 if self._mark_s is None else max(0.0, self._spent_s() - self._mark_s) / self.scale

    def stop(self) -> float:
        """End the stretch; return its emulated seconds."""
        seconds = self.peek()
        self._mark_s = None
        return seconds

    def start(self) -> None:
        """Begin a stretch."""
        self._mark_s = self._spent_s()

    def forget(self, cpu_s: float) -> None:
        """Count so many CPU seconds less of the stretch so far."""
        if self._mark_s is not None:
            self._mark_s += cpu_s

    def leave_out(self, thread: threading.Thread) -> None:
        """Leave out a thread's time from now on; it is alive."""
        assert thread.ident is not None
        self._own_threads[time.pthread_getcpuclockid(thread.ident)] = 0.0

    def _spent_s(self) -> float:
        if self._is_by_wall:
            return WallClock().now_s()
        for clock in self._own_threads:
            with contextlib.suppress(OSError):
                self._own_threads[clock] = time.clock_gettime(clock)
        return time.process_time() - sum(self._own_threads.values())


class Stretches:
    """Compute of a worker from one point to the next: measured, or as a file has it."""

    def __init__(self, given: ComputeTimes | None) -> None:
        """Begin without times; `given` are those of a file, None if all are measured."""
        self.given = given
        self.measured_s: dict[str, list[float]] = {}
        """Emulated seconds of each pass, by stretch."""
        self.missing_s = 0.0
        """Seconds of stretches that the file lacks."""
        self.first_missing = ""
        self._since_s = 0.0
        """Seconds measured since the last point."""
        self._last = _START

    def begin(self) -> None:
        """Begin the run: earlier compute has no time in it."""
        self.measured_s = {}
        self.missing_s, self.first_missing = 0.0, ""
        self._since_s, self._last = 0.0, _START

    def pass_time(self, measured_s: float, point: str | None) -> float:
        """Add measured seconds, up to a point if it has a name, and return the seconds that count now."""
        self._since_s += measured_s
        if point is None:
            return measured_s if self.given is None else 0.0
        last, since_s = self._last, self._since_s
        name = stretch(last, point)
        self._last, self._since_s = point, 0.0
        if self.given is None:
            found = self.measured_s.setdefault(name, [])
            if len(found) == _MOST_PASSES:
                del found[: _MOST_PASSES // 2]
            found.append(since_s)
            return measured_s
        given_s = self.given.between_s(last, point)
        if given_s is not None:
            return given_s
        self.missing_s += since_s
        self.first_missing = self.first_missing or name
        return since_s


def flops_per_cpu_s() -> float:
    """Return the float32 operations that a matrix product does in a second of CPU time here.

    It is measured for 0.2 s.
    """
    left = np.random.default_rng(0).random((_SIDE, _SIDE), np.float32)
    product = left @ left  # the first one allocates
    began_s, num_products = time.process_time(), 0
    while (spent_s := time.process_time() - began_s) < _LEAST_CPU_S:
        np.matmul(left, left, out=product)
        num_products += 1
    return 2.0 * _SIDE**3 * num_products / spent_s


def scale_of(accelerator: Accelerator, own_flops_per_s: float) -> float:
    """Return how many times faster an accelerator computes than a core of so many operations a second.

    The accelerator computes at the share of its peak that predictions assume (coarse.hardware.compute.PEAK_SHARE).
    """
    return accelerator.fp32_flops_per_s * PEAK_SHARE / own_flops_per_s
