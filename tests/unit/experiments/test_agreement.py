"""Workers that trained apart, or diverged, are found and told what to do."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from coarse.errors import MismatchError
from experiments.agreement import (
    DivergedError,
    Pushed,
    UnsynchronisedError,
    check_alike,
    check_finite,
    check_pushed,
    check_rows,
    digest,
    gradient_bytes,
)

NAMES = ("accuracy", "weights")


def test_values_that_are_equal_on_all_workers_pass():
    check_rows(np.array([[0.5, 7.0]] * 3), NAMES, 0, "is wrong")
    check_alike({"accuracy": 0.5}, "is wrong")  # one process, without coarse


def test_only_the_value_that_differs_is_named_with_what_every_worker_has():
    with pytest.raises(MismatchError, match=r"rank 1: .* in weights \(7\.0, 8\.0\); .* what is wrong") as raised:
        check_rows(np.array([[0.5, 7.0], [0.5, 8.0]]), NAMES, 1, "is wrong")
    assert "accuracy" not in str(raised.value)


def test_a_value_that_is_no_number_equals_nothing():
    with pytest.raises(MismatchError, match=r"accuracy \(nan, nan\)"):
        check_rows(np.array([[math.nan, 7.0]] * 2), NAMES, 0, "is wrong")


def test_a_digest_tells_weights_apart_by_one_bit_and_by_their_order():
    first, second = np.zeros(3, np.float32), np.ones(2, np.float32)
    assert digest([first, second]) == digest([first.copy(), second.copy()])
    assert digest([first, second]) != digest([second, first])
    assert digest([first, second]) != digest([first, np.nextafter(second, np.float32(2))])
    assert digest([first]) == int(digest([first])) < 2**32


def test_every_step_must_push_its_gradients():
    variables = [SimpleNamespace(shape=(3, 4), dtype="float32"), SimpleNamespace(shape=(), dtype="float16")]
    nbytes = gradient_bytes(variables)
    assert nbytes == 3 * 4 * 4 + 2
    check_pushed(Pushed(10, 10 * nbytes), 10, nbytes, 0)
    for found in (Pushed(10, 10 * nbytes - 1), Pushed(9, 10 * nbytes), Pushed(0, 0)):
        with pytest.raises(UnsynchronisedError, match=r"rank 3: 10 steps push 500 bytes .* strategy\.scope\(\)"):
            check_pushed(found, 10, nbytes, 3)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_training_that_diverged_is_refused_with_the_step_and_the_remedy(wrong):
    check_finite([2.0, 1.0], 0)
    with pytest.raises(DivergedError, match=r"rank 2: .* number 2 is (nan|inf); .* lower --learning-rate"):
        check_finite([2.0, wrong], 2)
