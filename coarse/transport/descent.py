# Pure: no MPI, threads, clock or environment.
"""Descent of interpreters, which decides which of them is a rank.

Of those that a rank's script starts, none is a rank once MPI has started, nor one of multiprocessing's.

Such an interpreter inherits the variables by which MPI would take it for the rank, and would wait there for ever, or
take the rank's place.
"""

from collections.abc import Mapping, MutableMapping, Sequence

_STARTED = "COARSE_STARTED"
_OF_MULTIPROCESSING = "from multiprocessing."
"""Beginning of the code that multiprocessing has an interpreter run, to spawn one process or to fork many."""


def note_start(environ: MutableMapping[str, str], process: int) -> None:
    """Tell interpreters that are started from now on that the rank is this process."""
    if (name := _rank_name(environ)) is not None:
        environ[_STARTED] = f"{name} {process}"


def is_below_rank(environ: Mapping[str, str], process: int, command: Sequence[str]) -> bool:
    """Return whether another interpreter is the rank whose variables this process, of a command, has."""
    name = _rank_name(environ)
    if name is None:
        return False
    started, _, by = environ.get(_STARTED, "").rpartition(" ")
    return (started == name and by != str(process)) or any(part.startswith(_OF_MULTIPROCESSING) for part in command)


def _rank_name(environ: Mapping[str, str]) -> str | None:
    """Return the rank's name among all jobs; None where no launcher of MPI has started it."""
    job, rank = environ.get("PMIX_NAMESPACE"), environ.get("PMIX_RANK")
    return None if job is None or rank is None else f"{job}.{rank}"
