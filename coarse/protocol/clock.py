# Reads the clock, and sleeps.
"""Clock that the whole package asks; no other module reads the time or sleeps."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

_sleep = time.sleep  # an emulated job puts its own in this place, for scripts
_perf_counter = time.perf_counter  # and where asked to in the places of this and time.time
_NS_PER_S = 1e9


def replace_sleep(sleep: Callable[[float], None]) -> None:
    """Replace the script's `time.sleep`; coarse's own stays."""
    time.sleep = sleep  # type: ignore[assignment]


def replace_time(now_s: Callable[[], float]) -> Callable[[], None]:
    """Replace the main thread's `time.perf_counter` and `time.time` by another clock from now on.

    They go on from their present values in that clock's seconds. Those of other threads, and coarse's own, stay.

    Returns:
        Function that restores the original ones.
    """
    begin_s = now_s()
    before = {name: getattr(time, name) for name in ("perf_counter", "perf_counter_ns", "time", "time_ns")}
    for name in ("perf_counter", "time"):
        real, real_ns = getattr(time, name), getattr(time, f"{name}_ns")
        shift_s = real() - begin_s
        setattr(time, name, partial(_shown_s, real, now_s, shift_s))
        setattr(time, f"{name}_ns", partial(_shown_ns, real_ns, now_s, shift_s))

    def give_back() -> None:
        for name, real in before.items():
            setattr(time, name, real)

    return give_back


def _shown_s(real: Callable[[], float], now_s: Callable[[], float], shift_s: float) -> float:
    return now_s() + shift_s if threading.current_thread() is threading.main_thread() else real()


def _shown_ns(real: Callable[[], int], now_s: Callable[[], float], shift_s: float) -> int:
    is_main = threading.current_thread() is threading.main_thread()
    return int((now_s() + shift_s) * _NS_PER_S) if is_main else real()


class Clock(Protocol):
    """Object that tells the time in seconds from a start of its own."""

    def now_s(self) -> float:
        """Return the seconds since the clock's start."""
        ...


class WallClock:
    """Real time, monotonic and equal for all processes of a node."""

    def now_s(self) -> float:
        """Return the seconds of the system's monotonic clock."""
        return _perf_counter()

    def sleep_s(self, seconds: float) -> None:
        """Sleep for some seconds."""
        _sleep(seconds)


class VirtualClock:
    """Time that jumps: for tests and simulations."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Return the seconds advanced so far."""
        return self._now_s

    def advance_to(self, now_s: float) -> None:
        """Jump forward; time never runs back."""
        if now_s < self._now_s:
            raise ValueError(f"virtual time is {self._now_s} s and cannot go back to {now_s} s")
        self._now_s = now_s
