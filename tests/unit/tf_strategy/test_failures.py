"""Errors keep their types on their way through TensorFlow, and nothing is synchronised after the first."""

import sys

import pytest
import tensorflow as tf

from coarse.errors import CapacityError, ConfigError, DeadRankError, MismatchError, StallError
from tf_strategy import failures

ERRORS = [
    DeadRankError("worker 1 died", rank=1),
    StallError("ranks [1] have not come", missing=(1,)),
    MismatchError("another shape"),
    CapacityError("too large"),
    KeyboardInterrupt(),
    AssertionError(),
]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(failures, "_failure", None)


def failing(error):
    """A synchronisation that fails, and how often it has been tried."""
    tried = []

    @failures.noted
    def synchronise():
        tried.append(1)
        raise error

    return synchronise, tried


def in_a_graph(function):
    return tf.function(lambda: tf.numpy_function(function, [], tf.float32), autograph=False)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_within_a_graph_is_found_behind_tensorflows(error):
    synchronise, _ = failing(error)
    with pytest.raises(tf.errors.OpError) as caught:
        in_a_graph(synchronise)()
    assert failures.cause_of(caught.value) is error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_within_typed_it_is_raised_itself(error):
    synchronise, _ = failing(error)
    with pytest.raises(type(error)) as caught, failures.typed():
        in_a_graph(synchronise)()
    assert caught.value is error
    assert isinstance(error.__cause__, tf.errors.OpError)


def test_every_later_synchronisation_raises_the_first_error_and_does_nothing():
    first, other = StallError("first"), StallError("other")
    synchronise, _ = failing(first)
    later, tried = failing(other)
    with pytest.raises(StallError):
        synchronise()
    for _ in range(3):
        with pytest.raises(StallError) as caught:
            later()
        assert caught.value is first
    assert not tried


def test_an_error_of_the_users_is_none_of_coarses():
    def broken():
        raise ValueError("mine")

    synchronise, _ = failing(MismatchError("another shape"))
    with pytest.raises(MismatchError):
        synchronise()
    with pytest.raises(tf.errors.OpError, match="mine") as caught, failures.typed():
        in_a_graph(broken)()
    assert failures.cause_of(caught.value) is None
    assert failures.cause_of(ValueError("StallError: first")) is None


def refuse():
    raise ConfigError("it cannot work", key="mode")


def test_an_error_while_a_function_is_traced_is_found_behind_autographs():
    error = None
    try:
        tf.function(lambda: refuse())()
    except Exception as raised:
        error = raised
    cause = failures.cause_of(error)
    assert isinstance(cause, ConfigError)
    assert cause.key == "mode"
    with pytest.raises(ConfigError, match="it cannot work"), failures.typed():
        tf.function(lambda: tf.function(lambda: refuse())())()


def test_an_uncaught_error_is_reported_as_what_is_behind_it(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, where: reported.append((kind, error, where)))
    failures.name_causes_at_the_end()
    dead = DeadRankError("worker 1 died", rank=1)
    synchronise, _ = failing(dead)
    for function in (in_a_graph(synchronise), lambda: 1 / 0, synchronise):
        try:
            function()
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
    assert [kind for kind, _, _ in reported] == [DeadRankError, ZeroDivisionError, DeadRankError]
    assert reported[0][1] is reported[2][1] is dead
    assert all(where is not None for _, _, where in reported)


def test_a_function_with_typed_errors_is_the_same_function():
    @failures.with_typed_errors
    def added(one: int, *, other: int) -> int:
        """The sum."""
        return one + other

    assert added(1, other=2) == 3
    assert added.__doc__ == "The sum."
