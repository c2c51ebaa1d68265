"""What a call gives back at once: a handle, whose `wait` gives its result."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")


class Waitable(Protocol[T_co]):
    """A result under way."""

    def wait(self, timeout: float | None = None) -> T_co:
        """The result; StallError after `timeout` seconds (None: stall_timeout_s)."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""


class Then(Generic[T, U]):
    """The result of a handle, of which something is still to be made; a call of it waits too.

    Args:
        arriving: the handle.
        finish: what makes the result; it is called once, by the first `wait` that ends.
    """

    def __init__(self, arriving: Waitable[T], finish: Callable[[T], U]) -> None:
        self._arriving = arriving
        self._finish: Callable[[T], U] | None = finish
        self._result: U

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._finish is None or self._arriving.done()

    def wait(self, timeout: float | None = None) -> U:
        """The result; StallError after `timeout` seconds (None: stall_timeout_s)."""
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
        """Whether `wait` would return at once."""
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout: float | None = None) -> list[T]:
        """The results; StallError after `timeout` seconds (None: stall_timeout_s) of any of them."""
        return [handle.wait(timeout) for handle in self._handles]
