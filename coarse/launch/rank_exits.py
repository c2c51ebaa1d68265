"""Record of a job's ranks that have come, joined, failed or ended; decision whether it may go on."""

from dataclasses import dataclass

_REFUSED_S = 0.5
"""Seconds of grace for a refusal: ranks that were refused together end one after another."""
_OF_SIGNALS = 128
"""Offset of a status that says which signal ended the process."""
_LAST_WORDS_S = 1.0
"""Seconds of grace if the job ends at once. In them a rank that raised prints its error, and the cause of another's
end becomes known."""
_FAILED_S = 4.0
"""Seconds for the others after a rank's bad end to hear of it, say why and end by themselves."""


@dataclass(frozen=True)
class Verdict:
    """Reason why a job must be ended, and the exit status for it."""

    text: str
    status: int
    grace_s: float = _REFUSED_S
    """Seconds that it must stand before the job is ended."""


@dataclass(frozen=True)
class Failure:
    """First rank that did not end well by itself."""

    rank: int
    status: int | None
    """Exit status, -n if signal n ended it; None if it was not seen."""
    error: int | None
    """Digest of the exception that it raised. It is 0 of one that says that others are missing; None if it raised
    none."""

    @property
    def is_own(self) -> bool:
        """True if the script raised, or ended with a status of its own: it may do so again."""
        return self.error is not None or 0 < (self.status or 0) < _OF_SIGNALS


_UNUSED = "no worker has called coarse.init(); the memory devices end"


class Departures:
    """Record of the state of each rank.

    A rank waits from its call of `init` until that returns or raises; it has joined when `init` succeeded. A rank that
    fails says so before it ends; one that follows ends because another has.
    """

    def __init__(self, num_ranks: int, light: frozenset[int], *, at_once: bool = False) -> None:
        """Start without reports of ranks.

        With `at_once` the job ends as soon as a rank has ended badly, without a time for others to say why.
        """
        self._num_ranks = num_ranks
        self._at_once = at_once
        self._errors: dict[int, int] = {}
        """Digest of the exception that each rank raised."""
        self._workers = frozenset(range(num_ranks)) - light
        """Ranks that run the script; the `light` ones only serve."""
        self._waiting: set[int] = set()
        self._starting: set[int] = set()
        """Ranks whose script starts MPI, which waits for all ranks."""
        self._left: set[int] = set()
        """Workers whose script has ended without `init`, though their process may wait for others in MPI yet."""
        self._met: set[int] = set()
        """Workers whose script has joined the others without coarse."""
        self._came: set[int] = set()
        self._joined: set[int] = set()
        self._watched: set[int] = set()
        """Ranks whose watching process has come."""
        self._ended: dict[int, int | None] = {}
        self._failed: dict[int, int | None] = {}
        """Ranks in the order in which they were known not to end well, with their statuses."""
        self._followed: set[int] = set()
        self._said: set[int] = set()
        """Ranks that have reported the cause of their failure."""

    @property
    def num_ranks(self) -> int:
        """Number of the job's ranks."""
        return self._num_ranks

    def on_runs(self, rank: int) -> None:
        """Note that the process that watches a rank has come."""
        self._watched.add(rank)

    def on_waits(self, rank: int) -> None:
        """Note that a rank has called `init`."""
        self._waiting.add(rank)
        self._came.add(rank)

    def on_joined(self, rank: int) -> None:
        """Note that a rank's `init` succeeded."""
        self._joined.add(rank)

    def on_starts(self, rank: int) -> None:
        """Note that a rank's script starts MPI."""
        self._starting.add(rank)

    def on_started(self, rank: int) -> None:
        """Note that MPI has started on a rank, or that the rank is gone."""
        self._starting.discard(rank)

    def on_left(self, rank: int) -> None:
        """Note that a rank's script has ended without `init`."""
        self._left.add(rank)

    def on_met(self, rank: int) -> None:
        """Note that a rank's script joined the others without coarse, by MPI or torch.distributed."""
        self._met.add(rank)

    def on_waits_no_longer(self, rank: int) -> None:
        """Note that a rank's `init` returned or raised, or that the rank is gone."""
        self._waiting.discard(rank)

    def on_ended(self, rank: int, status: int | None) -> None:
        """Note a rank's exit status: -n if signal n ended it, None if it was not seen.

        It is not seen if mpirun kills all processes for a rank that has failed or follows.
        """
        self._ended.setdefault(rank, status)
        if status is None and self._said | self._followed:
            self._followed.add(rank)
        if status != 0:
            self._failed.setdefault(rank, status)

    def on_over(self) -> None:
        """Note that mpirun has ended with 0: ranks of which no end has come are lost.

        It does so if a daemon of another node is killed while ranks start. Of a job that may start again all ranks are
        watched; else those on other hosts are not.
        """
        for rank in range(self._num_ranks) if self._at_once else sorted(self._watched):
            if rank not in self._ended:
                self.on_ended(rank, None)

    def on_fails(self, rank: int, status: int, error: int = 0) -> None:
        """Note that a rank has raised, and will end the job with this status, however its own process ends.

        `error` is a digest of the exception that it raised.
        """
        self._failed.setdefault(rank, status)
        self._errors.setdefault(rank, error)
        self._said.add(rank)

    def on_follows(self, rank: int) -> None:
        """Note that a rank ends because another has."""
        self._followed.add(rank)

    def first_failure(self) -> int:
        """Return the exit status of the first rank that failed by itself; 0 if all ended with 0.

        It is as a shell has it.
        """
        rank = self._first_failed()
        return 0 if rank is None else exit_status(self._failed[rank])

    def failure(self) -> Failure | None:
        """Return the first rank that failed by itself; None if none did.

        One that follows another, of whose end nothing has come yet, has neither status nor error of its own.
        """
        rank = self._first_failed()
        if rank is None or rank in self._followed:
            return None if rank is None else Failure(rank, None, None)
        return Failure(rank, self._failed[rank], self._errors.get(rank))

    def unsaid_cause(self) -> str | None:
        """Return how the first rank that failed by itself ended, if it could not say so; None if all is said."""
        rank = self._first_failed()
        if rank is None or rank in self._said | self._followed or rank not in self._ended:
            return None
        return f"MPI rank {rank} {how_ended(self._ended[rank])}"

    def unused(self) -> str | None:
        """Return the message about a job that ended well without its memory devices.

        It is None if the job used them, or has none.
        """
        has_devices = len(self._workers) < self._num_ranks
        return _UNUSED if has_devices and not self._joined & self._workers else None

    def _first_failed(self) -> int | None:
        return next((rank for rank in self._failed if rank not in self._followed), next(iter(self._failed), None))

    def verdict(self) -> Verdict | None:
        """Return the reason why the job must be ended now; None while it may go on."""
        gone: dict[int, int | None] = {
            **{rank: self._failed.get(rank, 0) for rank in self._left},
            **self._ended,
        }
        for rank, status in gone.items():
            waiting, starting = self._waiting - gone.keys(), self._starting - self._waiting - gone.keys()
            if status == 0:
                waiting &= self._workers  # light devices alone may yet see other workers come
            if rank not in self._joined and waiting | starting:
                where = "in coarse.init()" if rank in self._came else "before coarse.init()"
                where = "before MPI_Init" if starting else where
                is_death = status is None or status < 0
                return Verdict(
                    f"MPI rank {rank} {how_ended(status)} {where}, where ranks {sorted(starting or waiting)} wait; "
                    "the job ends",
                    exit_status(status) or 1,
                    0.0 if self._at_once and is_death else _REFUSED_S,
                )
        if self._waiting and self._workers <= self._ended.keys() and not self._workers & self._joined:
            return self._verdict_of_strangers()
        first = self._first_failed()
        if len(self._ended) == self._num_ranks:
            return None
        if first is None and self._workers <= self._ended.keys() & self._left:  # devices may wait in MPI_Finalize
            return Verdict(_UNUSED, 0, _FAILED_S)
        if first is None:
            return None
        how = how_ended(self._ended[first]) if first in self._ended else "has raised an error"
        if self._at_once:
            is_known = first in self._ended and first not in self._followed
            grace_s = 0.0 if is_known else _LAST_WORDS_S
            return Verdict(f"MPI rank {first} {how}", exit_status(self._failed[first]) or 1, grace_s)
        return Verdict(
            f"MPI rank {first} {how}, and others have not ended in the {_FAILED_S:g} s since; the job ends",
            exit_status(self._failed[first]) or 1,
            _FAILED_S,
        )

    def _verdict_of_strangers(self) -> Verdict:
        """Return the verdict on a script that never called `init`: unaware workers each do all the work."""
        is_alone = len(self._workers) == 1
        if is_alone or self._met or any(self._ended[rank] != 0 for rank in self._workers):
            return Verdict(_UNUSED, self.first_failure())
        return Verdict(
            f"{_UNUSED}. The {len(self._workers)} workers ran the script each by itself: call coarse.init(), or "
            'torch.distributed.init_process_group("coarse"), in it, or give --workers 1',
            1,
        )


def exit_status(status: int | None) -> int:
    """Return a status as a shell has it: 128 + n if signal n ended the process."""
    if status is None:
        return 1
    return status if status >= 0 else 128 - status


def how_ended(status: int | None) -> str:
    """Return a status in words, for a sentence whose subject is the process."""
    if status is None:
        return "was ended"
    return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
