"""What a program hands to Keras and to the strategy is read and never written, wherever it lies in memory."""

import zlib
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from tests.mpi.tf.data_training import BATCH, EVEN, STRATEGY
from tests.support.claims import in_test_all

BOUNDARY = 64
"""Where an array lies that TensorFlow takes without a copy."""
ROW = (16,)
"""Of this shape views of any rows begin on the boundary too, as float32."""


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins on the boundary."""
    memory = np.zeros(array.nbytes + BOUNDARY, np.uint8)
    begin = -memory.ctypes.data % BOUNDARY
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


NUMBERS = np.random.default_rng(2)
X, Y, WEIGHTS = (aligned(NUMBERS.normal(size=(EVEN, *shape)).astype("f4")) for shape in (ROW, ROW, ()))
CLASSES = aligned((np.arange(EVEN)[:, None] % 3 == np.arange(16)).astype("f4"))


def squares(**settings: object) -> keras.Model:
    """16 -> 16, whose loss subtracts predictions from labels."""
    with STRATEGY.scope():
        made = keras.Sequential([keras.layers.Input(ROW), keras.layers.Dense(16)])
        made.compile("sgd", "mse", weighted_metrics=["mae"], **settings)
    return made


SQUARES = squares()


class Views(keras.utils.PyDataset):
    """Global batches that are views."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__()
        self._arrays = arrays

    def __len__(self) -> int:
        return EVEN // BATCH

    def __getitem__(self, number: int) -> tuple[np.ndarray, ...]:
        return tuple(array[number * BATCH :][:BATCH] for array in self._arrays)


def views() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same from a generator."""
    for number in range(EVEN // BATCH):
        yield Views(X, Y)[number]


def generated() -> tf.data.Dataset:
    """The same from a generator, as a dataset."""
    return tf.data.Dataset.from_generator(views, output_signature=(tf.TensorSpec([None, *ROW]),) * 2)


def as_given() -> tf.data.Dataset:
    """The same, in batches of every worker's own."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return generated().with_options(options)


def from_function() -> tf.distribute.DistributedDataset:
    """The same, in batches that the program cuts itself."""
    return STRATEGY.distribute_datasets_from_function(lambda _: generated().rebatch(BATCH // 2))


def checksums() -> list[int]:
    """Of all of the program's arrays."""
    return [zlib.crc32(array.tobytes()) for array in (X, Y, WEIGHTS, CLASSES)]


def all_stay_as_they_were(*uses: Callable[[], object]) -> None:
    before = checksums()
    for number, use in enumerate(uses):
        use()
        assert checksums() == before, f"use {number} has written to the program's arrays"


@in_test_all
def views_of_a_py_dataset_are_not_written_by_training() -> None:
    all_stay_as_they_were(
        lambda: SQUARES.fit(Views(X, Y), epochs=2, verbose=0),
        lambda: SQUARES.fit(Views(X, Y, WEIGHTS), validation_data=Views(X, Y), verbose=0),
        lambda: SQUARES.fit(Views(X, CLASSES), class_weight={n: 1.0 + n for n in range(16)}, verbose=0),
        lambda: SQUARES.evaluate(Views(X, Y, WEIGHTS), verbose=0),
        lambda: SQUARES.predict(Views(X), verbose=0),
        lambda: squares(run_eagerly=True).fit(Views(X, Y), verbose=0),
        lambda: squares(steps_per_execution=2).fit(Views(X, Y), verbose=0),
    )


@in_test_all
def views_of_a_generator_are_not_written_however_they_are_split() -> None:
    all_stay_as_they_were(
        lambda: SQUARES.fit(generated(), epochs=2, verbose=0),
        lambda: SQUARES.fit(views(), steps_per_epoch=2, verbose=0),
        lambda: SQUARES.fit(generated(), class_weight={n: 1.0 + n for n in range(16)}, verbose=0),
        lambda: SQUARES.fit(as_given(), verbose=0),
        lambda: SQUARES.fit(from_function(), verbose=0),
        lambda: SQUARES.evaluate(generated(), verbose=0),
        lambda: SQUARES.predict(generated(), verbose=0),
    )


def arrays_are_not_written() -> None:
    given = {"batch_size": BATCH, "verbose": 0}
    all_stay_as_they_were(
        lambda: SQUARES.fit(X, Y, sample_weight=WEIGHTS, shuffle=False, validation_split=0.2, **given),
        lambda: SQUARES.fit(X, CLASSES, class_weight={n: 1.0 + n for n in range(16)}, **given),
        lambda: SQUARES.evaluate(X, Y, sample_weight=WEIGHTS, **given),
        lambda: SQUARES.predict(X, **given),
        lambda: SQUARES.train_on_batch(X, Y, sample_weight=WEIGHTS),
        lambda: SQUARES.test_on_batch(X, Y),
        lambda: SQUARES.predict_on_batch(X),
    )


def arrays_of_a_loop_of_one_s_own_are_not_written() -> None:
    @tf.function
    def step(iterator: tf.distribute.DistributedIterator) -> tf.Tensor:
        return STRATEGY.run(lambda x, y: tf.reduce_sum(tf.square(y - 3.0 - x)), next(iterator))

    def loop() -> None:
        iterator = iter(STRATEGY.experimental_distribute_dataset(generated()))
        for _ in range(EVEN // BATCH):
            step(iterator)

    def values() -> None:
        given = STRATEGY.experimental_distribute_values_from_function(lambda _: Y[:BATCH])
        tf.function(lambda: STRATEGY.run(lambda y: tf.square(y - 3.0), (given,)))()
        STRATEGY.run(lambda y: tf.negative(tf.split(y, 2)[0]), (Y[:BATCH],))
        STRATEGY.gather(Y[:BATCH], axis=0)
        STRATEGY.reduce("SUM", Y[:BATCH], axis=None)

    all_stay_as_they_were(loop, values)
