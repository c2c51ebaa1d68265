"""Which seeds an operation has on which worker."""

from itertools import product

import numpy as np
import tensorflow as tf

from tf_strategy import draws


def test_rank_0_has_the_seeds_of_one_process():
    assert draws.seeds_of((7, 3), 0) == (7, 3)


def test_seeds_of_workers_and_operations_are_all_different_and_fit_into_31_bits():
    found = [draws.seeds_of((7, operation), worker) for operation, worker in product(range(100), range(64))]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**31 - 1 for seeds in found for seed in seeds)
    assert (0, 0) not in found
    assert draws.seeds_of((7, 3), 2) == draws.seeds_of((7, 3), 2)


def test_a_generator_s_key_is_another_on_each_worker_but_rank_0():
    generator = tf.random.Generator.from_seed(1)
    key = tf.constant([5], tf.uint64)
    keys = [int(draws._key_of(key, worker, generator.algorithm)[0]) for worker in range(8)]
    assert keys[0] == 5
    assert len(set(keys)) == 8


def test_outside_of_a_strategy_everything_is_drawn_as_before():
    def drawn() -> list[np.ndarray]:
        tf.random.set_seed(1)
        return [tf.random.normal([3]).numpy(), tf.random.Generator.from_seed(1).normal([3]).numpy()]

    before = drawn()
    draws.draw_apart()
    draws.draw_apart()
    assert np.array_equal(before, drawn())
