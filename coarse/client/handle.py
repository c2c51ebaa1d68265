"""Handles that non-blocking calls return."""

from typing import Protocol

import numpy as np

from coarse.errors import StallError


class Taker(Protocol):
    """The part of a client that a handle needs."""

    def is_complete(self, key: int) -> bool:
        """Return whether the result is there (or the key has failed)."""
        ...

    def take(
        self, key: int, out: np.ndarray | None, timeout_s: float | None
    ) -> tuple[np.ndarray, bool]:
        """Wait for the result, in `out` (a new array where None), and whether anybody contributed."""
        ...

    def stall(self, key: int, flight: int, array: np.ndarray) -> None:
        """Note that the wait of a call that may be made again, with this array, has stalled."""
        ...

    def abandon(self, key: int, flight: int) -> None:
        """Note that the result of this push will not be taken."""
        ...


class Handle:
    """A result under way: whose it is, and the array that it goes to. How far it is, the client's protocol knows.

    A handle of a push (`flight`, its number) that is dropped before its result was taken gives the result up: the next
    push of the name waits until it has come, and then goes on.
    """

    def __init__(
        self, client: Taker, key: int, out: np.ndarray | None, flight: int = 0, again: np.ndarray | None = None
    ) -> None:
        """Make a handle; a `flight` of 0 is none of this handle's: it only looks."""
        self._client: Taker | None = client
        """None once the result is in the array."""
        self.key = key
        self._flight = flight
        self._out = out
        self.again = again
        """Array that a call pushed which waits at once and may be made again after a StallError."""
        self.present = True
        """After `wait`: whether any worker contributed."""

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        client = self._client  # another thread may wait for this handle too
        return client is None or client.is_complete(self.key)

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Return the result; after `timeout` seconds (default: stall_timeout_s) StallError names the missing ranks."""
        client = self._client
        if client is not None:
            try:
                self._out, self.present = client.take(self.key, self._out, timeout)
            except StallError:
                self.stall()
                raise
            self._client = None
        assert self._out is not None
        return self._out

    def stall(self) -> None:
        """Note that a wait for it has stalled: if the call may be made again, it will go on with the same push."""
        if self._client is not None and self.again is not None:
            self._client.stall(self.key, self._flight, self.again)

    def leave_to_pull(self, array: np.ndarray) -> None:
        """Have `wait` give the array of a push alone, which has been copied, and `pull` the result."""
        self._client, self._out = None, array

    def __del__(self) -> None:
        if self._client is not None and self._flight:
            self._client.abandon(self.key, self._flight)
