"""Which ranks of a starting job have come, joined or ended, and whether it can still start."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Why a job that is starting must be ended, and with which exit status."""

    text: str
    status: int


class Departures:
    """What is known of each rank until it has joined; afterwards the ranks watch each other.

    A rank waits from its call of `init` until that returns or raises; it has joined when `init` succeeded.
    """

    def __init__(self, num_ranks: int, light: frozenset[int]) -> None:
        self._workers = frozenset(range(num_ranks)) - light
        """Ranks that run the script; the `light` ones only serve."""
        self._waiting: set[int] = set()
        self._came: set[int] = set()
        self._joined: set[int] = set()
        self._ended: dict[int, int | None] = {}

    def on_waits(self, rank: int) -> None:
        """Note that a rank has called `init`."""
        self._waiting.add(rank)
        self._came.add(rank)

    def on_joined(self, rank: int) -> None:
        """Note that a rank's `init` succeeded."""
        self._joined.add(rank)

    def on_waits_no_longer(self, rank: int) -> None:
        """Note that a rank's `init` returned or raised, or that the rank is gone."""
        self._waiting.discard(rank)

    def on_ended(self, rank: int, status: int | None) -> None:
        """Note a rank's exit status: -n where signal n ended it, None where nobody saw it."""
        self._ended.setdefault(rank, status)

    def first_failure(self) -> int:
        """The exit status, as a shell has it, of the first rank that did not end with 0; 0 where all have."""
        return next((exit_status(status) for status in self._ended.values() if status != 0), 0)

    def verdict(self) -> Verdict | None:
        """Why the job must be ended now; None while it may go on."""
        for rank, status in self._ended.items():
            waiting = self._waiting - self._ended.keys()
            if status == 0:
                waiting &= self._workers  # light devices alone may yet see other workers come
            if rank not in self._joined and waiting:
                where = "in" if rank in self._came else "before"
                return Verdict(
                    f"MPI rank {rank} {how_ended(status)} {where} coarse.init(), where ranks {sorted(waiting)} wait; "
                    "the job ends",
                    exit_status(status) or 1,
                )
        if self._waiting and self._workers <= self._ended.keys() and not self._workers & self._joined:
            return Verdict("no worker has called coarse.init(); the memory devices end", 0)
        return None


def exit_status(status: int | None) -> int:
    """What a shell makes of a status: 128 + n where signal n ended the process."""
    if status is None:
        return 1
    return status if status >= 0 else 128 - status


def how_ended(status: int | None) -> str:
    """A status in words, for a sentence that begins with who."""
    if status is None:
        return "was ended"
    return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
