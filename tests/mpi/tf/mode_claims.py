"""What holds in every mode and by every policy."""

import keras
import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.training import compiled, dense, mlp, require_close, rows, strategy, trained_alike
from tests.support.claims import in_test_all


def deep() -> keras.Model:
    """More than 4 KiB, so that a mode's own way is taken."""
    return compiled(mlp(dense(64, 3, activation="tanh"), dense(64, 4, activation="tanh"), hidden=64))


def a_model_trains_as_in_one_process() -> None:
    trained_alike(deep, epochs=3)


@in_test_all
def batches_need_not_divide_evenly() -> None:
    x, y = rows(72)
    trained_alike(deep, x=x, y=y)


def summed(value: tf.Tensor) -> tf.Tensor:
    """The sum over all workers."""
    return strategy().reduce("SUM", value, axis=None)


def a_sum_of_few_bytes_and_of_many_is_numpys() -> None:
    size = strategy().num_replicas_in_sync
    for num in (1, 3, 5000):
        ours = tf.range(num, dtype=tf.float32) + float(coarse.rank())
        wanted = np.arange(num) * size + sum(range(size))
        require_close([summed(ours), tf.function(summed)(ours)], [wanted] * 2)


def memory_used_bytes() -> int:
    """Of all devices of this node, for all workers."""
    return sum(device["memory_used_bytes"] for device in coarse.statistics()["devices"].values())


def sums_of_any_number_of_lengths_use_little_memory() -> None:
    size, most = strategy().num_replicas_in_sync, 20000
    of_any_length = tf.function(summed, input_signature=[tf.TensorSpec([None], tf.float32)])
    before_bytes = memory_used_bytes()
    for length in [*range(500, most, 500), 500, 19500]:
        for function in (summed, of_any_length):
            found = function(tf.range(length, dtype=tf.float32) * (coarse.rank() + 1))
            require_close([found], [np.arange(length) * (size * (size + 1) / 2)])
    assert memory_used_bytes() - before_bytes <= size * 4 * 4 * most


def a_recorder_sees_every_byte_pushed_before_any_is_taken() -> None:
    ours, function = tf.ones(50000, tf.float32), tf.function(summed)
    function(ours)  # not recorded
    with strategy().transfers_recorded() as recorder:
        function(ours)
    function(ours)  # nor this
    pushes = [transfer for transfer in recorder.transfers if transfer.kind == "push"]
    takes = [transfer for transfer in recorder.transfers if transfer.kind == "take"]
    assert sum(push.nbytes for push in pushes) == sum(take.nbytes for take in takes) == 4 * 50000
    assert max(push.end_s for push in pushes) <= min(take.begin_s for take in takes)
    assert [push.bucket for push in pushes] == [take.bucket for take in takes] == list(range(len(pushes)))


CLAIMS = [
    a_model_trains_as_in_one_process,
    batches_need_not_divide_evenly,
    a_sum_of_few_bytes_and_of_many_is_numpys,
    sums_of_any_number_of_lengths_use_little_memory,
    a_recorder_sees_every_byte_pushed_before_any_is_taken,
]
