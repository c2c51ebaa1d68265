"""What workers are given of a dataset, and what predict gives back, beside MirroredStrategy on the same split.

Two workers; MirroredStrategy has two replicas on two logical processors of each.
"""

import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.gradients.byte_stream import stream_blobs
from tests.mpi.claims import report_claims
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


# --- fit and evaluate


def a_last_batch_that_leaves_a_worker_no_rows_trains_as_under_mirrored_strategy() -> None:
    trained_alike(fitted(ODD), MIRRORED)


def batch_normalization_over_no_rows_is_that_of_mirrored_strategy() -> None:
    trained_alike(fitted(ODD, epochs=1), MIRRORED, keras.layers.BatchNormalization)


def evaluate_over_a_last_batch_of_no_rows_is_that_of_one_process() -> None:
    ours, alone = model(strategy=STRATEGY), model()
    for data in (dataset(ODD), dataset(ODD).filter(lambda *_: True)):
        require_alike(ours.evaluate(data, verbose=0)[1], alone.evaluate(data, verbose=0)[1])


def several_steps_per_execution_and_validation_train_as_in_one_process() -> None:
    trained_alike(fitted(EVEN, validation_data=rows(48), validation_batch_size=8), steps=3)


def weighted_rows_and_split_validation_train_as_in_one_process() -> None:
    weights = np.random.default_rng(5).uniform(0.5, 2, EVEN).astype("f4")
    trained_alike(fitted(EVEN, sample_weight=weights, validation_split=0.4, batch_size=8))


def weighted_classes_train_as_in_one_process() -> None:
    labels = keras.utils.to_categorical(np.arange(EVEN) % 3, 3)
    trained_alike(fitted(EVEN, y=labels, class_weight={0: 0.5, 1: 2.0, 2: 1.5}))


def an_infinite_dataset_trains_for_the_steps_that_are_asked() -> None:
    trained_alike(lambda trained: trained.fit(dataset(EVEN).repeat(), epochs=2, steps_per_epoch=3, verbose=0).history)


def a_dataset_that_is_distributed_already_is_split_once() -> None:
    given = STRATEGY.experimental_distribute_dataset(dataset(EVEN))
    assert STRATEGY.experimental_distribute_dataset(given) is given
    assert given.cardinality == EVEN // BATCH
    trained_alike(
        lambda trained: trained.fit(
            given if trained.distribute_strategy is STRATEGY else dataset(EVEN), epochs=2, verbose=0
        ).history
    )


def a_generator_trains_as_in_one_process() -> None:
    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        x, y = rows(EVEN)
        for begin in range(0, EVEN, BATCH):
            yield x[begin : begin + BATCH], y[begin : begin + BATCH]

    signature = tuple(tf.TensorSpec([None, array.shape[1]], tf.float32) for array in rows(EVEN))
    given = tf.data.Dataset.from_generator(batches, output_signature=signature)
    trained_alike(lambda trained: trained.fit(given, epochs=2, verbose=0).history)


class Batches(keras.utils.PyDataset):
    """Global batches of `rows`, one by one."""

    def __len__(self) -> int:
        return EVEN // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = rows(EVEN)
        return x[index * BATCH :][:BATCH], y[index * BATCH :][:BATCH]


def a_py_dataset_trains_as_in_one_process() -> None:
    trained_alike(lambda trained: trained.fit(Batches(), epochs=2, shuffle=False, verbose=0).history)


def train_on_batch_and_test_on_batch_take_each_workers_batch_as_its_share() -> None:
    x, y = rows(NUM_WORKERS * BATCH)
    ours, alone = model(strategy=STRATEGY), model()
    mine = slice(RANK * BATCH, (RANK + 1) * BATCH)
    for method in ("test_on_batch", "train_on_batch"):
        for each in (ours, alone):
            each.reset_metrics()  # which Keras 3.10 leaves to its callers
        wanted = getattr(alone, method)(x, y)
        require_alike(getattr(ours, method)(x[mine], y[mine]), wanted)
        require_alike(list(ours.get_metrics_result().values()), wanted)
    for weight, wanted in zip(ours.get_weights(), alone.get_weights(), strict=True):
        require_alike(weight, wanted)


# --- predict


def predict_gives_every_rank_all_rows_in_order() -> None:
    x = rows(ODD)[0]
    for steps in (1, 3):
        ours, alone = (model(strategy=strategy, steps=steps) for strategy in (STRATEGY, None))
        wanted = alone.predict(x, verbose=0)
        require_alike(ours.predict(x, batch_size=BATCH, verbose=0), wanted)
        require_alike(ours.predict(dataset(ODD), verbose=0), wanted)
        require_alike(ours.predict(dataset(ODD).filter(lambda *_: True), verbose=0), wanted)
        require_alike(ours.predict(x[: BATCH - 1], verbose=0), wanted[: BATCH - 1])


def predict_gives_rows_of_files_in_order() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in "abc"]
        for number, file in enumerate(files):
            Path(file).write_text("".join(f"{number}.{line}\n" for line in range(5 + number)))
        lines = tf.data.TextLineDataset(files).batch(4).map(tf.strings.to_number)
        with STRATEGY.scope():
            same = keras.Sequential([keras.layers.Input(()), keras.layers.Lambda(lambda number: number[:, None])])
        require_alike(same.predict(lines, verbose=0)[:, 0], [float(n) for n in tf.concat(list(lines), 0)])


def predict_gathers_nested_ragged_and_scalar_outputs() -> None:
    class Outputs(keras.Model):
        def call(self, x: tf.Tensor) -> dict[str, object]:
            lengths = tf.cast(x[:, 0] > 0, tf.int64) + 1
            return {
                "pair": (x, tf.cast(x[:, 0] > 0, tf.bool)),
                "ragged": tf.RaggedTensor.from_row_lengths(tf.repeat(x[:, 1], lengths), lengths),
                "sum": tf.reduce_sum(x),
            }

    x = rows(ODD)[0]
    with STRATEGY.scope():
        found = Outputs().predict(x, batch_size=BATCH, verbose=0)
    wanted = Outputs().predict(x, batch_size=BATCH, verbose=0)
    require_alike(found["pair"][0], wanted["pair"][0])
    require_alike(found["pair"][1], wanted["pair"][1])
    require_alike(found["ragged"].flat_values, wanted["ragged"].flat_values)
    require_alike(found["ragged"].row_lengths(), wanted["ragged"].row_lengths())
    assert found["sum"].shape == (NUM_WORKERS * len(wanted["sum"]),)
    require_alike(found["sum"].reshape(-1, NUM_WORKERS).sum(1), wanted["sum"])


def predict_on_batch_gives_the_rows_of_all_workers_batches() -> None:
    x = rows(NUM_WORKERS * BATCH)[0]
    ours, mirrored = model(strategy=STRATEGY), model(strategy=MIRRORED)
    require_alike(ours.predict_on_batch(x[RANK * BATCH :][:BATCH]), model().predict(x, verbose=0))
    require_alike(ours.predict_on_batch(x[:BATCH]), mirrored.predict_on_batch(x[:BATCH]))


# --- shuffled, and in loops of one's own


class Seen(keras.Model):
    """Keeps the rows it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[float] = []

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x

    def train_step(self, data: tf.Tensor | tuple[tf.Tensor]) -> dict[str, object]:
        (x,) = data if isinstance(data, tuple) else (data,)
        self.rows += [float(row) for row in x[:, 0]]
        return {"rows": tf.cast(tf.shape(x)[0], tf.float32)}


class Numbers(keras.utils.PyDataset):
    """The numbers below ODD, in batches that the program shuffles after an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = np.arange(ODD, dtype="f4")[:, None]

    def __len__(self) -> int:
        return -(-ODD // BATCH)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._numbers[index * BATCH :][:BATCH]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self._numbers)


def a_shuffled_epoch_takes_every_row_once() -> None:
    numbers = np.arange(ODD, dtype="f4")[:, None]
    orders = []
    for given in (numbers, tf.data.Dataset.from_tensor_slices(numbers).shuffle(ODD).batch(BATCH), Numbers()):
        with STRATEGY.scope():
            seen = Seen()
            seen.compile(run_eagerly=True)
        for _ in range(2):
            seen.rows.clear()
            seen.fit(given, batch_size=None if given is not numbers else BATCH, verbose=0)
            orders.append(np.concatenate(everywhere(seen.rows)))
            assert sorted(orders[-1]) == list(range(ODD))
            assert list(orders[-1]) != list(range(ODD))
    assert list(orders[2]) != list(orders[3])


def warnings_about(given: tf.data.Dataset) -> str:
    """What a dataset's distribution warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        STRATEGY.experimental_distribute_dataset(given)
    return " ".join(str(one.message) for one in caught)


def ranks_with_different_seeds_are_warned() -> None:
    tf.random.set_seed(RANK)
    assert "different global seeds (rank 0: seed 0, rank 1: seed 1)" in warnings_about(dataset(EVEN))
    tf.random.set_seed(3)


def ranks_that_have_drawn_alone_are_warned_where_rows_come_in_another_order() -> None:
    signature = tf.TensorSpec([None], tf.int64)
    generated = tf.data.Dataset.from_generator(lambda: iter([np.arange(4)]), output_signature=signature)
    keras.utils.set_random_seed(3)
    before = dataset(EVEN).shuffle(EVEN)
    if RANK == 0:
        tf.random.normal([3])
        random.random()
    for given in (before, dataset(EVEN)):
        assert warnings_about(given) == ""
    assert "some ranks alone have run a random operation" in warnings_about(dataset(EVEN).shuffle(EVEN))
    assert "and Python's random would draw other numbers" in warnings_about(generated)
    keras.utils.set_random_seed(3)
    for given in (dataset(EVEN).shuffle(EVEN), generated):
        assert warnings_about(given) == ""


def a_function_s_dataset_is_read_as_it_is_by_next_and_in_functions() -> None:
    def numbers(context: tf.distribute.InputContext) -> tf.data.Dataset:
        assert (context.input_pipeline_id, context.num_input_pipelines) == (RANK, NUM_WORKERS)
        assert context.get_per_replica_batch_size(8) == 4
        return tf.data.Dataset.range(RANK * 100, RANK * 100 + 6).batch(2)

    given = STRATEGY.distribute_datasets_from_function(numbers)
    assert given.cardinality == 3

    @tf.function
    def total(batch: tf.Tensor) -> tf.Tensor:
        return STRATEGY.reduce("SUM", STRATEGY.run(tf.reduce_sum, (batch,)), axis=None)

    @tf.function
    def total_of_next(iterator: tf.distribute.DistributedIterator) -> tf.Tensor:
        return total(next(iterator))

    @tf.function
    def total_of_rest(iterator: tf.distribute.DistributedIterator) -> tf.Tensor:
        found = tf.constant(0, tf.int64)
        for batch in iterator:
            found += STRATEGY.reduce("SUM", batch, axis=0)
        return found

    iterator = iter(given)
    assert int(total(next(iterator))) == 0 + 1 + 100 + 101
    assert int(total_of_next(iterator)) == 2 + 3 + 102 + 103
    optional = iterator.get_next_as_optional()
    assert bool(optional.has_value())
    assert int(total(optional.get_value())) == 4 + 5 + 104 + 105
    assert not bool(iterator.get_next_as_optional().has_value())
    assert int(total_of_rest(iter(given))) == sum(range(6)) + sum(range(100, 106))


def nested_ragged_and_sparse_rows_reach_their_workers() -> None:
    numbers = tf.range(8)
    rows_of = {
        "dense": tf.reshape(numbers, [4, 2]),
        "ragged": tf.RaggedTensor.from_row_lengths(numbers, [1, 2, 3, 2]),
        "sparse": tf.sparse.from_dense(tf.linalg.diag(tf.range(1, 5))),
    }
    nested = tf.data.Dataset.from_tensor_slices(rows_of).batch(4).map(lambda row: (row, None))
    (batch,) = list(STRATEGY.experimental_distribute_dataset(nested))
    mine = slice(2 * RANK, 2 * RANK + 2)
    assert batch[1] is None
    assert batch[0]["dense"].numpy().tolist() == rows_of["dense"][mine].numpy().tolist()
    assert batch[0]["ragged"].to_list() == rows_of["ragged"][mine].to_list()
    assert tf.sparse.to_dense(batch[0]["sparse"]).numpy().tolist() == np.diag(range(1, 5))[mine].tolist()


CLAIMS = (
    a_shuffled_epoch_takes_every_row_once,  # first: no seed has been set
    a_last_batch_that_leaves_a_worker_no_rows_trains_as_under_mirrored_strategy,
    batch_normalization_over_no_rows_is_that_of_mirrored_strategy,
    evaluate_over_a_last_batch_of_no_rows_is_that_of_one_process,
    several_steps_per_execution_and_validation_train_as_in_one_process,
    weighted_rows_and_split_validation_train_as_in_one_process,
    weighted_classes_train_as_in_one_process,
    an_infinite_dataset_trains_for_the_steps_that_are_asked,
    a_dataset_that_is_distributed_already_is_split_once,
    a_generator_trains_as_in_one_process,
    a_py_dataset_trains_as_in_one_process,
    train_on_batch_and_test_on_batch_take_each_workers_batch_as_its_share,
    predict_gives_every_rank_all_rows_in_order,
    predict_gives_rows_of_files_in_order,
    predict_gathers_nested_ragged_and_scalar_outputs,
    predict_on_batch_gives_the_rows_of_all_workers_batches,
    ranks_with_different_seeds_are_warned,
    ranks_that_have_drawn_alone_are_warned_where_rows_come_in_another_order,
    a_function_s_dataset_is_read_as_it_is_by_next_and_in_functions,
    nested_ragged_and_sparse_rows_reach_their_workers,
)

if __name__ == "__main__":
    report_claims(CLAIMS, sys.argv[1])
