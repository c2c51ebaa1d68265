"""What TensorFlow promises of a strategy's public methods, where they are not claimed elsewhere."""

import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from coarse.errors import UnsupportedError
from tests.mpi.tf.two_workers import NUM_WORKERS, RANK, STRATEGY, assert_alike, numbers, of_ranks, sums
from tests.support.claims import raises
from tf_strategy import gradients

EXTENDED = STRATEGY.extended


def a_variable_in_scope() -> tf.Variable:
    with STRATEGY.scope():
        return tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)


def within_scope_it_is_the_strategy_and_replicas_are_counted_over_workers():
    with STRATEGY.scope() as entered:
        assert entered is STRATEGY
        assert tf.distribute.get_strategy() is STRATEGY
        assert tf.distribute.in_cross_replica_context()
    assert not tf.distribute.has_strategy()
    assert STRATEGY.num_replicas_in_sync == NUM_WORKERS


def run_passes_arguments_and_structures_and_gives_its_own_result():
    def replica(first: tf.Tensor, *, more: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"sum": first + more["a"], "rank": tf.distribute.get_replica_context().replica_id_in_sync_group}

    kwargs = {"more": {"a": of_ranks(lambda rank: 10.0 * rank)}}
    for run in (STRATEGY.run, tf.function(STRATEGY.run)):
        found = run(replica, args=(tf.constant(1.0),), kwargs=kwargs)
        assert float(found["sum"]) == 1 + 10 * RANK
        assert int(found["rank"]) == RANK
    assert float(STRATEGY.experimental_run(lambda: tf.constant(2.0))) == 2


def a_replica_context_knows_its_place_among_all_workers():
    def replica() -> tuple[int, object, tuple[str, ...], bool]:
        context = tf.distribute.get_replica_context()
        return context.num_replicas_in_sync, context.strategy is STRATEGY, len(context.devices)

    assert STRATEGY.run(replica) == (NUM_WORKERS, True, 1)


def a_merge_call_runs_once_in_every_worker_across_its_replica():
    calls = []

    def merge(strategy: tf.distribute.Strategy, value: tf.Tensor) -> tf.Tensor:
        calls.append(tf.distribute.in_cross_replica_context())
        return strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, value, destinations="CPU:0")

    def replica() -> tf.Tensor:
        return tf.distribute.get_replica_context().merge_call(merge, args=(tf.constant(RANK + 1.0),))

    assert float(STRATEGY.run(replica)) == NUM_WORKERS * (NUM_WORKERS + 1) / 2
    assert calls == [True]


def local_results_are_those_of_this_worker():
    value = of_ranks(lambda rank: [rank, 7])
    for local in (STRATEGY.experimental_local_results, STRATEGY.unwrap):
        (mine,) = local(value)
        np.testing.assert_array_equal(mine, [RANK, 7])
    np.testing.assert_array_equal(sums(mine), [NUM_WORKERS * (NUM_WORKERS - 1) / 2, 7 * NUM_WORKERS])
    assert STRATEGY.group(mine) is not None


def a_function_of_values_is_told_its_replica():
    value = STRATEGY.experimental_distribute_values_from_function(
        lambda context: (context.replica_id_in_sync_group, context.num_replicas_in_sync)
    )
    places = [int(STRATEGY.experimental_local_results(part)[0]) for part in value]
    assert places == [RANK, NUM_WORKERS]


def an_update_changes_a_variable_by_reduced_values_alike_everywhere():
    variable = a_variable_in_scope()

    def merge(strategy: tf.distribute.Strategy, value: tf.Tensor) -> None:
        total = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(value, variable)])[0]
        strategy.extended.update(variable, lambda v, x: v.assign_sub(x), args=(total,))

    grad = tf.constant([1.0, 0.5]) * (RANK + 1.0)
    STRATEGY.run(lambda: tf.distribute.get_replica_context().merge_call(merge, args=(grad,)))
    factor = NUM_WORKERS * (NUM_WORKERS + 1) / 2
    np.testing.assert_allclose(numbers(variable), [1.0 - factor, 2.0 - 0.5 * factor])
    assert_alike(variable)


def variables_know_their_strategy_container_and_devices():
    variable, stray = a_variable_in_scope(), tf.Variable(1.0)
    assert EXTENDED.variable_created_in_scope(variable)
    assert not EXTENDED.variable_created_in_scope(stray)
    (local,) = STRATEGY.experimental_local_results(variable)
    assert EXTENDED.value_container(local) is variable
    with STRATEGY.scope(), EXTENDED.colocate_vars_with(variable):
        beside = tf.Variable(tf.random.normal([2]))
    assert EXTENDED.variable_created_in_scope(beside)
    assert_alike(beside)
    assert len(EXTENDED.worker_devices) == len(EXTENDED.parameter_devices) == 1
    assert EXTENDED.worker_devices[0] == EXTENDED.parameter_devices[0]
    assert EXTENDED.experimental_require_static_shapes is False


def who_writes_files_is_one_worker():
    writers = sums(np.array([EXTENDED.should_checkpoint, EXTENDED.should_save_summary], np.float64))
    np.testing.assert_array_equal(writers, [1, 1])
    assert EXTENDED.experimental_between_graph
    assert EXTENDED.experimental_should_init


def an_update_beside_no_variable_runs_in_every_worker():
    (device,) = devices = EXTENDED.non_slot_devices([])
    assert device == EXTENDED.worker_devices[0]
    with STRATEGY.scope():
        found = EXTENDED.update_non_slot(devices, lambda x: x + 1, args=(tf.constant(1.0),), group=False)
        assert float(EXTENDED.call_for_each_replica(lambda: tf.constant(3.0))) == 3
        assert float(EXTENDED.read_var(a_variable_in_scope())[1]) == 2
    assert float(tf.nest.flatten(found)[0]) == 2


def what_would_act_in_one_process_alone_is_refused_by_name():
    dataset = tf.data.Dataset.range(4).batch(2)
    refused = {
        "make_dataset_iterator": lambda: STRATEGY.make_dataset_iterator(dataset),
        "make_input_fn_iterator": lambda: STRATEGY.make_input_fn_iterator(lambda context: dataset),
        "configure": lambda: STRATEGY.configure(),
        "experimental_make_numpy_dataset": lambda: EXTENDED.experimental_make_numpy_dataset(np.ones(3)),
        "experimental_run_steps_on_iterator": lambda: EXTENDED.experimental_run_steps_on_iterator(None, None, 1),
    }
    for name, call in refused.items():
        with raises(UnsupportedError, name) as caught, STRATEGY.scope():
            call()
        assert isinstance(caught[0], NotImplementedError)


def options_of_data_that_cannot_be_carried_out_are_refused_by_name():
    dataset = tf.data.Dataset.range(8).batch(4)
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    whole = tf.distribute.InputOptions(experimental_replication_mode=per_replica)
    placed = tf.distribute.InputOptions(
        experimental_replication_mode=per_replica,
        experimental_fetch_to_device=False,
        experimental_place_dataset_on_device=True,
    )
    with raises(UnsupportedError, "distribute_datasets_from_function"):
        STRATEGY.experimental_distribute_dataset(dataset, whole)
    for distribute in (
        lambda: STRATEGY.experimental_distribute_dataset(dataset, placed),
        lambda: STRATEGY.distribute_datasets_from_function(lambda context: dataset, placed),
    ):
        with raises(UnsupportedError, "experimental_place_dataset_on_device"):
            distribute()
    batches = STRATEGY.distribute_datasets_from_function(lambda context: dataset, whole)
    assert [batch.numpy().tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def there_is_no_cluster_resolver_and_a_session_needs_no_setting():
    assert STRATEGY.cluster_resolver is None
    assert STRATEGY.update_config_proto(tf.compat.v1.ConfigProto()).isolate_session_state


def a_model_knows_the_strategy_it_was_made_for():
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    assert model.distribute_strategy is STRATEGY


def a_model_that_is_trained_outside_the_scope_is_warned_of():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    with mock.patch.object(gradients, "_warned", set()), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=2, verbose=0)
    texts = [str(warning.message) for warning in caught if "outside strategy.scope()" in str(warning.message)]
    assert len(texts) == 1
    assert texts[0].startswith(f"rank {RANK}: ")


CLAIMS = [
    a_model_that_is_trained_outside_the_scope_is_warned_of,
    within_scope_it_is_the_strategy_and_replicas_are_counted_over_workers,
    run_passes_arguments_and_structures_and_gives_its_own_result,
    a_replica_context_knows_its_place_among_all_workers,
    a_merge_call_runs_once_in_every_worker_across_its_replica,
    local_results_are_those_of_this_worker,
    a_function_of_values_is_told_its_replica,
    an_update_changes_a_variable_by_reduced_values_alike_everywhere,
    variables_know_their_strategy_container_and_devices,
    who_writes_files_is_one_worker,
    an_update_beside_no_variable_runs_in_every_worker,
    what_would_act_in_one_process_alone_is_refused_by_name,
    options_of_data_that_cannot_be_carried_out_are_refused_by_name,
    there_is_no_cluster_resolver_and_a_session_needs_no_setting,
    a_model_knows_the_strategy_it_was_made_for,
]
