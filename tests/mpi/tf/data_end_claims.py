"""How data end on two workers: for all at once, after a batch of no rows, or by an error that says who gave what."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.errors import ConfigError, MismatchError
from coarse.session import current
from tests.mpi.tf.data_training import MIRRORED, NUM_WORKERS, RANK, STRATEGY
from tests.support.claims import in_test_all, raises, takes_all
from tf_strategy import cause_of
from tf_strategy.data.end import UNKNOWN


def unknown(num_batches: int) -> tf.data.Dataset:
    """Batches of four rows for each worker, whose number nobody knows before the end."""
    return tf.data.Dataset.range(num_batches * NUM_WORKERS * 4).batch(NUM_WORKERS * 4).filter(lambda _: True)


def split(dataset: tf.data.Dataset, policy: str) -> tf.data.Dataset:
    """The dataset, to be split by a policy."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    return dataset.with_options(options)


def own(dataset: tf.data.Dataset) -> tf.distribute.DistributedDataset:
    """A dataset that each worker reads as it is."""
    return STRATEGY.distribute_datasets_from_function(lambda _: dataset)


def require_nothing_in_flight() -> None:
    """Every result that this worker has pushed for was taken."""
    current().require_client().require_quiet()


def pushes_for_data() -> int:
    """How often this worker was asked whether its data go on."""
    keys = coarse.statistics()["keys"]
    return int(sum(counts["pushes"] for name, counts in keys.items() if name.startswith("tensorflow/data/")))


def line_model(strategy: tf.distribute.Strategy) -> keras.Model:
    """From one number to one, compiled."""
    with strategy.scope():
        made = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        made.compile(keras.optimizers.SGD(0.01), "mse")
    return made


def with_target(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A row of one scaled number, and what the model shall make of it."""
    x = tf.cast(number, tf.float32)[..., None] / 40
    return x, 3 * x + 1


# --- the end


def data_of_a_known_length_are_read_without_asking() -> None:
    before = pushes_for_data()
    given = STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(40).batch(8))
    assert len(list(given)) == given.cardinality == 5
    x, y = with_target(tf.range(30))
    line_model(STRATEGY).fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert pushes_for_data() == before


def data_of_an_unknown_length_are_asked_for_once_a_step_and_once_at_the_end() -> None:
    before = pushes_for_data()
    given = STRATEGY.experimental_distribute_dataset(unknown(5))
    assert [len(batch) for batch in given] == [4] * 5
    assert pushes_for_data() == before + 6
    require_nothing_in_flight()


def iterators_left_at_any_step_leave_nothing_in_flight() -> None:
    given = STRATEGY.experimental_distribute_dataset(unknown(4))
    for num_steps in range(5):
        before = pushes_for_data()
        iterator = iter(given)
        for _ in range(num_steps):
            next(iterator)
        require_nothing_in_flight()
        assert pushes_for_data() == before + num_steps
        del iterator
        assert len(list(given)) == 4
        assert pushes_for_data() == before + num_steps + 5
        require_nothing_in_flight()


def iterators_of_several_datasets_are_read_side_by_side() -> None:
    first, second = (STRATEGY.experimental_distribute_dataset(unknown(count)) for count in (3, 4))

    @tf.function
    def both(one: tf.distribute.DistributedIterator, other: tf.distribute.DistributedIterator) -> tf.Tensor:
        return tf.reduce_sum(next(one)) - tf.reduce_sum(next(other))

    iterators = iter(first), iter(second)
    assert [int(both(*iterators)) for _ in range(3)] == [0, 0, 0]
    again = iter(second)
    assert int(tf.reduce_sum(next(again))) + 4 * 3 * 8 == int(tf.reduce_sum(next(iterators[1])))  # rows, steps, numbers
    require_nothing_in_flight()


class StopAt(keras.callbacks.Callback):
    """Stops training after a batch of the first epoch."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.model.stop_training = batch >= self.batch


def fits_stopped_at_any_step_leave_nothing_in_flight() -> None:
    for steps_per_execution in (1, 2) if takes_all() else (1,):
        ours, alone = (line_model(strategy) for strategy in (STRATEGY, tf.distribute.get_strategy()))
        for model in (ours, alone):
            model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=steps_per_execution)
            for batch in range(3):
                model.fit(unknown(4).map(with_target), verbose=0, callbacks=[StopAt(batch)])
                require_nothing_in_flight()
            model.fit(unknown(4).map(with_target), verbose=0, steps_per_epoch=2, epochs=2)
            require_nothing_in_flight()
            assert len(model.fit(unknown(5).map(with_target), verbose=0, epochs=2).history["loss"]) == 2
            require_nothing_in_flight()
        assert int(ours.optimizer.iterations) == int(alone.optimizer.iterations) > 6 + 10
        for weight, wanted in zip(ours.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(weight, wanted, rtol=1e-5)


def batches_in_turn() -> Iterator[np.ndarray]:
    """Batches of four numbers, for one replica and the other in turn; the second's end one earlier."""
    for begin in range(0, 20, 4):
        for first in (begin, 100 + begin)[: 2 if begin < 16 else 1]:
            yield np.arange(first, first + 4)


@in_test_all
def a_worker_whose_files_end_one_batch_earlier_trains_as_under_mirrored_strategy() -> None:
    signature = tf.TensorSpec([None], tf.int64)
    in_turn = tf.data.Dataset.from_generator(batches_in_turn, output_signature=signature).map(with_target)
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in "ab"]
        for number, (file, num_lines) in enumerate(zip(files, (20, 16), strict=True)):
            Path(file).write_text("".join(f"{100 * number + line}\n" for line in range(num_lines)))
        lines = tf.data.TextLineDataset(files).map(tf.strings.to_number).map(with_target).batch(8)
        given = STRATEGY.experimental_distribute_dataset(split(lines, "FILE"))
        assert [len(x) for x, _ in given] == ([4, 4, 4, 4, 4] if RANK == 0 else [4, 4, 4, 4, 0])
        ours = line_model(STRATEGY)
        losses = ours.fit(lines, epochs=2, verbose=0).history["loss"]
    mirrored = line_model(MIRRORED)
    theirs = mirrored.fit(MIRRORED.distribute_datasets_from_function(lambda _: in_turn), epochs=2, verbose=0)
    np.testing.assert_allclose(losses, theirs.history["loss"], rtol=1e-5)
    for weight, wanted in zip(ours.get_weights(), mirrored.get_weights(), strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=1e-5)
    require_nothing_in_flight()


def files_that_are_fewer_than_workers_are_split_by_batches() -> None:
    given = STRATEGY.experimental_distribute_dataset(tf.data.TextLineDataset(__file__).batch(2).take(3))
    lines = Path(__file__).read_text().splitlines()[:6]
    assert [line.decode() for batch in given for line in batch.numpy()] == lines[RANK::2]


def distributing_files_reads_no_row_of_them() -> None:
    read = []

    def noted(line: bytes) -> bytes:
        read.append(line)
        return line

    lines = tf.data.TextLineDataset([__file__] * NUM_WORKERS).map(lambda x: tf.numpy_function(noted, [x], tf.string))
    given = STRATEGY.experimental_distribute_dataset(lines.map(lambda line: tf.ensure_shape(line, [])).batch(4).take(5))
    assert given.cardinality == UNKNOWN
    assert not read
    assert len(next(iter(given))) == 2
    assert read[0] == Path(__file__).read_bytes().splitlines()[0]


# --- data that cannot be used together


def numbers_of_batches_that_differ_are_refused_before_the_first() -> None:
    with raises(MismatchError, "rank 0: 5 batches", "rank 1: 6 batches", "drop_remainder", "steps_per_epoch"):
        own(tf.data.Dataset.range(5 + RANK))
    with raises(MismatchError, "rank 0: without an end", "rank 1: 3 batches", "repeat()"):
        own(tf.data.Dataset.range(3).repeat(-1 if RANK == 0 else 1))
    with raises(MismatchError, "rank 0: 3 batches", "rank 1: an unknown number", "assert_cardinality"):
        own(tf.data.Dataset.range(3) if RANK == 0 else unknown(3))
    with raises(MismatchError, "rank 0: 4 batches", "rank 1: 5 batches"):
        STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(32 + 8 * RANK).batch(8))
    with raises(MismatchError, "rank 0: by batches", "rank 1: as it is", "auto_shard_policy"):
        STRATEGY.experimental_distribute_dataset(split(tf.data.Dataset.range(8).batch(8), ("DATA", "OFF")[RANK]))
    require_nothing_in_flight()


def what_keras_would_count_differently_is_refused_before_the_first() -> None:
    model = line_model(STRATEGY)
    x, y = with_target(tf.range(32 + 8 * RANK))
    with raises(MismatchError, "rank 0: 4 batches", "rank 1: 5 batches"):
        model.fit(x, y, batch_size=8, verbose=0)
    with raises(MismatchError, "steps_per_epoch differs", "rank 0: 2 batches", "rank 1: 3 batches"):
        model.fit(x[:32], y[:32], batch_size=8, steps_per_epoch=2 + RANK, verbose=0)
    require_nothing_in_flight()


def data_without_a_batch_are_refused_in_words() -> None:
    x, y = with_target(tf.range(8))
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    model = line_model(STRATEGY)
    for nothing in (rows.take(0).batch(4), rows.filter(lambda *_: False).batch(4)):
        for name, use in (("fit", model.fit), ("evaluate", model.evaluate)):
            with raises(ConfigError, f"rank {RANK}: {name} was given data without a single batch, and so were"):
                use(nothing, verbose=0)
    model.fit(rows.batch(4), verbose=0)
    assert list(STRATEGY.experimental_distribute_dataset(rows.take(0).batch(4))) == []


def what_is_no_dataset_is_refused() -> None:
    with raises(ConfigError, "tf.data.Dataset", "list"):
        STRATEGY.experimental_distribute_dataset([1, 2])
    with raises(ConfigError, "FILE", "reads no files", "DATA"):
        STRATEGY.experimental_distribute_dataset(split(tf.data.Dataset.range(8).batch(8), "FILE"))
    with raises(ConfigError, "fewer than the 2 workers", "DATA"):
        STRATEGY.experimental_distribute_dataset(split(tf.data.TextLineDataset(__file__).batch(8), "FILE"))
    with raises(ConfigError, "within a tf.function", "outside"):
        tf.function(lambda: own(tf.data.Dataset.range(3)), autograph=False)()


def data_that_end_earlier_on_one_rank_end_the_fit_of_all_with_an_error_that_says_so() -> None:
    model = line_model(STRATEGY)
    given = split(unknown(3 + RANK).map(with_target), "OFF")  # in batches of a worker's share of rows: 6, and 8
    with raises(tf.errors.OpError, "MismatchError", "rank 0: gave 6 batches, rank 1: has batch number 7") as caught:
        model.fit(given, verbose=0)
    cause = cause_of(caught[0])
    assert isinstance(cause, MismatchError), cause
    assert "drop_remainder" in str(cause)
    assert f"rank {RANK}: " in str(cause)
    require_nothing_in_flight()


CLAIMS = (
    data_of_a_known_length_are_read_without_asking,
    data_of_an_unknown_length_are_asked_for_once_a_step_and_once_at_the_end,
    iterators_left_at_any_step_leave_nothing_in_flight,
    iterators_of_several_datasets_are_read_side_by_side,
    fits_stopped_at_any_step_leave_nothing_in_flight,
    a_worker_whose_files_end_one_batch_earlier_trains_as_under_mirrored_strategy,
    files_that_are_fewer_than_workers_are_split_by_batches,
    distributing_files_reads_no_row_of_them,
    numbers_of_batches_that_differ_are_refused_before_the_first,
    what_keras_would_count_differently_is_refused_before_the_first,
    data_without_a_batch_are_refused_in_words,
    what_is_no_dataset_is_refused,
    data_that_end_earlier_on_one_rank_end_the_fit_of_all_with_an_error_that_says_so,  # last: nothing works after it
)
