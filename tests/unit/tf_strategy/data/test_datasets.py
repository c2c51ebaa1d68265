"""When data end for all workers, what of them cannot be used together, and that nothing is asked ahead."""

import re
from itertools import product

import numpy as np
import pytest
import tensorflow as tf

from coarse.errors import ConfigError, MismatchError
from tf_strategy.data.datasets import num_batches_of
from tf_strategy.data.end import (
    INFINITE,
    NOT_BY_KERAS,
    UNKNOWN,
    DataPart,
    DataSplit,
    StepReport,
    allowed_behind,
    different_orders,
    goes_on,
    must_ask,
    shared_seed,
)
from tf_strategy.data.end_agreement import DataAgreement, empty_batch


def parts(*counts: int, split: DataSplit = DataSplit.BY_BATCHES, **fields: int) -> list[DataPart]:
    """What workers with these numbers of batches say."""
    alike = DataPart(split, 0, NOT_BY_KERAS, NOT_BY_KERAS, 7, 0, 0, 0)._replace(**fields)
    return [alike._replace(num_batches=count) for count in counts]


def said(step: int, *lengths: int) -> list[StepReport]:
    """What workers whose data have these lengths say at a step."""
    return [StepReport(0, step, min(length, step + 1)) for length in lengths]


# --- before the first batch


@pytest.mark.parametrize("split", DataSplit)
def test_workers_with_equal_known_or_endless_data_ask_nothing(split):
    assert not must_ask(parts(5, 5, 5, split=split))
    assert not must_ask(parts(INFINITE, INFINITE, split=split))
    assert must_ask(parts(UNKNOWN, UNKNOWN, split=split))


def test_one_worker_has_nobody_to_ask():
    assert not must_ask(parts(UNKNOWN))


def test_files_may_differ_by_a_batch_and_nothing_else_may():
    assert must_ask(parts(5, 6, split=DataSplit.BY_FILES))
    for split, counts in [(DataSplit.BY_FILES, (5, 7)), (DataSplit.BY_BATCHES, (5, 6)), (DataSplit.AS_GIVEN, (6, 5))]:
        with pytest.raises(MismatchError, match=f"rank 0: {counts[0]} batches, rank 1: {counts[1]} batches; .*repeat"):
            must_ask(parts(*counts, split=split))


@pytest.mark.parametrize("split", DataSplit)
def test_endless_data_beside_others_are_refused(split):
    with pytest.raises(MismatchError, match=r"ranks 0, 2: without an end, rank 1: 5 batches"):
        must_ask(parts(INFINITE, 5, INFINITE, split=split))
    with pytest.raises(MismatchError, match=r"rank 0: 1 batches, rank 1: an unknown number; .*assert_cardinality"):
        must_ask(parts(1, UNKNOWN, split=split))


@pytest.mark.parametrize("field", ["split", "keras_batches", "keras_steps"])
def test_ranks_that_split_or_count_differently_are_refused(field):
    first, second = parts(5, 5)
    with pytest.raises(MismatchError, match=r"rank 0: .*, rank 1: .*; "):
        must_ask([first, second._replace(**{field: 2})])


ORDERS = {
    "seed": (r"different global seeds \(rank 0: seed 7, rank 1: seed 8\).*set_random_seed", [*DataSplit][1:]),
    "shuffles": ("some ranks alone have run a random operation.*give shuffle one seed", [DataSplit.BY_BATCHES]),
    "python_random": ("and Python's random would draw other numbers.*a PyDataset by", [*DataSplit][1:]),
    "numpy_random": ("and numpy.random would draw other numbers.*the same from it on all ranks", [*DataSplit][1:]),
}


@pytest.mark.parametrize("split", DataSplit)
@pytest.mark.parametrize("field", ORDERS)
def test_different_orders_matter_where_each_rank_reads_all(field, split):
    first, second = parts(5, 5, split=split)
    assert different_orders([first, second]) == []
    text, where = ORDERS[field]
    found = different_orders([first, second._replace(**{field: 8})])
    assert len(found) == (split in where)
    assert all(re.search(text, warning) and "twice in an epoch" in warning for warning in found)


def test_generators_that_differ_are_told_in_one_warning_beside_that_of_seeds():
    first, second = parts(5, 5)
    found = different_orders([first, second._replace(seed=8, shuffles=8, python_random=8, numpy_random=8)])
    assert len(found) == 2
    assert "Python's random and numpy.random would" in found[1]


def test_a_seed_that_was_set_comes_before_a_drawn_one():
    assert shared_seed([None, None], 9) == 9
    assert shared_seed([None, 4, 5], 9) == 4
    assert shared_seed([0, None], 9) == 0


# --- at a step


def ends(allowed: int, lengths: tuple[int, ...]) -> tuple[int, str]:
    """The step at which data of these lengths end, and the error, if it is one."""
    for step in range(max(lengths) + 2):
        try:
            if not goes_on(said(step, *lengths), allowed):
                return step, ""
        except MismatchError as error:
            return step, str(error)
    raise AssertionError("they never end")


@pytest.mark.parametrize("allowed", [0, 1])
def test_data_go_on_until_the_longest_is_over_or_an_error_names_the_shortest(allowed):
    for lengths in product(range(4), repeat=3):
        shortest = min(lengths)
        step, error = ends(allowed, lengths)
        if max(lengths) - shortest <= allowed:
            assert (step, error) == (max(lengths), "")
        else:
            assert step == shortest + allowed
            assert f"{lengths.index(shortest)}" in error.partition(f": gave {shortest} batches")[0]
            assert "repeat() with steps_per_epoch" in error


def test_workers_at_different_batches_are_told_where_each_is():
    apart = [StepReport(2, 3, 4), StepReport(2, 0, 1)]
    with pytest.raises(MismatchError, match="rank 0: at batch 3 of dataset number 2, rank 1: at batch 0 of dataset"):
        goes_on(apart, 1)


def test_only_files_may_be_behind():
    splits = (DataSplit.AS_GIVEN, DataSplit.BY_BATCHES, DataSplit.BY_FILES)
    assert [allowed_behind(split) for split in splits] == [0, 0, 1]


# --- datasets


class Alone(DataAgreement):
    """An agreement of one worker with itself, beside another whose data are longer."""

    def __init__(self, longest: int) -> None:
        self.longest, self.asked_for = longest, []

    def ask(self, step, num_given):
        self.asked_for.append((int(step), int(num_given)))
        return np.bool_(step < self.longest)


@pytest.mark.parametrize("num_read", range(4))
def test_each_batch_is_asked_for_when_it_is_read_and_no_other(num_read):
    agreement = Alone(3)
    iterator = iter(agreement.asked(tf.data.Dataset.range(3).batch(1).map(lambda x: x + 1).prefetch(2)))
    assert [int(next(iterator)[0]) for _ in range(num_read)] == [1, 2, 3][:num_read]
    assert agreement.asked_for == [(step, step + 1) for step in range(num_read)]


def test_a_worker_whose_data_are_over_runs_empty_batches_until_all_are():
    agreement = Alone(4)
    part = tf.data.Dataset.range(6).batch(3, drop_remainder=True)
    for _ in range(2):
        agreement.asked_for.clear()
        assert [batch.numpy().tolist() for batch in agreement.asked(part)] == [[0, 1, 2], [3, 4, 5], [], []]
        assert agreement.asked_for == [(0, 1), (1, 2), (2, 2), (3, 2), (4, 2)]


def test_threads_that_a_dataset_was_given_are_kept():
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    for given, wanted in [(tf.data.Dataset.range(3).batch(1).with_options(options), 1), (tf.data.Dataset.range(1), 0)]:
        part = given if wanted else given.batch(1)
        found = Alone(1).asked(part).options()
        assert found.threading.private_threadpool_size == wanted
        assert found.experimental_optimization.inject_prefetch is False


def test_an_empty_batch_has_no_rows_of_any_component():
    rows = {
        "dense": tf.reshape(tf.range(12), [3, 2, 2]),
        "ragged": tf.ragged.constant([[[1, 2]], [], [[3]]]),
        "sparse": tf.sparse.from_dense(tf.eye(3)),
        "text": tf.constant(["a", "b", "c"]),
    }
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(2).map(lambda row: (row, None))
    (empty,) = dataset.take(0).concatenate(tf.data.Dataset.from_tensors(empty_batch(dataset.element_spec)))
    assert empty[1] is None
    assert empty[0]["dense"].shape == (0, 2, 2)
    assert empty[0]["text"].shape == (0,)
    assert empty[0]["ragged"].shape[0] == 0
    assert empty[0]["ragged"].ragged_rank == rows["ragged"].ragged_rank
    assert empty[0]["sparse"].dense_shape.numpy().tolist() == [0, 3]


@pytest.mark.parametrize("spec", [tf.TensorSpec([], tf.int64), tf.OptionalSpec(tf.TensorSpec([2]))])
def test_what_has_no_rows_has_no_empty_batch(spec):
    with pytest.raises(ConfigError, match="batch the dataset"):
        empty_batch(spec)


def test_the_length_of_data_is_known_as_far_as_it_can_be():
    numbers = tf.data.Dataset.range(10)
    assert num_batches_of(numbers.batch(4)) == 3
    assert num_batches_of(numbers.repeat()) == INFINITE
    assert num_batches_of(numbers.filter(lambda _: True)) == UNKNOWN
    assert num_batches_of(numbers.flat_map(lambda _: tf.data.Dataset.range(2))) == 20


def test_the_length_of_a_generator_s_data_is_not_known_and_none_of_them_is_read():
    read = []

    def batches():
        read.append(True)
        yield np.zeros(2)

    given = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.float64))
    assert num_batches_of(given.prefetch(1)) == UNKNOWN
    assert not read
