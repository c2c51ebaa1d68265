"""What fit, evaluate and steps on one batch train with, beside one process or MirroredStrategy on the same split."""

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tests.mpi.tf.data_training import (
    BATCH,
    EVEN,
    MIRRORED,
    NUM_WORKERS,
    ODD,
    RANK,
    STRATEGY,
    dataset,
    fitted,
    model,
    require_alike,
    rows,
    trained_alike,
)
from tests.support.claims import in_test_all


def a_last_batch_that_leaves_a_worker_no_rows_trains_as_under_mirrored_strategy() -> None:
    trained_alike(fitted(ODD), MIRRORED)


@in_test_all
def batch_normalization_over_no_rows_is_that_of_mirrored_strategy() -> None:
    trained_alike(fitted(ODD, epochs=1), MIRRORED, keras.layers.BatchNormalization)


def evaluate_over_a_last_batch_of_no_rows_is_that_of_one_process() -> None:
    ours, alone = model(strategy=STRATEGY), model()
    for data in (dataset(ODD), dataset(ODD).filter(lambda *_: True)):
        require_alike(ours.evaluate(data, verbose=0)[1], alone.evaluate(data, verbose=0)[1])


@in_test_all
def several_steps_per_execution_and_validation_train_as_in_one_process() -> None:
    trained_alike(fitted(EVEN, validation_data=rows(48), validation_batch_size=8), steps=3)


@in_test_all
def weighted_rows_and_split_validation_train_as_in_one_process() -> None:
    weights = np.random.default_rng(5).uniform(0.5, 2, EVEN).astype("f4")
    trained_alike(fitted(EVEN, sample_weight=weights, validation_split=0.4, batch_size=8))


@in_test_all
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
        lambda trained: (
            trained.fit(
                given if trained.distribute_strategy is STRATEGY else dataset(EVEN), epochs=2, verbose=0
            ).history
        )
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
