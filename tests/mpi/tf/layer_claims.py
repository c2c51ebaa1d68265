"""What layers and precisions promise: moving statistics, embeddings, loss scales."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import coarse
from tests.mpi.tf.training import (
    BATCH,
    STEPS,
    compiled,
    dense,
    fit,
    mlp,
    pushed,
    require_close,
    require_equal,
    require_same_everywhere,
    require_same_history,
    rows,
    strategy,
    trained_alike,
    twins,
)
from tests.support.claims import in_test_all, takes_all


def normalised(**settings: object) -> keras.Model:
    """A model with two layers of moving statistics."""
    first, last = (keras.layers.BatchNormalization(momentum=0.8, **settings) for _ in range(2))
    return compiled(mlp(first, dense(24, 3, activation="tanh"), last))


@in_test_all
def normalisation_is_that_of_mirrored_strategy_on_the_same_split() -> None:
    if strategy().num_replicas_in_sync != 2:
        return
    with strategy().scope():
        ours = normalised()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with mirrored.scope():
        wanted = normalised()
    x, y = rows(2 * BATCH + 7)  # of the last seven one replica has four
    found, history = (fit(model, x=x, y=y) for model in (ours, wanted))
    require_equal(ours, wanted)
    require_same_history(found, history)


@in_test_all
def evaluation_is_that_of_one_process_with_rank_0s_moving_statistics() -> None:
    ours, alone = twins(normalised)
    fit(ours)
    alone.set_weights(ours.get_weights())
    x, y = rows(48, seed=4)
    given = {"batch_size": BATCH, "verbose": 0, "return_dict": True}
    require_same_history(ours.evaluate(x, y, **given), alone.evaluate(x, y, **given))


def moving_statistics_stay_equal_in_eager_training_and_frozen_layers() -> None:
    def build() -> keras.Model:
        model = normalised()
        model.layers[1].trainable = False
        model.compile(keras.optimizers.SGD(0.05), loss="mse", run_eagerly=True)
        return model

    with strategy().scope():
        ours = build()
    first = [np.asarray(variable) for variable in ours.non_trainable_variables]
    fit(ours, 1)
    last = [np.asarray(variable) for variable in ours.non_trainable_variables]
    require_same_everywhere(last)
    moved = [not np.array_equal(one, other) for one, other in zip(first, last, strict=True)]
    assert any(moved)
    assert not all(moved)


def normalisation_over_the_global_batch_is_that_of_one_process() -> None:
    ours, alone = twins(lambda: normalised(synchronized=True))
    found, wanted = fit(ours), fit(alone)
    require_equal(ours, alone)
    require_same_history(found, wanted)


def in_half_precision(build: object) -> tuple[keras.Model, keras.Model]:
    """Twins under mixed_float16, whose loss scale begins at 2^12."""

    def scaled() -> keras.Model:
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=4096.0, dynamic_growth_steps=4
        )
        return compiled(build(), optimizer)

    keras.config.set_dtype_policy("mixed_float16")
    try:
        return twins(scaled)
    finally:
        keras.config.set_dtype_policy("float32")


def scale_of(model: keras.Model) -> float:
    """The loss scale now."""
    return float(np.asarray(model.optimizer.dynamic_scale))


@in_test_all
def a_loss_scale_grows_alike() -> None:
    ours, alone = in_half_precision(mlp)
    with pushed(2 * STEPS, ours.trainable_variables):
        fit(ours)
    fit(alone)
    require_equal(ours, alone, rtol=0.01)  # halves of a batch are rounded apart
    assert scale_of(ours) == scale_of(alone) == 4 * 4096


def an_overflow_on_one_rank_alone_is_skipped_by_all() -> None:
    x, _ = rows()
    rows_of = {"the first": [2 * BATCH], "the last": [3 * BATCH - 1], "all": range(2 * BATCH, 3 * BATCH)}
    for overflowing in rows_of.values() if takes_all() else [rows_of["the last"]]:
        ours, alone = in_half_precision(mlp)
        with_infinity = x.copy()
        with_infinity[list(overflowing)] = 60000.0
        with pushed(STEPS, ours.trainable_variables):
            fit(ours, 1, x=with_infinity)
        fit(alone, 1, x=with_infinity)
        require_equal(ours, alone, rtol=0.01)
        assert scale_of(ours) == scale_of(alone) == 2048
        assert int(np.asarray(ours.optimizer.iterations)) == STEPS - 1


@in_test_all
def bfloat16_trains_alike() -> None:
    for policy in ("mixed_bfloat16", "bfloat16"):
        keras.config.set_dtype_policy(policy)
        try:
            ours, _ = twins(lambda: compiled(mlp()))
        finally:
            keras.config.set_dtype_policy("float32")
        first = [np.asarray(weights, "f4") for weights in ours.get_weights()]
        found = fit(ours, 1)
        require_same_everywhere([np.asarray(weights, "f4") for weights in ours.get_weights()])
        assert np.isfinite(found["loss"]).all()
        assert all((one != np.asarray(w, "f4")).any() for one, w in zip(first, ours.get_weights(), strict=True))


UNITS = 5
STEPS_OF_A_ROW = 4


class Tally(keras.layers.Layer):
    """A stateful layer of one's own: a sum for each row, which goes on from batch to batch."""

    stateful = True

    def build(self, shape: tuple[int, ...]) -> None:
        self.states = [self.add_weight(shape=(shape[0], shape[-1]), initializer="zeros", trainable=False)]

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.states[0].assign(0.5 * self.states[0] + tf.reduce_sum(inputs, 1))
        return tf.expand_dims(self.states[0], 1) + inputs


def with_memory(num_rows: int) -> keras.Model:
    """A model of stateful layers for batches of so many rows; its weights never change."""
    first_kernel, first_recurrent = (keras.initializers.RandomNormal(seed=seed) for seed in (1, 2))
    settings = {"stateful": True, "kernel_initializer": first_kernel, "recurrent_initializer": first_recurrent}
    layers = [
        Tally(),
        keras.layers.LSTM(UNITS, return_sequences=True, **settings),
        keras.layers.GRU(UNITS, return_sequences=True, **settings),
        keras.layers.Bidirectional(keras.layers.SimpleRNN(UNITS, **settings)),
    ]
    first = keras.layers.Input(batch_shape=(num_rows, STEPS_OF_A_ROW, 3))
    model = keras.Sequential([first, *layers, dense(2, 9)])
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    return model


def states_of(model: keras.Model) -> list[np.ndarray]:
    """All states of a model's stateful layers, as this worker has them."""
    stateful = [layer for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    found = {id(state): state for layer in stateful for state in tf.nest.flatten(layer.states)}
    return [np.asarray(state) for state in found.values()]


@in_test_all
def states_of_rows_stay_each_workers() -> None:
    """In fit, evaluate, predict and after a reset, as those of one process that has this worker's rows alone."""
    per_worker, num_steps, epochs = 4, 3, 2
    num_rows, rank = per_worker * strategy().num_replicas_in_sync, coarse.rank()
    numbers = np.random.default_rng(11)
    x = numbers.normal(size=(num_steps * num_rows, STEPS_OF_A_ROW, 3)).astype("f4")
    y = numbers.normal(size=(num_steps * num_rows, 2)).astype("f4")
    mine = np.concatenate([np.arange(per_worker) + step * num_rows + rank * per_worker for step in range(num_steps)])
    ours, alone = twins(lambda: with_memory(per_worker))

    def require_alike(call: Callable[..., object]) -> None:
        call(ours, x, y, num_rows)
        call(alone, x[mine], y[mine], per_worker)
        assert len(states_of(ours)) == 6
        assert all(state.any() for state in states_of(alone))
        require_close(states_of(ours), states_of(alone))

    def fit_in_order(model: keras.Model, x: np.ndarray, y: np.ndarray, batch: int) -> None:
        model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)

    require_alike(fit_in_order)
    require_alike(lambda model, x, y, batch: model.evaluate(x, y, batch_size=batch, verbose=0))
    require_alike(lambda model, x, _, batch: model.predict(x, batch_size=batch, verbose=0))
    for model in (ours, alone):
        for layer in model.layers[1:-1]:
            layer.reset_state()
    assert not any(state.any() for state in states_of(ours)[1:])
    require_alike(fit_in_order)


class Words(keras.layers.Layer):
    """Rows of a table by number, and scores by the same table."""

    def build(self, shape: object) -> None:
        self.table = self.add_weight(shape=(30, 8), initializer=keras.initializers.RandomNormal(seed=3))

    def call(self, numbers: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.reduce_sum(tf.gather(self.table.value, numbers), 1), self.table.value, transpose_b=True)


@in_test_all
def embeddings_train_as_in_one_process() -> None:
    numbers = np.random.default_rng(3)
    words, labels = numbers.integers(0, 30, (BATCH * STEPS, 6)), numbers.integers(0, 30, BATCH * STEPS)
    for clipped in ({}, {"global_clipnorm": 0.1}):

        def build() -> keras.Model:
            table = keras.layers.Embedding(30, 8, embeddings_initializer=keras.initializers.RandomNormal(seed=1))
            layers = [keras.layers.Input((6,), dtype="int32"), table, keras.layers.Flatten(), dense(30, 2)]
            model = keras.Sequential(layers)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01, **clipped), loss=loss, metrics=["accuracy"])  # noqa: B023
            return model

        ours, alone = twins(build)
        with pushed(2 * STEPS, ours.trainable_variables[1:]):
            found = fit(ours, x=words, y=labels)
        wanted = fit(alone, x=words, y=labels)
        require_equal(ours, alone)
        require_same_history(found, wanted)


def tied_embeddings_train_as_in_one_process() -> None:
    numbers = np.random.default_rng(4)
    words, labels = numbers.integers(0, 30, (BATCH * STEPS, 6)), numbers.integers(0, 30, BATCH * STEPS)

    def build() -> keras.Model:
        model = keras.Sequential([keras.layers.Input((6,), dtype="int32"), Words()])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss=loss)
        return model

    trained_alike(build, x=words, y=labels)


def ranks_may_use_different_numbers_of_rows_and_none() -> None:
    rank, size = coarse.rank(), strategy().num_replicas_in_sync
    of_rank = [np.arange(5 * other, dtype="i4") % 7 for other in range(size)]  # rank 0 has none

    def build() -> tuple[tf.Variable, keras.optimizers.Optimizer]:
        return tf.Variable(tf.ones((7, 3)), name="table"), keras.optimizers.Adam(0.1)

    def step(table: tf.Variable, optimizer: keras.optimizers.Optimizer, numbers: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            picked = tf.gather(table, numbers)
            loss = tf.reduce_sum(picked * picked * tf.cast(tf.reshape(numbers + 1, (-1, 1)), tf.float32))
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, table)])

    with strategy().scope():
        ours, optimizer = build()
    alone, reference = build()
    signature = tf.TensorSpec([None], tf.int32)
    ours_step = tf.function(lambda n: strategy().run(step, (ours, optimizer, n)), input_signature=[signature])
    for _ in range(STEPS):
        ours_step(of_rank[rank])
        step(alone, reference, tf.constant(np.concatenate(of_rank)))
    require_same_everywhere([ours.numpy()])
    require_close([ours.numpy()], [alone.numpy()])


def a_rank_that_traces_a_step_more_often_sends_the_same_states() -> None:
    with strategy().scope():
        model = mlp(keras.layers.BatchNormalization(momentum=0.8))
        averages = [tf.Variable(tf.zeros(variable.shape), trainable=False) for variable in model.trainable_variables]
        optimizer = keras.optimizers.SGD(0.1)

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True))) + tf.reduce_sum(averages[0][0])
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for average, variable in zip(averages, variables, strict=True):
            average.assign(0.9 * average + 0.1 * variable)

    traced = tf.function(lambda x: strategy().run(step, (x,)))
    for num_rows in (4, 4, 4 if coarse.rank() == 0 else 3):  # the last batch of a dataset, for instance
        traced(tf.random.stateless_normal((num_rows, 16), [coarse.rank(), num_rows]))
    require_same_everywhere([*model.get_weights(), *averages])


CLAIMS = [
    normalisation_is_that_of_mirrored_strategy_on_the_same_split,
    evaluation_is_that_of_one_process_with_rank_0s_moving_statistics,
    moving_statistics_stay_equal_in_eager_training_and_frozen_layers,
    states_of_rows_stay_each_workers,
    normalisation_over_the_global_batch_is_that_of_one_process,
    a_loss_scale_grows_alike,
    an_overflow_on_one_rank_alone_is_skipped_by_all,
    bfloat16_trains_alike,
    embeddings_train_as_in_one_process,
    tied_embeddings_train_as_in_one_process,
    ranks_may_use_different_numbers_of_rows_and_none,
    a_rank_that_traces_a_step_more_often_sends_the_same_states,
]
