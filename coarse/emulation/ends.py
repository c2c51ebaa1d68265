"""How the ranks of an emulated run ended, as the processes that watch them tell the launcher."""

from coarse.errors import DeadRankError
from coarse.launch.departures import Departures, Verdict, exit_status, how_ended


class Ends(Departures):
    """An emulated run is over as soon as a rank ends otherwise than with status 0."""

    def __init__(self, num_workers: int, num_ranks: int) -> None:
        super().__init__(num_ranks, light=frozenset())
        self._num_workers = num_workers

    def verdict(self) -> Verdict | None:
        """Why the run must be ended now; None while it may go on."""
        error = self.error()
        return None if error is None else Verdict(str(error), exit_status(self._failed[error.rank]) or 1)

    def error(self, rank: int | None = None, printed: str = "") -> DeadRankError | None:
        """How a rank ended, or the first that failed; with what was printed where the status does not say why."""
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
