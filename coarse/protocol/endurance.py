# Pure: no MPI, threads, clock or environment.
"""Options of the faults that a job of `coarse run` outlives: restarts, copies on disk and preemption."""

from dataclasses import dataclass
from typing import Annotated

from coarse.protocol.fields import Says, check


@dataclass(frozen=True, kw_only=True)
class Endurance:
    """Faults that a job outlives, and the means against them; see docs/faults.md."""

    restarts: Annotated[int, Says(
        "How often the job may be started again when any of its processes dies: it goes on from what ct.Resumable has "
        "committed, with the same bits (docs/faults.md).",
        low=0,
    )] = 0
    cold: Annotated[bool, Says(
        "With --restarts: no process imports torch and TensorFlow beside the job; ranks that start again do so.",
        flag="--cold",
    )] = False
    preload: Annotated[str | None, Says(
        "With --restarts: further modules that ranks which start again have imported, with commas between them.",
    )] = None
    keep: Annotated[str | None, Says(
        "A folder on disk for what ct.Resumable has committed, written each minute, at SIGTERM and at a bad end; "
        "--resume goes on from it.",
    )] = None
    resume: Annotated[str | None, Says(
        "A folder that --keep has written: the job goes on from its newest whole copy.",
    )] = None
    preempted_status: Annotated[int, Says("Status after SIGTERM with --keep.", low=0, high=255)] = 75

    def __post_init__(self) -> None:
        check(self, as_flags=True)

    @property
    def is_asked(self) -> bool:
        """True if states of workers are kept."""
        return bool(self.restarts or self.keep or self.resume)

    @property
    def further(self) -> tuple[str, ...] | None:
        """Modules that later ranks import in addition to those of the first; None if they are new processes."""
        if self.cold or not self.restarts:
            return None
        return tuple(filter(None, (self.preload or "").split(",")))
