"""The other workers of a job, as commits need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from coarse.parallel.data.roll_call import RollCall
from coarse.plain import Plain

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime

_RECORDED: Final = "coarse/faults/recorded"


class Peers(Protocol):
    """The other workers."""

    def gather(self, value: Plain, name: str) -> list[Plain]:
        """Return all workers' values, which JSON can hold; all call it in one order."""
        ...

    def say(self, steps: int) -> None:
        """Say that this worker has recorded its next version, behind so many steps."""
        ...

    def said(self) -> list[int]:
        """Return what all said of the last version, once they have; [] where this worker has said nothing yet."""
        ...


class LivePeers:
    """The workers of a running job; see Peers."""

    def __init__(self, runtime: Runtime, gather: Callable[[Plain, str], list[Plain]]) -> None:
        """`gather`: see Peers; the framework's own."""
        self._gather = gather
        self._roll = RollCall(runtime, _RECORDED)
        runtime.require_client().before_leaving.append(self._roll.close)

    def gather(self, value: Plain, name: str) -> list[Plain]:
        """See Peers."""
        return self._gather(value, name)

    def say(self, steps: int) -> None:
        """See Peers."""
        self._roll.ask(steps)

    def said(self) -> list[int]:
        """See Peers."""
        if not self._roll.is_open:
            return []
        found: list[int] = self._roll.said().tolist()
        self._roll.end()
        return found
