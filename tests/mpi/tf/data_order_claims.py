"""In which order rows come, and what workers of one's own loops are given."""

import random
import warnings

import keras
import numpy as np
import tensorflow as tf

from tests.mpi.tf.data_training import (
    BATCH,
    EVEN,
    NUM_WORKERS,
    ODD,
    RANK,
    STRATEGY,
    dataset,
    everywhere,
)


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
