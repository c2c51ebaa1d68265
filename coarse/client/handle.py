"""What a non-blocking call returns."""

from typing import Protocol

import numpy as np


class Taker(Protocol):
    """The part of a client that a handle needs."""

    def is_complete(self, key: int) -> bool:
        """Whether the result is there (or the key has failed)."""
        ...

    def take(
        self, key: int, out: np.ndarray | None, timeout_s: float | None
    ) -> tuple[np.ndarray, bool]:
        """Wait for the result, in `out` (a new array where None), and whether anybody contributed."""
        ...

    def abandon(self, key: int, flight: int) -> None:
        """Nobody will take the result of this push."""
        ...


class Handle:
    """A result under way.

    A handle of a push (`flight`, its number) that is dropped before its result was taken gives the result up: the next
    push of the name waits until it has come, and then goes on.
    """

    def __init__(self, client: Taker, key: int, out: np.ndarray | None, flight: int = 0) -> None:
        self._client = client
        self._key = key
        self._out = out
        self._flight = flight
        self._is_taken = False
        self.present = True
        """After `wait`: whether any worker contributed."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._is_taken or self._client.is_complete(self._key)

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """The result; after `timeout` seconds (default: stall_timeout_s) StallError names who is missing."""
        if not self._is_taken:
            self._out, self.present = self._client.take(self._key, self._out, timeout)
            self._is_taken = True
        assert self._out is not None
        return self._out

    def __del__(self) -> None:
        if not self._is_taken and self._flight:
            self._client.abandon(self._key, self._flight)


class Pushed(Handle):
    """The handle of a push: the array has been copied, so that it may be used again at once."""

    def __init__(self, array: np.ndarray) -> None:
        self._out = array
        self._flight = 0
        self._is_taken = True
        self.present = True
