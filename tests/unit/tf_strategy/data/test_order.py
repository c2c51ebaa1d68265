"""Numbers tell apart what the order of rows depends on, and ranks whose generators differ are made to draw alike."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from tf_strategy.data.datasets import order_of, share_seed
from tf_strategy.data.end import DataPart
from tf_strategy.private_names import draws_of

Data = tf.data.Dataset


class Batches(keras.utils.PyDataset):
    """Two batches."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.zeros((2, 1), "f4"), np.zeros((2, 1), "f4")


def generated():
    return Data.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int32))


@pytest.fixture(autouse=True)
def generators():
    """Generators of random numbers that other tests do not notice."""
    states = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(3)
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def order(make):
    """By name what the order of a new dataset depends on."""
    return dict(zip(DataPart._fields[-4:], order_of(make()), strict=True))


SHUFFLED = {
    "a shuffle": lambda: Data.range(9).shuffle(9).batch(2),
    "one below others": lambda: Data.zip((Data.range(9), Data.range(9).map(lambda x: x).shuffle(9).repeat())),
    "names of files": lambda: Data.list_files([__file__]).flat_map(tf.data.TextLineDataset),
    "drawn numbers": lambda: Data.random().batch(2).take(3),
    "a choice": lambda: Data.sample_from_datasets([Data.range(3), Data.range(3)]),
}


@pytest.mark.parametrize("kind", SHUFFLED)
def test_a_random_operation_before_changes_the_number_for_shuffles_alone(kind):
    before = order(SHUFFLED[kind])
    keras.utils.set_random_seed(3)
    assert order(SHUFFLED[kind]) == before
    keras.utils.set_random_seed(3)
    tf.random.normal([3])
    after = order(SHUFFLED[kind])
    assert {field for field in before if before[field] != after[field]} == {"shuffles"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Data.range(9).shuffle(9, seed=4),
        lambda: Data.range(9).batch(2),
        lambda: ArrayDataAdapter(np.zeros((9, 2)), batch_size=2, shuffle=True).get_tf_dataset(),
        lambda: Data.range(9).map(lambda x: tf.random.uniform([], seed=1)),
    ],
)
def test_data_that_no_earlier_operation_decides_on_have_the_same_number(make):
    before = order(make)
    tf.random.normal([3])
    random.random()
    np.random.random()
    assert order(make) == before


@pytest.mark.parametrize(
    ("make", "is_from_python"),
    [
        (generated, True),
        (lambda: generated().map(lambda x: x + 1).shuffle(2).batch(2).prefetch(1), True),
        (lambda: Data.range(2).interleave(lambda _: generated()), True),
        (lambda: PyDatasetAdapter(Batches(), shuffle=True).get_tf_dataset(), True),
        (lambda: Data.range(3).map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)), False),
        (lambda: Data.range(3).batch(2), False),
    ],
)
def test_generators_of_python_count_where_rows_come_from_python(make, is_from_python):
    assert draws_of(make())[1] == is_from_python
    found = order(make)
    for draw, field in ((random.random, "python_random"), (np.random.random, "numpy_random")):
        assert bool(found[field]) == is_from_python
        draw()
        after = order(make)
        changed = {name for name in found if found[name] != after[name]} - {"shuffles"}
        assert changed == ({field} if is_from_python else set())
        found = after


def test_a_dataset_that_is_read_twice_is_looked_at_once():
    twice = Data.range(3).shuffle(3)
    for _ in range(30):
        twice = Data.zip((twice, twice)).map(lambda one, _: one)
    assert len(draws_of(twice)[0]) == 1


class Ranks:
    """Says for other ranks what they would say."""

    def __init__(self, *others):
        self.others = others

    def gather(self, tensor):
        return [tensor, *(tf.constant([[*tensor.numpy()[0, :2], 5, *states]], tf.int64) for states in self.others)]


def drawn():
    return random.random(), float(np.random.random())


def test_generators_that_are_equal_on_all_ranks_stay_as_they_are():
    python, numpy = order_of(generated())[2:]
    states = random.getstate(), np.random.get_state()[1].tolist()
    share_seed(Ranks((python, numpy)))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


@pytest.mark.parametrize("apart", [(True, False), (False, True), (True, True)])
def test_generators_that_differ_are_seeded_by_what_rank_0_drew(apart, monkeypatch):
    monkeypatch.setattr("os.urandom", lambda nbytes: bytes([9, 0, 0, 0]))
    here = order_of(generated())[2:]
    others = [state + is_apart for state, is_apart in zip(here, apart, strict=True)]
    unseeded = drawn()
    keras.utils.set_random_seed(3)
    share_seed(Ranks(others))
    found = drawn()
    random.seed(9)
    np.random.seed(9)
    seeded = drawn()
    assert found == tuple(seeded[kind] if apart[kind] else unseeded[kind] for kind in range(2))


def test_a_seed_of_tensorflow_that_was_set_stays():
    share_seed(Ranks((0, 0)))
    assert order_of(Data.range(1))[0] == 3
