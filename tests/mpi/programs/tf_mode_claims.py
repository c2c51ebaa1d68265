"""What holds in every mode and by every policy."""

import keras
import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.programs.tf_training import compiled, dense, mlp, require_close, rows, strategy, trained_alike


def deep() -> keras.Model:
    """More than 4 KiB, so that a mode's own way is taken."""
    return compiled(mlp(dense(64, 3, activation="tanh"), dense(64, 4, activation="tanh"), hidden=64))


def a_model_trains_as_in_one_process() -> None:
    trained_alike(deep, epochs=3)


def batches_need_not_divide_evenly() -> None:
    x, y = rows(72)
    trained_alike(deep, x=x, y=y)


def a_sum_of_few_bytes_and_of_many_is_numpys() -> None:
    size = strategy().num_replicas_in_sync
    for num in (1, 3, 5000):
        ours = tf.range(num, dtype=tf.float32) + float(coarse.rank())
        total = strategy().reduce("SUM", ours, axis=None)
        wanted = np.arange(num) * size + sum(range(size))
        require_close([total], [wanted])


def a_recorder_sees_every_byte_pushed_before_any_is_taken() -> None:
    ours = tf.ones(50000, tf.float32)
    strategy().reduce("SUM", ours, axis=None)  # not recorded
    with strategy().transfers_recorded() as recorder:
        strategy().reduce("SUM", ours, axis=None)
    strategy().reduce("SUM", ours, axis=None)  # nor this
    pushes = [transfer for transfer in recorder.transfers if transfer.kind == "push"]
    takes = [transfer for transfer in recorder.transfers if transfer.kind == "take"]
    assert sum(push.nbytes for push in pushes) == sum(take.nbytes for take in takes) == 4 * 50000
    assert max(push.end_s for push in pushes) <= min(take.begin_s for take in takes)
    assert [push.bucket for push in pushes] == [take.bucket for take in takes] == list(range(len(pushes)))


CLAIMS = [
    a_model_trains_as_in_one_process,
    batches_need_not_divide_evenly,
    a_sum_of_few_bytes_and_of_many_is_numpys,
    a_recorder_sees_every_byte_pushed_before_any_is_taken,
]
