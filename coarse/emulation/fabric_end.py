"""How the fabric process ended, as every rank can tell and not only its parent."""

import os
from pathlib import Path

from coarse.errors import FabricError
from coarse.launch.departures import how_ended

_EXIT_CODE = -1
"""The last field of /proc/PID/stat."""


def fabric_error(process_id: int, rank: int, status: int | None = None) -> FabricError:
    """What a rank says about a fabric process that has ended too early.

    Its status stands in /proc until its parent, worker 0, takes it, which that does at the end of a run alone,
    and then says.
    """
    status = _exit_status(process_id) if status is None else status
    remedy = "start the run again, with fewer workers or a smaller model if memory ran out (dmesg says so)"
    if status is not None and status >= 0:
        remedy = "what it printed says why"
    return FabricError(
        f"rank {rank}: the fabric process (process {process_id}), which says when transfers arrive, "
        f"{how_ended(status)} in mid-run, so nothing can arrive any more; {remedy}",
        status=status,
    )


def _exit_status(process_id: int) -> int | None:
    """Of a process that has ended and was not reaped; None where /proc does not say."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(stat.rpartition(")")[2].split()[_EXIT_CODE]))
