"""What claims about a strategy have in common: the strategy, and values that are compared between workers."""

import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.training import strategy

STRATEGY = strategy()
RANK, NUM_WORKERS = coarse.rank(), coarse.size()


def numbers(value: object) -> np.ndarray:
    """A tensor's or variable's numbers, as float64."""
    return np.asarray(tf.convert_to_tensor(value), np.float64)


def sums(value: object) -> np.ndarray:
    """The sum of all workers' numbers, by arrays of coarse rather than by the strategy."""
    array = numbers(value)
    return coarse.push_pull(array, f"sum of {array.shape}", op=coarse.Sum)


def assert_alike(value: object) -> None:
    """All workers have the same numbers."""
    array = numbers(value)
    least = coarse.push_pull(array, f"least of {array.shape}", op=coarse.Min)
    most = coarse.push_pull(array, f"most of {array.shape}", op=coarse.Max)
    np.testing.assert_array_equal(least, most)


def of_ranks(function: object) -> object:
    """One value for each worker: what a function of the rank gives here."""
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.constant(function(context.replica_id_in_sync_group))
    )
