"""Other workers of a job, as commits need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from coarse.parallel.data.presence import Presence
from coarse.plain import Plain

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime

_RECORDED: Final = "coarse/faults/recorded"


class Peers(Protocol):
    """Workers of a job, as one of them reaches them."""

    def gather(self, value: Plain, name: str) -> list[Plain]:
        """Return all workers' values, which JSON can hold; all call it in one order."""
        ...

    def say(self, steps: int) -> None:
        """Tell that this worker has recorded its next version, behind so many steps."""
        ...

    def said(self) -> list[int]:
        """Return all workers' steps of the last version, once they have told them.

        It returns [] where this worker has told nothing yet.
        """
        ...


class LivePeers:
    """Workers of a running job; see Peers."""

    def __init__(self, runtime: Runtime, gather: Callable[[Plain, str], list[Plain]]) -> None:
        """Prepare the calls; `gather` is the framework's own, see Peers."""
        self._gather = gather
        self._roll = Presence(runtime, _RECORDED)
        runtime.require_client().before_leaving.append(self._roll.close)

    def gather(self, value: Plain, name: str) -> list[Plain]:
        """Return all workers' values by the framework's gather."""
        return self._gather(value, name)

    def say(self, steps: int) -> None:
        """Tell the steps by `Presence`."""
        self._roll.ask(steps)

    def said(self) -> list[int]:
        """Return all workers' steps by `Presence`."""
        if not self._roll.is_open:
            return []
        found: list[int] = self._roll.said().tolist()
        self._roll.end()
        return found
