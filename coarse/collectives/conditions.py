"""Events that a job of the progress thread may wait for, and the ranks that they lack."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from coarse.gpu.interface import Event

if TYPE_CHECKING:  # importing it starts MPI
    from mpi4py import MPI


class Condition(Protocol):
    """Event that a job waits for; the progress thread asks for it again and again and never blocks."""

    def is_over(self) -> bool:
        """Return whether it has happened."""
        ...

    def missing(self) -> tuple[int, ...]:
        """Return the ranks among workers that it still lacks, as far as they are known."""
        ...


class Copied:
    """Copy by a GPU.

    `kept` holds the memory that it reads until the copy is done: memory of a GPU that is freed goes to a stream
    that does not know of the copy.
    """

    def __init__(self, event: Event, kept: object = None) -> None:
        self._event = event
        self._kept = kept

    def is_over(self) -> bool:
        """Return whether the copy is done.

        Raises:
            GpuError: the copy failed.
        """
        if not self._event.is_done():
            return False
        self._kept = None
        return True

    def missing(self) -> tuple[int, ...]:
        """Return no ranks, since none is waited for."""
        return ()


class Messages:
    """MPI requests, each with the worker at its other end."""

    def __init__(self) -> None:
        self._requests: list[tuple[MPI.Request, int, object]] = []

    def add(self, request: "MPI.Request", worker: int, buffer: object) -> None:
        """Wait for one more request; `buffer` lives until it is complete."""
        self._requests.append((request, worker, buffer))

    def is_over(self) -> bool:
        """Return whether all requests are complete."""
        self._requests = [known for known in self._requests if not known[0].Test()]
        return not self._requests

    def missing(self) -> tuple[int, ...]:
        """Return the workers at the other ends of the requests that are not complete."""
        return tuple(sorted({worker for _, worker, _ in self._requests}))


class Requests:
    """MPI requests whose other ends are not known."""

    def __init__(self, requests: "Sequence[MPI.Request]") -> None:
        self._requests = list(requests)

    def is_over(self) -> bool:
        """Return whether all requests are complete."""
        self._requests = [request for request in self._requests if not request.Test()]
        return not self._requests

    def missing(self) -> tuple[int, ...]:
        """Return no ranks, since the other ends are not known."""
        return ()
