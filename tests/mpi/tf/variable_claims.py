"""Where TensorFlow could combine values of this process alone, all workers' are combined."""

import os
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.data_training import NUM_WORKERS as size
from tests.mpi.tf.data_training import RANK as rank
from tests.mpi.tf.data_training import STRATEGY as strategy
from tests.support.claims import raises

NONE, SUM, MEAN, FIRST = (
    *(tf.VariableAggregation.NONE, tf.VariableAggregation.SUM),
    *(tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA),
)
TOTAL = size * (size + 1) // 2
"""The sum of rank + 1 over all ranks."""


def mine(dtype: tf.DType = tf.float32) -> tf.Tensor:
    """This rank's number from 1, which no graph has as a constant."""
    return tf.cast(tf.identity(tf.py_function(lambda: rank + 1, [], tf.int64)), dtype)


def variable(value: float, aggregation: tf.VariableAggregation, *, on_read: bool = False) -> tf.Variable:
    synchronization = tf.VariableSynchronization.ON_READ if on_read else tf.VariableSynchronization.AUTO
    with strategy.scope():
        return tf.Variable(value, aggregation=aggregation, synchronization=synchronization, trainable=False)


def everywhere(function: Callable[[], object]) -> list[object]:
    """A replica function's result by `strategy.run` in eager mode, in a tf.function, and as one."""
    compiled = tf.function(lambda: strategy.run(function))
    return [strategy.run(function), compiled(), strategy.run(tf.function(function))]


def context() -> tf.distribute.ReplicaContext:
    return tf.distribute.get_replica_context()


# --- reductions


def all_reduce_combines_all_workers() -> None:
    for dtype in (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8):
        for found in everywhere(lambda dtype=dtype: context().all_reduce("SUM", mine(dtype))):
            assert found.dtype == dtype
            assert int(tf.cast(found, tf.int64)) == TOTAL
    for found in everywhere(lambda: context().all_reduce("MEAN", mine())):
        assert float(found) == TOTAL / size


def nested_values_are_reduced_in_place() -> None:
    value = {"a": [mine(), mine(tf.int32)], "b": (mine(tf.float64),)}
    found = strategy.run(lambda: context().all_reduce("SUM", value))
    assert [int(one) for one in tf.nest.flatten(found)] == [TOTAL] * 3


def strategy_reduce_combines_values_on_the_host_and_int32() -> None:
    for dtype in (tf.int32, tf.int64, tf.float32):
        with tf.device("CPU:0"):
            value = strategy.run(lambda dtype=dtype: mine(dtype))
            assert int(strategy.reduce("SUM", value, axis=None)) == TOTAL
    assert float(strategy.reduce("MEAN", strategy.run(mine), axis=None)) == TOTAL / size


def python_numbers_are_each_worker_s_own() -> None:
    assert float(strategy.reduce("SUM", float(rank + 1), axis=None)) == TOTAL
    assert float(strategy.reduce("MEAN", float(rank + 1), axis=None)) == TOTAL / size
    assert int(strategy.reduce("SUM", rank + 1, axis=None)) == TOTAL
    assert int(strategy.reduce("SUM", 0, axis=None)) == 0
    assert int(strategy.reduce("SUM", np.int64(rank + 1), axis=None)) == TOTAL


def reductions_along_an_axis_count_every_row() -> None:
    rows = tf.fill([rank + 2, 3], float(rank))
    count = sum(other + 2 for other in range(size))
    total = sum(other * (other + 2) for other in range(size))
    assert np.allclose(strategy.reduce("SUM", rows, axis=0), [total] * 3)
    assert np.allclose(strategy.reduce("MEAN", rows, axis=0), [total / count] * 3)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def mean(rows: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("MEAN", rows, axis=0)

    assert np.allclose(mean(rows), [total / count] * 3)


def gathers_have_every_worker_s_rows() -> None:
    rows = tf.fill([rank + 1, 2], rank)
    wanted = [other for other in range(size) for _ in range(other + 1)]
    assert strategy.gather(rows, axis=0)[:, 1].numpy().tolist() == wanted
    assert strategy.gather(tf.transpose(rows), axis=1)[0].numpy().tolist() == wanted
    for found in everywhere(lambda: context().all_gather(rows, axis=0)):
        assert found[:, 0].numpy().tolist() == wanted


def empty_tensors_are_reduced_and_gathered() -> None:
    assert strategy.reduce("SUM", tf.zeros([0, 3]), axis=None).shape == (0, 3)
    assert strategy.gather(tf.zeros([0, 3]), axis=0).shape == (0, 3)


def extended_reductions_combine_all_workers() -> None:
    value = strategy.run(mine)
    destination = variable(0.0, NONE)
    assert float(strategy.extended.reduce_to("SUM", value, destinations=destination)) == TOTAL
    pairs = [(value, destination), (value, destination)]
    found = strategy.extended.batch_reduce_to("SUM", pairs)
    assert [float(strategy.experimental_local_results(one)[0]) for one in found] == [TOTAL] * 2


def gradients_of_a_reduction_are_reduced() -> None:
    def gradient() -> tf.Tensor:
        x = mine()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = context().all_reduce("SUM", x) * mine()
        return tape.gradient(y, x)

    for found in everywhere(gradient):
        assert float(found) == TOTAL


# --- variables that are equal on all workers


def first_values_are_rank_0_s() -> None:
    for value in (float(rank), np.full(3, rank), lambda: tf.fill([2, 2], float(rank)), [rank == 0, rank == 1]):
        with strategy.scope():
            made = tf.Variable(value)
        assert (made.numpy() == ([True, False] if made.dtype == tf.bool else 0)).all()
    with strategy.scope(), raises(TypeError, "tf.string", "'words'"):
        tf.Variable("words", name="words")


def updates_in_replicas_are_aggregated() -> None:
    for aggregation, wanted in ((SUM, TOTAL), (MEAN, TOTAL / size), (FIRST, 1.0)):
        kept = variable(10.0, aggregation)
        for number, update in enumerate((kept.assign_add, kept.assign_sub, kept.assign)):
            for way in (strategy.run, tf.function(strategy.run)):
                kept.assign(10.0)
                way(lambda update=update: update(mine(), read_value=False) and None)
                assert float(kept.numpy()) == (10 + wanted, 10 - wanted, wanted)[number], (aggregation, number)


def constants_are_aggregated_too() -> None:
    """As the number of a replica is one, it may differ between ranks."""
    for aggregation, wanted in ((SUM, TOTAL), (MEAN, TOTAL / size), (FIRST, 1.0)):
        for constant in (float(rank + 1), tf.constant(float(rank + 1)), rank + 1):
            kept = variable(0.0, aggregation)
            strategy.run(lambda kept=kept, constant=constant: kept.assign(constant, read_value=False))
            assert float(kept.numpy()) == wanted, (aggregation, constant)

    for aggregation, wanted in ((SUM, TOTAL), (MEAN, TOTAL / size), (FIRST, 1.0)):
        kept = variable(0.0, aggregation)

        def assign(kept: tf.Variable = kept) -> None:
            kept.assign(tf.cast(context().replica_id_in_sync_group + 1, tf.float32), read_value=False)

        tf.function(lambda assign=assign: strategy.run(assign) and None)()
        assert float(kept.numpy()) == wanted, aggregation


def integer_variables_are_summed_and_not_averaged() -> None:
    kept = variable(10, SUM)
    strategy.run(lambda: kept.assign_add(tf.cast(mine(tf.int64), tf.int32), read_value=False))
    assert int(kept.numpy()) == 10 + TOTAL
    with raises(ValueError, "MEAN", "non-floating"):
        variable(10, MEAN)


def scattered_rows_are_rank_0_s() -> None:
    kept = variable([0.0] * 4, FIRST)
    rows = tf.IndexedSlices(tf.fill([1], mine()), tf.fill([1], rank))
    strategy.run(lambda: kept.scatter_update(rows))
    assert kept.numpy().tolist() == [1.0, 0.0, 0.0, 0.0]


def an_update_of_all_replicas_sees_reduced_values() -> None:
    kept = variable(1.0, NONE)
    total = strategy.run(lambda: context().all_reduce("SUM", mine()))
    strategy.extended.update(kept, lambda one, value: one.assign_add(value), args=(total,))
    assert float(kept.numpy()) == 1 + TOTAL
    devices = strategy.extended.non_slot_devices([kept])
    found = strategy.extended.update_non_slot(devices, lambda value: value * 2, args=(total,), group=False)
    assert [float(one) for one in tf.nest.flatten(found)] == [2 * TOTAL]


def broadcast_to_gives_rank_0_s_value() -> None:
    for value in (mine(), tf.fill([3], mine(tf.int32)), float(rank + 1)):
        found = strategy.experimental_local_results(strategy.extended.broadcast_to(value, destinations="CPU:0"))[0]
        assert (np.asarray(found) == 1).all()


def variables_made_beside_another_are_rank_0_s_too() -> None:
    kept = variable([1.0, 2.0], NONE)
    with strategy.scope(), strategy.extended.colocate_vars_with(kept):
        beside = tf.Variable(tf.fill([2], float(rank)))
    assert beside.numpy().tolist() == [0.0, 0.0]


def a_variable_made_outside_the_scope_is_refused_by_name() -> None:
    stray = tf.Variable(1.0, name="stray")
    with raises(coarse.ConfigError, "'stray:0'", "strategy.scope()"):
        strategy.extended.update(stray, lambda one: one.assign(2.0))


# --- variables that each worker has of its own, until they are read


def on_read(value: float, aggregation: tf.VariableAggregation) -> tf.Variable:
    """Assigned rank + 1 on each worker."""
    kept = variable(value, aggregation, on_read=True)
    strategy.run(lambda: kept.assign(mine(), read_value=False) and None)
    return kept


def variables_synchronised_on_reading_are_combined() -> None:
    for aggregation, wanted in ((SUM, TOTAL), (MEAN, TOTAL / size), (FIRST, 1.0)):
        kept = on_read(0.0, aggregation)
        assert float(kept.read_value()) == wanted, aggregation
        assert float(kept.value()) == wanted, aggregation
        assert float(tf.convert_to_tensor(kept)) == wanted, aggregation
        assert float(kept + 1.0) == wanted + 1, aggregation
        assert float(tf.function(lambda kept=kept: kept + 1.0)()) == wanted + 1, aggregation
        assert float(strategy.extended.read_var(kept)) == wanted, aggregation
        for found in everywhere(lambda kept=kept: kept.read_value()):
            assert float(found) == rank + 1, "a replica reads its own"


def an_assignment_to_all_replicas_keeps_the_total() -> None:
    for aggregation in (SUM, MEAN, FIRST):
        kept = on_read(0.0, aggregation)
        kept.assign(6.0)
        assert float(kept.read_value()) == 6.0, aggregation
    kept = on_read(0.0, SUM)
    with raises(ValueError, "assign_add"):
        kept.assign_add(1.0)


def checkpoints_hold_the_combined_values() -> None:
    for aggregation, wanted in ((SUM, TOTAL), (MEAN, TOTAL / size), (FIRST, 1.0)):
        kept, weight = on_read(0.0, aggregation), variable(3.0, NONE)
        checkpoint = tf.train.Checkpoint(kept=kept, weight=weight)
        path = checkpoint.write(os.path.join(sys.argv[1], f"{aggregation.name}-{rank}"))
        strategy.run(lambda kept=kept: kept.assign(100.0, read_value=False) and None)
        weight.assign(0.0)
        checkpoint.read(path).assert_consumed()
        assert float(kept.read_value()) == wanted, aggregation
        assert float(weight.numpy()) == 3.0
        assert float(tf.train.load_variable(path, "kept/.ATTRIBUTES/VARIABLE_VALUE")) == wanted, aggregation


def a_metric_is_that_of_all_workers_and_can_be_reset() -> None:
    import keras

    with strategy.scope():
        metric = keras.metrics.Mean()
    for _ in range(2):
        strategy.run(lambda: metric.update_state(tf.fill([rank + 1], mine())) and None)
        wanted = sum((other + 1) ** 2 for other in range(size)) / TOTAL
        assert np.isclose(float(metric.result()), wanted)
        metric.reset_state()
        assert float(metric.result()) == 0.0


def a_replica_s_own_variables_stay_its_own_without_an_aggregation() -> None:
    """As in every strategy: TensorFlow refuses to combine what has no rule."""
    kept = variable(0.0, NONE, on_read=True)
    strategy.run(lambda: kept.assign(mine(), read_value=False) and None)
    with raises(ValueError, "VariableAggregation", "NONE"):
        kept.read_value()


# --- types that cannot be added


def types_that_cannot_be_added_are_refused_by_name() -> None:
    values = {"bool": tf.constant(True), "string": tf.constant("a"), "complex64": tf.constant(1j, tf.complex64)}
    for name, value in values.items():
        for way in (strategy.run, tf.function(strategy.run)):
            with raises(TypeError, f"tensors of {name}", "tf.cast"):
                way(lambda value=value: context().all_reduce("SUM", value))
    for way in (strategy.run, tf.function(strategy.run)):
        with raises(TypeError, "mean of integers", "tf.float32"):
            way(lambda: context().all_reduce("MEAN", mine(tf.int32)))
    assert float(strategy.reduce("SUM", 1.0, axis=None)) == size


CLAIMS = (
    all_reduce_combines_all_workers,
    nested_values_are_reduced_in_place,
    strategy_reduce_combines_values_on_the_host_and_int32,
    python_numbers_are_each_worker_s_own,
    reductions_along_an_axis_count_every_row,
    gathers_have_every_worker_s_rows,
    empty_tensors_are_reduced_and_gathered,
    extended_reductions_combine_all_workers,
    gradients_of_a_reduction_are_reduced,
    first_values_are_rank_0_s,
    updates_in_replicas_are_aggregated,
    constants_are_aggregated_too,
    integer_variables_are_summed_and_not_averaged,
    scattered_rows_are_rank_0_s,
    an_update_of_all_replicas_sees_reduced_values,
    broadcast_to_gives_rank_0_s_value,
    variables_made_beside_another_are_rank_0_s_too,
    a_variable_made_outside_the_scope_is_refused_by_name,
    variables_synchronised_on_reading_are_combined,
    an_assignment_to_all_replicas_keeps_the_total,
    checkpoints_hold_the_combined_values,
    a_metric_is_that_of_all_workers_and_can_be_reset,
    a_replica_s_own_variables_stay_its_own_without_an_aggregation,
    types_that_cannot_be_added_are_refused_by_name,
)
