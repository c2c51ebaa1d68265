"""Versions of workers' states in memory that outlives them: their slots, and the one to resume from.

[Note: two slots] Each worker has two slots. Version k goes to slot k mod 2, and a worker begins it once all workers
have recorded version k - 1. So version k - 1 or version k is whole with every worker at any moment, even if workers die
then. Versions are counted from 1; version 0 is the script's beginning, of which nothing is kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coarse.errors import StorageError

NUM_SLOTS = 2
MOST_COMMUTATIVE = 2
"""Workers whose sums have the same bits in any order: a + b is b + a."""


class Seen(NamedTuple):
    """Versions that a worker's memory has, as found when a job starts over it."""

    whole: tuple[int, ...]
    damaged: tuple[int, ...] = ()
    """Versions that are recorded, but whose bytes have another checksum."""


class Choice(NamedTuple):
    """Version that all workers go on from."""

    version: int
    """Number of the version; 0 means from the beginning."""
    passed_over: tuple[tuple[int, int], ...] = ()
    """(Worker, version) of newer versions that are damaged."""


def slot_of(version: int) -> int:
    """Return the slot of a version."""
    return version % NUM_SLOTS


def choose(seen: Sequence[Seen]) -> Choice:
    """Return the newest version that is whole with all workers, by what each has.

    Raises:
        StorageError: there is none, though a version was recorded that all had before.
    """
    common = set.intersection(*(set(each.whole) for each in seen))
    newest = max((version for each in seen for version in (*each.whole, *each.damaged)), default=0)
    damaged = tuple((worker, version) for worker, each in enumerate(seen) for version in each.damaged)
    if common:
        chosen = max(common)
        return Choice(chosen, tuple((worker, version) for worker, version in damaged if version > chosen))
    if newest <= 1 and not damaged:
        return Choice(0)
    wanted = max((version for each in seen for version in each.whole), default=newest)
    lacking = [worker for worker, each in enumerate(seen) if not {wanted, wanted - 1} & set(each.whole) or each.damaged]
    found = "; ".join(
        f"worker {worker} has {_versions(each.whole)}" + f", and {_versions(each.damaged)} damaged" * bool(each.damaged)
        for worker, each in enumerate(seen)
    )
    raise StorageError(
        f"no version of the states is whole with all workers, by worker {', '.join(map(str, lacking))}'s memory: "
        f"{found}. Go on from a checkpoint of the script's own; to begin anew, "
        "remove the folder that keeps the states, or start another job"
    )


def _versions(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    return f"version{'s' * (len(numbers) > 1)} {' and '.join(map(str, sorted(numbers)))}"
