"""What a job of the progress thread may wait for, and who is lacking."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from coarse.gpu.interface import Event

if TYPE_CHECKING:  # importing it starts MPI
    from mpi4py import MPI


class Awaited(Protocol):
    """Something that will have happened; the progress thread asks again and again and never blocks."""

    def is_over(self) -> bool:
        """Whether it has happened."""
        ...

    def missing(self) -> tuple[int, ...]:
        """Ranks among workers that it still lacks, as far as can be told."""
        ...


class Copied:
    """A copy of a GPU's; GpuError where it failed. `kept` has the memory that it reads, which lives until then: whoever
    frees memory of a GPU gives it to a stream that knows nothing of the copy."""

    def __init__(self, event: Event, kept: object = None) -> None:
        self._event = event
        self._kept = kept

    def is_over(self) -> bool:
        """See Awaited."""
        if not self._event.is_done():
            return False
        self._kept = None
        return True

    def missing(self) -> tuple[int, ...]:
        """See Awaited: no rank is waited for."""
        return ()


class Messages:
    """MPI requests, each with the worker at its other end."""

    def __init__(self) -> None:
        self._requests: list[tuple[MPI.Request, int, object]] = []

    def add(self, request: "MPI.Request", worker: int, buffer: object) -> None:
        """Wait for one more; `buffer` lives until it is complete."""
        self._requests.append((request, worker, buffer))

    def is_over(self) -> bool:
        """See Awaited."""
        self._requests = [known for known in self._requests if not known[0].Test()]
        return not self._requests

    def missing(self) -> tuple[int, ...]:
        """See Awaited."""
        return tuple(sorted({worker for _, worker, _ in self._requests}))


class Requests:
    """MPI requests of which nobody knows the other ends."""

    def __init__(self, requests: "Sequence[MPI.Request]") -> None:
        self._requests = list(requests)

    def is_over(self) -> bool:
        """See Awaited."""
        self._requests = [request for request in self._requests if not request.Test()]
        return not self._requests

    def missing(self) -> tuple[int, ...]:
        """See Awaited."""
        return ()
