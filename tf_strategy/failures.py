"""Typed errors on their way through TensorFlow, which passes on only their text."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

import tensorflow as tf

from coarse.errors import CoarseError

P = ParamSpec("P")
R = TypeVar("R")

_failure: BaseException | None = None
"""First error of this process's synchronisation. No synchronisation is possible after it."""


def note(error: BaseException) -> None:
    """Remember the first error of a synchronisation, with its type."""
    global _failure
    _failure = _failure or error


def require_none() -> None:
    """Raise the error of an earlier synchronisation, if there was one."""
    if _failure is not None:
        raise _failure


def noted(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a synchronisation so that its first error is kept, and raised again by every later one."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        require_none()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            note(error)
            raise

    return called


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error behind one of TensorFlow's, or None if coarse did not cause it.

    Exceptions lose their types where a `tf.function` runs or is traced.
    """
    while not isinstance(error, CoarseError) and hasattr(error, "ag_error_metadata") and error.__context__ is not None:
        error = error.__context__  # AutoGraph has raised another, which tells of the user's code
    if isinstance(error, CoarseError):
        return error
    text = f"{type(_failure).__name__}: {_failure}" if str(_failure) else type(_failure).__name__
    return _failure if isinstance(error, tf.errors.OpError) and text in str(error) else None


@contextmanager
def typed() -> Iterator[None]:
    """Raise errors of coarse within the block with their own types, and TensorFlow's as their cause."""
    try:
        yield
    except Exception as error:
        cause = cause_of(error)
        if cause is None or cause is error:
            raise
        raise cause from error


def with_typed_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that its errors come with their own types; see `typed`."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with typed():
            return function(*args, **kwargs)

    return called


def name_causes_at_the_end() -> None:
    """Report an uncaught error of TensorFlow's as the error that caused it."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        cause = cause_of(error)
        if cause is None or cause is error:
            before(kind, error, where)
        else:
            before(type(cause), cause.with_traceback(where), where)

    sys.excepthook = report
