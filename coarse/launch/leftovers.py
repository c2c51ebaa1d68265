"""Files in /dev/shm that killed ranks of Open MPI leave: memory that those of a node share."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SHARED = Path("/dev/shm")
_SEGMENT = re.compile(rf"{_SHARED}/(sm_segment\.\S+\.)\d+$", re.MULTILINE)


def jobs_of(pids: Iterable[int]) -> set[str]:
    """Return the beginnings of names of the files that the jobs of some processes have.

    They are known by the processes' mappings.
    """
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # ended meanwhile
            found.update(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text()))
    return found


def remove(jobs: Iterable[str]) -> None:
    """Remove the files of jobs none of whose processes is left."""
    for job in jobs:
        for path in _SHARED.glob(f"{job}*"):
            with suppress(OSError):
                path.unlink()
