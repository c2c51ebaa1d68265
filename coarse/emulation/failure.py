"""Ends of an emulated run's ranks and fabric process, with reasons, from ranks to the launcher."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from coarse import errors
from coarse.errors import CoarseError, DeadRankError, FabricError
from coarse.launch.rank_exits import Departures, Verdict, exit_status, how_ended


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Error on its way from a rank to the launcher."""

    kind: str
    """Name of its class."""
    text: str
    fields: dict[str, object]
    """Facts beside its text, if it is one of coarse's errors."""
    rank: int
    at_s: float
    """Seconds of the clock that all processes of this machine share."""

    @property
    def dead_rank(self) -> int | None:
        """MPI rank whose end this reports, if it reports no more than that."""
        rank = self.fields.get("rank")
        return rank if self.kind == DeadRankError.__name__ and isinstance(rank, int) else None

    def as_error(self, printed: str) -> CoarseError:
        """Return the error again, with the printed lines if the text alone does not say why."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, CoarseError)):
            return CoarseError(f"rank {self.rank} raised {self.kind}: {self.text}{printed}")
        status = self.fields.get("status")
        is_clear = kind is not FabricError or not isinstance(status, int) or status < 0
        return kind(self.text if is_clear else self.text + printed, **self.fields)


def failure_of(error: BaseException, *, rank: int, at_s: float) -> Failure:
    """Return a rank's report of its error."""
    fields = vars(error) if isinstance(error, CoarseError) else {}
    return Failure(kind=type(error).__name__, text=str(error), fields=dict(fields), rank=rank, at_s=at_s)


def write_failure(failure: Failure, folder: Path) -> None:
    """Write a failure where the launcher looks, whole or not at all."""
    unfinished = folder / f"failure-{failure.rank}.part"
    unfinished.write_text(json.dumps(asdict(failure)))
    unfinished.rename(unfinished.with_suffix(".json"))


def first_failure(folder: Path) -> Failure | None:
    """Return the failure of the rank that failed first.

    Reports of another rank's death count only if no rank says more.
    """
    found = [Failure(**json.loads(path.read_text())) for path in folder.glob("failure-*.json")]
    return min(found, key=lambda failure: (failure.dead_rank is not None, failure.at_s), default=None)


class Ends(Departures):
    """Ends of an emulated run's ranks; the run is over once one ends otherwise than with status 0."""

    def __init__(self, num_workers: int, num_ranks: int) -> None:
        super().__init__(num_ranks, light=frozenset())
        self._num_workers = num_workers

    def verdict(self) -> Verdict | None:
        """Return the reason why the run must be ended now; None while it may go on."""
        error = self.error()
        return None if error is None else Verdict(str(error), exit_status(self._failed[error.rank]) or 1)

    def error(self, rank: int | None = None, printed: str = "") -> DeadRankError | None:
        """Return the error of a rank's end, or of the first that failed.

        It has the printed lines if the status does not say why.
        """
        if rank is None:
            rank = next(iter(self._failed), None)
        if rank is None:
            return None
        status = self._failed.get(rank)
        number = rank - self._num_workers
        who = f"worker {rank}" if number < 0 else f"memory device {number}"
        remedy = "start the run again, with fewer workers or a smaller model if memory ran out (dmesg says so)"
        why = printed if status is not None and status >= 0 else ""
        return DeadRankError(
            f"{who} (MPI rank {rank}) of the emulated run {how_ended(status)} in mid-run; {remedy}{why}", rank=rank
        )


_EXIT_CODE = -1
"""Place of the last field of /proc/PID/stat."""


def fabric_error(process_id: int, rank: int, status: int | None = None) -> FabricError:
    """Return a rank's error about a fabric process that has ended too early.

    Its status stands in /proc until its parent, worker 0, takes it, which that does at the end of a run alone, and then
    says.
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
    """Return the status of a process that has ended and was not reaped; None if /proc does not say."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(stat.rpartition(")")[2].split()[_EXIT_CODE]))
