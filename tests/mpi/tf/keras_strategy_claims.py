"""What Keras claims of variables, steps and data under a strategy, on workers that are processes of their own."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tests.mpi.tf.two_workers import NUM_WORKERS, RANK, STRATEGY, assert_alike, numbers, of_ranks, sums


def a_layers_variables_are_mirrored_and_begin_alike():
    with STRATEGY.scope():
        dense = keras.layers.Dense(3)
        dense.build([None, 5])
    for variable in (dense.kernel, dense.bias):
        assert isinstance(variable, keras.Variable)
        assert isinstance(variable.value, tf.distribute.DistributedValues)
        assert "Mirrored" in type(variable.value).__name__
        assert len(STRATEGY.experimental_local_results(variable.value)) == 1
        assert_alike(variable.value)


def a_step_runs_on_each_workers_own_input():
    with STRATEGY.scope():
        inputs = keras.Input([4])
        model = keras.Model(inputs, keras.layers.Dense(2, bias_initializer="ones")(inputs))
    given = of_ranks(lambda rank: np.full((8, 4), rank, np.float32))
    (result,) = STRATEGY.experimental_local_results(STRATEGY.run(tf.function(model), args=(given,)))
    assert result.shape == (8, 2)
    expected = RANK * numbers(model.weights[0].value).sum(axis=0) + 1
    np.testing.assert_allclose(result, np.tile(expected, (8, 1)), rtol=1e-5)


def _epoch(rows: np.ndarray, global_batch: int) -> list[np.ndarray]:
    targets, weights = rows * 2, rows[:, 0]
    epoch = TFEpochIterator(
        x=rows, y=targets, sample_weight=weights, batch_size=global_batch, shuffle=True, distribute_strategy=STRATEGY
    )
    seen = []
    for step, *_, iterator in epoch:  # Keras 3.10 gives the first step alone, later ones the last one too
        assert step == len(seen)
        x, y, sample_weight = (numbers(part) for part in next(iterator))
        np.testing.assert_array_equal(y, x * 2)
        np.testing.assert_array_equal(sample_weight, x[:, 0])
        seen.append(x)
    return seen


def an_epoch_gives_each_worker_its_part_of_each_global_batch():
    keras.utils.set_random_seed(11)
    rows = np.arange(100.0).reshape(100, 1).astype(np.float32)
    seen = _epoch(rows, 16)
    assert [len(batch) for batch in seen] == [8] * 6 + [2]
    mine = np.zeros(100)
    mine[np.concatenate(seen)[:, 0].astype(int)] = 1
    np.testing.assert_array_equal(sums(mine), np.ones(100))


def a_variables_aggregation_is_the_one_that_was_asked_for():
    wanted = {
        "none": tf.VariableAggregation.NONE,
        "sum": tf.VariableAggregation.SUM,
        "mean": tf.VariableAggregation.MEAN,
        "only_first_replica": tf.VariableAggregation.ONLY_FIRST_REPLICA,
    }
    with STRATEGY.scope():
        for name, aggregation in wanted.items():
            variable = keras.Variable(np.ones((2, 2)), aggregation=name, dtype="float32")
            assert variable.aggregation == name
            assert variable.value.aggregation == aggregation
        assert keras.Variable(np.ones(2)).value.aggregation == tf.VariableAggregation.NONE


def a_variables_synchronization_is_on_write_unless_on_read_is_asked_for():
    with STRATEGY.scope():
        usual = keras.Variable(np.ones((2, 2)))
        read = keras.Variable(np.ones((2, 2)), synchronization="on_read")
    assert (usual.synchronization, read.synchronization) == ("auto", "on_read")
    assert usual.value.synchronization == tf.VariableSynchronization.ON_WRITE
    assert read.value.synchronization == tf.VariableSynchronization.ON_READ


def a_seed_generators_state_is_the_same_in_every_replica():
    with STRATEGY.scope():
        generator = keras.random.SeedGenerator(1234)
        state = STRATEGY.run(lambda: tf.identity(generator.state.value))
    np.testing.assert_array_equal(numbers(state), (1234, 0))
    assert_alike(state)


def _fitted() -> tuple[float, np.ndarray]:
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L1L2(l1=0.02, l2=0.03)
    )
    model = keras.Model(inputs, layer(inputs))
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.05))
    x = np.random.default_rng(3).normal(size=(12, 2)).astype(np.float32)
    history = model.fit(x, x.sum(axis=1) * 2, batch_size=12, epochs=2, verbose=0)
    return history.history["loss"], numbers(layer.kernel.value)


def a_fit_with_a_regularizer_equals_that_of_one_process():
    loss, weights = _fitted()
    with STRATEGY.scope():
        loss_here, weights_here = _fitted()
    np.testing.assert_allclose(loss_here, loss, rtol=1e-5)
    np.testing.assert_allclose(weights_here, weights, rtol=1e-5)
    assert_alike(weights_here)


def a_scalar_variable_becomes_a_numpy_array():
    with STRATEGY.scope():
        variable = keras.Variable(2.5)
    array = keras.ops.convert_to_numpy(variable)
    assert isinstance(array, np.ndarray)
    assert array.shape == ()
    assert array == 2.5


def synchronised_moments_are_those_of_all_workers_values():
    @tf.function
    def moments(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return keras.ops.moments(values, axes=-1, keepdims=True, synchronized=True)

    for dtype in (np.float16, np.float32):
        rows = np.arange(4.0 * NUM_WORKERS).reshape(NUM_WORKERS, 4).astype(dtype)
        with STRATEGY.scope():
            mean, variance = STRATEGY.run(moments, args=(of_ranks(rows.__getitem__),))
        np.testing.assert_allclose(numbers(mean), [rows.mean()], rtol=1e-3)
        np.testing.assert_allclose(numbers(variance), [rows.astype(np.float64).var()], rtol=2e-3)


def _pairs(context: tf.distribute.InputContext) -> tf.data.Dataset:
    x = tf.random.stateless_uniform((32, 4), (1, 2))
    batches = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(context.get_per_replica_batch_size(4))
    return batches.shard(context.num_input_pipelines, context.input_pipeline_id)


def a_dataset_from_a_function_keeps_its_batches():
    distributed = STRATEGY.distribute_datasets_from_function(_pairs)
    adapter = TFDatasetAdapter(distributed)
    assert adapter.num_batches == 32 // 2 // NUM_WORKERS
    assert (adapter.batch_size, adapter.has_partial_batch, adapter.partial_batch_size) == (None, None, None)
    batches = list(adapter.get_tf_dataset())
    assert len(batches) == adapter.num_batches
    for x, y in batches:
        assert isinstance(x, tf.Tensor)
        assert (x.shape, y.shape) == ((2, 4), (2, 2))


def a_model_fits_on_a_dataset_from_a_function():
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(optimizer="adam", loss="mse")
    history = model.fit(STRATEGY.distribute_datasets_from_function(_pairs), epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert_alike(history.history["loss"])
    assert_alike(model.get_weights()[0])


def averaged_weights_swapped_in_are_those_saved():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(20, 3)).astype(np.float32), rng.normal(size=(20, 2)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, STRATEGY.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
        model.compile(optimizer=optimizer, loss="mse", metrics=["mse"], jit_compile=False)
        callbacks = [
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.ModelCheckpoint(os.path.join(folder, "{epoch}.keras")),
        ]
        model.fit(x, y, batch_size=10, epochs=2, callbacks=callbacks, validation_data=(x, y), verbose=0)
        saved = keras.saving.load_model(os.path.join(folder, "2.keras"))
    here, there = (one.evaluate(x, y, return_dict=True, verbose=0) for one in (model, saved))
    assert here["mse"] == there["mse"]
    assert_alike(here["mse"])
    assert_alike(model.get_weights()[0])


CLAIMS = [
    a_layers_variables_are_mirrored_and_begin_alike,
    a_step_runs_on_each_workers_own_input,
    an_epoch_gives_each_worker_its_part_of_each_global_batch,
    a_variables_aggregation_is_the_one_that_was_asked_for,
    a_variables_synchronization_is_on_write_unless_on_read_is_asked_for,
    a_seed_generators_state_is_the_same_in_every_replica,
    a_fit_with_a_regularizer_equals_that_of_one_process,
    a_scalar_variable_becomes_a_numpy_array,
    synchronised_moments_are_those_of_all_workers_values,
    a_dataset_from_a_function_keeps_its_batches,
    a_model_fits_on_a_dataset_from_a_function,
    averaged_weights_swapped_in_are_those_saved,
]
