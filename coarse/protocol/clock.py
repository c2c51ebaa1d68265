# Reads the clock, and sleeps.
"""The clock that everything asks; nothing else in the package reads the time or sleeps."""

import time
from collections.abc import Callable
from typing import Protocol

_sleep = time.sleep  # an emulated job puts its own in this place, for scripts


def replace_sleep(sleep: Callable[[float], None]) -> None:
    """Have the script's `time.sleep` be another; coarse's own stays."""
    time.sleep = sleep  # type: ignore[assignment]


_PROCESS_SCHEDULED_CLOCK = 2
"""CPUCLOCK_SCHED of Linux: what clock_getcpuclockid(3) asks for."""


def cpu_clock_of(process_id: int) -> int:
    """Return the clock of the CPU time that all threads of a process have used, as clock_getcpuclockid(3) makes it."""
    return (~process_id << 3) | _PROCESS_SCHEDULED_CLOCK


class Clock(Protocol):
    """Anything that tells the time in seconds from a start of its own."""

    def now_s(self) -> float:
        """Seconds since the clock's start."""
        ...


class WallClock:
    """Real time, monotonic, the same for all processes of a node."""

    def now_s(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.perf_counter()

    def sleep_s(self, seconds: float) -> None:
        """Do nothing for a while."""
        _sleep(seconds)


class VirtualClock:
    """Time that jumps: for tests and simulations."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds advanced so far."""
        return self._now_s

    def advance_to(self, now_s: float) -> None:
        """Jump forward; time never runs back."""
        if now_s < self._now_s:
            raise ValueError(f"virtual time is {self._now_s} s and cannot go back to {now_s} s")
        self._now_s = now_s
