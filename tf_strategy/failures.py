"""Typed errors on their way through TensorFlow, which passes on their text alone."""

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
"""The first error of this process's synchronisation: nothing can be synchronised after it."""


def note(error: BaseException) -> None:
    """Remember what went wrong in a synchronisation, with its type."""
    global _failure
    _failure = _failure or error


def require_none() -> None:
    """Raise what went wrong before."""
    if _failure is not None:
        raise _failure


def noted(function: Callable[P, R]) -> Callable[P, R]:
    """Return a synchronisation whose first error is remembered, and raised again by every later one."""

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
    """Return the error behind one of TensorFlow's: exceptions lose their types in a `tf.function`.

    Returns None where `error` has nothing to do with coarse.
    """
    while not isinstance(error, CoarseError) and hasattr(error, "ag_error_metadata") and error.__context__ is not None:
        error = error.__context__  # AutoGraph has raised another, which tells of the user's code
    if isinstance(error, CoarseError):
        return error
    text = f"{type(_failure).__name__}: {_failure}" if str(_failure) else type(_failure).__name__
    return _failure if isinstance(error, tf.errors.OpError) and text in str(error) else None


@contextmanager
def typed() -> Iterator[None]:
    """Give a context in which errors of coarse come with their own types, TensorFlow's as their cause."""
    try:
        yield
    except Exception as error:
        cause = cause_of(error)
        if cause is None or cause is error:
            raise
        raise cause from error


def with_typed_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same function with typed errors (`typed`)."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with typed():
            return function(*args, **kwargs)

    return called


def name_causes_at_the_end() -> None:
    """Have an uncaught error of TensorFlow's reported as what is behind it."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        cause = cause_of(error)
        if cause is None or cause is error:
            before(kind, error, where)
        else:
            before(type(cause), cause.with_traceback(where), where)

    sys.excepthook = report
