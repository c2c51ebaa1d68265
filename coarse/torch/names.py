"""Names of calls without one, numbered equally on all ranks because they make them in one order."""

from collections import defaultdict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from coarse.errors import InFlightError
from coarse.session import current

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime

_NUM_NAMES = 4096
"""Number of calls of one kind that may be under way without a name; then the first name is used anew."""
_counts: "WeakKeyDictionary[Runtime, defaultdict[tuple[str, str, int], int]]" = WeakKeyDictionary()


def named(kind: str, name: str | None, among: str = "") -> tuple[str, bool]:
    """Return the key of a call of a kind, and whether it is to be forgotten after the call.

    A kind is such as "allreduce". Kinds have separate names: an allreduce "x" and a broadcast "x" are two things. Calls
    without a name are counted by kind, by `among` (those who make them), and anew after each round of joins, in which
    ranks make different numbers.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{kind}: a name must be text, got {type(name).__name__} {name!r}")
    if name:
        return f"{kind}/{name}", False
    join_round = current().require_client().protocol.join_round
    counts = _counts.setdefault(current(), defaultdict(int))
    number = counts[kind, among, join_round]
    counts[kind, among, join_round] += 1
    times = f" after {join_round} joins" if join_round else ""
    return f"{kind}/unnamed {number % _NUM_NAMES}{times}", True


class OrderedNames:
    """Names of calls matched by their order, each in use until its call, or a later one, was waited for.

    So it follows from the order of a program's own calls alone, and never from the time that they take, whether a name
    is free; it is so equally on all ranks.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._numbers: dict[str, int] = {}
        self._num_calls = 0

    def begin(self, name: str) -> int:
        """Return the number of a call of this name, for `waited_for`.

        Raises:
            InFlightError: the name is in use.
        """
        if name in self._numbers:
            raise InFlightError(
                f"rank {self._rank}: {name!r} is called again before its last call was waited for; wait for that one, "
                "or for one that was made after it, or give this call another name"
            )
        self._num_calls += 1
        self._numbers[name] = self._num_calls
        return self._num_calls

    def waited_for(self, number: int) -> None:
        """Note that a call was waited for, and so were all before it."""
        if self._numbers:
            self._numbers = {name: made for name, made in self._numbers.items() if made > number}
