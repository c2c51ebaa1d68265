# Pure: no MPI, threads, clock or environment.
"""Seconds of the run against emulated time: links degrade at seconds of the run, which stands between iterations.

Between two iterations ranks fill and check their arrays, which takes wall time and so emulated time, but is no part of
the run that is emulated.
"""

from collections.abc import Sequence

from coarse.hardware.degradation import RateChange


class RunClock:
    """Which rate changes are due at an emulated time; it stands until it is first set."""

    def __init__(self, changes: Sequence[RateChange]) -> None:
        """`changes` in order of time."""
        self._changes = list(changes)
        self._set_at_s = 0.0
        self._run_s = -1.0
        self._goes = False

    def set(self, at_s: float, run_s: float, *, goes: bool) -> None:
        """At an emulated time the run is `run_s` old; from then on it goes, or stands."""
        self._set_at_s, self._run_s, self._goes = at_s, run_s, goes

    def next_s(self) -> float | None:
        """The emulated time of the next change, as far as it is known."""
        if not self._changes:
            return None
        left_s = self._changes[0].at_s - self._run_s
        return self._set_at_s + max(0.0, left_s) if self._goes or left_s <= 0 else None

    def take_due(self, until_s: float) -> list[RateChange]:
        """Remove and return what happens until an emulated time, with emulated times."""
        due: list[RateChange] = []
        while (next_s := self.next_s()) is not None and next_s <= until_s:
            due.append(self._changes.pop(0)._replace(at_s=next_s))
        return due
