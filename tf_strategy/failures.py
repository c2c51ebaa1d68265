"""Typed errors on their way through TensorFlow, which passes on their text alone."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, TypeVar

import tensorflow as tf

from coarse.errors import CoarseError

P = ParamSpec("P")
R = TypeVar("R")

_failure: Exception | None = None
"""The first error of this process's synchronisation: nothing can be synchronised after it."""


def note(error: Exception) -> None:
    """Remember what went wrong within an operation of TensorFlow."""
    global _failure
    _failure = _failure or error


def require_none() -> None:
    """Raise what went wrong before."""
    if _failure is not None:
        raise _failure


def cause_of(error: BaseException) -> Exception | None:
    """The error behind one of TensorFlow's: within a `tf.function`, as under `model.fit`, an exception loses its type.

    Returns None where `error` has nothing to do with synchronisation.
    """
    if isinstance(error, CoarseError):
        return error
    is_its_text = _failure is not None and str(_failure) in str(error)
    return _failure if isinstance(error, tf.errors.OpError) and is_its_text else None


@contextmanager
def typed() -> Iterator[None]:
    """Within, errors of synchronisation come with their own type, TensorFlow's as their cause."""
    try:
        yield
    except tf.errors.OpError as error:
        cause = cause_of(error)
        if cause is None:
            raise
        raise cause from error


def with_typed_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The same function; see `typed`."""

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with typed():
            return function(*args, **kwargs)

    called.__name__, called.__doc__ = function.__name__, function.__doc__
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
