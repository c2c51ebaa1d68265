"""A strategy, models and comparisons for jobs about data; MirroredStrategy has two replicas, on logical processors."""

from collections.abc import Callable, Sequence
from functools import cache

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.parallel.data.byte_stream import stream_blobs
from tf_strategy import CoarseStrategy

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
STRATEGY = CoarseStrategy()
MIRRORED = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
RANK, NUM_WORKERS = coarse.rank(), coarse.size()
BATCH = 16
ODD = 97
"""Rows whose last batch has one row, so that the second worker's share is empty."""
EVEN = 80

Fit = Callable[[keras.Model], dict[str, list[float]]]


def rows(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(num_rows, 6) and (num_rows, 3) float32, equal on all ranks."""
    numbers = np.random.default_rng(num_rows)
    return numbers.normal(size=(num_rows, 6)).astype("f4"), numbers.normal(size=(num_rows, 3)).astype("f4")


def model(*between: keras.layers.Layer, strategy: tf.distribute.Strategy | None = None, steps: int = 1) -> keras.Model:
    """6 -> 8 -> 3, with layers between, compiled, of the same weights wherever it is made."""
    return compiled(between, strategy, steps) if between else begun_again(kept(strategy, steps))


@cache
def kept(strategy: tf.distribute.Strategy | None, steps: int) -> keras.Model:
    """A model made and traced once, which takes most of the time."""
    return compiled((), strategy, steps)


def compiled(between: Sequence[object], strategy: tf.distribute.Strategy | None, steps: int) -> keras.Model:
    """A new model."""
    with (strategy or tf.distribute.get_strategy()).scope():
        first = keras.layers.Dense(8, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        last = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
        made = keras.Sequential([keras.layers.Input((6,)), first, *between, last])
        made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], steps_per_execution=steps)
        made.optimizer.build(made.trainable_variables)
    made.first = [np.array(weight) for weight in made.get_weights()]
    return made


def begun_again(made: keras.Model) -> keras.Model:
    """The model with its first weights, and an optimizer that has not taken a step."""
    made.set_weights(made.first)
    for variable in made.optimizer.variables:
        if variable.name != "learning_rate":
            variable.assign(np.zeros(variable.shape, variable.dtype))
    return made


def everywhere(array: object) -> list[np.ndarray]:
    """By rank the numbers of an array, flat float64."""
    blobs = stream_blobs(np.asarray(array, "f8").reshape(-1).tobytes(), "tests/everywhere")
    return [np.frombuffer(blob, "f8") for blob in blobs]


def require_alike(found: object, wanted: object) -> None:
    """Equal to 1e-5, also where neither is a number, and the same bits on all ranks."""
    found, wanted = np.asarray(found, "f8"), np.asarray(wanted, "f8")
    of_ranks = everywhere(found)
    assert all(np.array_equal(other, of_ranks[0], equal_nan=True) for other in of_ranks), "ranks differ"
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def trained_alike(
    fit: Fit, beside: tf.distribute.Strategy | None = None, *between: Callable[[], object], steps: int = 1
) -> None:
    """A fit on the strategy has the history and the weights that it has on one process, or another strategy."""
    ours, theirs = (
        model(*(make() for make in between), strategy=strategy, steps=steps) for strategy in (STRATEGY, beside)
    )
    mine, other = fit(ours), fit(theirs)
    assert list(mine) == list(other)
    for name in mine:
        require_alike(mine[name], other[name])
    for weight, wanted in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        require_alike(weight, wanted)


def fitted(num_rows: int, **settings: object) -> Fit:
    """A fit of two epochs on arrays, in order."""
    x, y = rows(num_rows)
    given = {"x": x, "y": y, "batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **settings}
    return lambda trained: trained.fit(**given).history


def dataset(num_rows: int) -> tf.data.Dataset:
    """Global batches of `rows`."""
    return tf.data.Dataset.from_tensor_slices(rows(num_rows)).batch(BATCH)
