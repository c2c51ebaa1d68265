"""Handles that calls return at once, whose `wait` gives the result."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")


class Waitable(Protocol[T_co]):
    """Result under way."""

    def wait(self, timeout: float | None = None) -> T_co:
        """Return the result.

        Raises:
            StallError: it took longer than `timeout` seconds (None: stall_timeout_s).
        """

    def done(self) -> bool:
        """Return whether `wait` would return at once."""


class Then(Generic[T, U]):
    """Result that is still to be made of a handle's; a call of it waits too.

    Args:
        arriving: the handle.
        finish: function that makes the result; it is called once, by the first `wait` that ends.
    """

    def __init__(self, arriving: Waitable[T], finish: Callable[[T], U]) -> None:
        self._arriving = arriving
        self._finish: Callable[[T], U] | None = finish
        self._result: U

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return self._finish is None or self._arriving.done()

    def wait(self, timeout: float | None = None) -> U:
        """Return the result.

        Raises:
            StallError: it took longer than `timeout` seconds (None: stall_timeout_s).
        """
        if self._finish is not None:
            arrived = self._arriving.wait(timeout)
            finish, self._finish = self._finish, None
            self._result = finish(arrived)
        return self._result

    __call__ = wait


class Together(Generic[T]):
    """Several handles as one, whose result is a list of theirs."""

    def __init__(self, handles: Sequence[Waitable[T]]) -> None:
        self._handles = handles

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout: float | None = None) -> list[T]:
        """Return the results.

        Raises:
            StallError: any of them took longer than `timeout` seconds (None: stall_timeout_s).
        """
        return [handle.wait(timeout) for handle in self._handles]
