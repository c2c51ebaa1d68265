"""Arrays that a program lends to TensorFlow are not written to, wherever rows were cut from them."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tf_strategy.data.datasets import owned
from tf_strategy.private_names import has_lent_memory


class Pair(NamedTuple):
    """An element of two parts."""

    x: object
    y: object


def aligned(nbytes: int, boundary: int = 64) -> np.ndarray:
    """(nbytes,) uint8 on a boundary, where TensorFlow takes an array without a copy."""
    memory = np.zeros(nbytes + boundary, np.uint8)
    begin = -memory.ctypes.data % boundary
    return memory[begin : begin + nbytes]


MOST_EPOCHS = 50
LENT = aligned(64 * 16 * 4).view("f4").reshape(64, 16)


def views() -> Iterator[np.ndarray]:
    """Four views of LENT."""
    yield from LENT.reshape(4, 16, 16)


def generated() -> tf.data.Dataset:
    """Views from a generator."""
    return tf.data.Dataset.from_generator(views, output_signature=tf.TensorSpec([None, 16]))


def mapped() -> tf.data.Dataset:
    """Views from a function of numpy."""

    def view(number: np.int64) -> np.ndarray:
        return LENT[16 * number :][:16]

    def numbered(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(view, [number], tf.float32), [16, 16])

    return tf.data.Dataset.range(4).map(numbered)


def unknown() -> tf.data.Dataset:
    """Views of a dataset that nobody can look into."""
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(generated()), tf.TensorSpec([None, 16]))


def num_rows_written(dataset: tf.data.Dataset) -> int:
    """How many of LENT's rows an epoch writes to."""
    LENT[:] = 1

    @tf.function
    def step(rows: Iterator[tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(tf.square(next(rows) - 3.0))

    iterator = iter(dataset)
    for _ in range(8):
        assert float(step(iterator)) == 8 * 16 * 4
    return int((LENT != 1).any(axis=1).sum())


@pytest.mark.parametrize("make", [generated, mapped, unknown])
def test_an_array_that_is_lent_stays_as_it_is_however_its_rows_are_cut(make):
    # TensorFlow's mistake, which takes a reader that is the last to hold the rows: else nothing is shown here
    assert any(num_rows_written(make().rebatch(8)) for _ in range(MOST_EPOCHS))
    assert not any(num_rows_written(owned(make().rebatch(8))) for _ in range(5))


@pytest.mark.parametrize(
    "element",
    [
        tf.constant([[1, 2]]),
        (tf.constant([True]),),
        (tf.constant([1j]), None),
        Pair(tf.constant([1.5]), {"a": tf.constant(["one"]), "b": tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2])}),
        tf.sparse.from_dense(tf.eye(2)),
    ],
    ids=["tensor", "tuple of one", "none", "named", "sparse"],
)
def test_elements_are_as_they_were_whatever_they_are_made_of(element):
    lent = tf.data.Dataset.zip((generated(), tf.data.Dataset.from_tensors(element).repeat(4)))
    given = lent.map(lambda _, kept: kept)
    assert has_lent_memory(given)
    found = owned(given)
    assert found.element_spec == given.element_spec
    assert type(found.element_spec) is type(given.element_spec)
    assert int(found.cardinality()) == int(given.cardinality())
    for one, other in zip(found, given, strict=True):
        mine, theirs = (tf.nest.flatten(each, expand_composites=True) for each in (one, other))
        for a, b in zip(mine, theirs, strict=True):
            assert a is b is None or (a.numpy() == b.numpy()).all()


def test_what_tensorflow_has_made_itself_is_not_copied():
    given = tf.data.Dataset.from_tensor_slices(LENT).map(lambda row: row + 1).batch(8)
    assert not has_lent_memory(given)
    assert owned(given) is given
