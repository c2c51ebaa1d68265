"""Message of rank 0 about a restart, after its first step: the resumed step, and seconds of each part."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from coarse.protocol.clock import WallClock
from coarse.transport.launcher import told_to_this_job

RESTARTED = "COARSE_RESTARTED"
"""Variable of `coarse run`: seconds from the first sign of the end to the decision, from there until all processes had
ended, and the time of that, by the system's monotonic clock."""


def tell(text: str) -> None:
    """Write a message about the job's states on standard error."""
    sys.stderr.write(f"coarse: {text}\n")
    sys.stderr.flush()


def tell_for_all(worker: int) -> Callable[[str], None]:
    """Return `tell` on worker 0, which speaks for all, and a silent function on others."""
    return tell if worker == 0 else lambda _: None


class Progress:
    """Times of one process from the restart to its first commit."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._clock = WallClock()
        self._made_s = self._clock.now_s()
        self._restored_s: float | None = None
        self._from_step = 0
        self._is_first = True
        """True until the first commit of this process."""

    def on_restored(self, step: int) -> None:
        """Note that the states of a step are back."""
        self._restored_s, self._from_step = self._clock.now_s(), step

    def on_commit(self, step: int) -> None:
        """Note that a step is committed."""
        if not self._is_first:
            return
        self._is_first = False
        told = told_to_this_job(os.environ).get(RESTARTED)
        if self._restored_s is None or told is None:
            return
        noticed_s, ended_s, began_s = (float(part) for part in told.split(","))
        now_s = self._clock.now_s()
        parts = {
            "noticed": noticed_s, "ended": ended_s, "started": self._made_s - began_s,
            "restored": self._restored_s - self._made_s, "first step": now_s - self._restored_s,
        }  # fmt: skip
        shown = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
        self._tell(f"went on from step {self._from_step}; seconds: {shown}")
