"""Gradients travel as a strategy's wire says, and their sums may be late; all else is exact and of its step."""

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.session import current
from tests.mpi.tf.training import (
    BATCH,
    STEPS,
    compiled,
    dense,
    fit,
    mlp,
    require_close,
    require_same_history_everywhere,
    require_same_model_everywhere,
    rows,
    strategy,
    twins,
)


def deep() -> keras.Model:
    return compiled(mlp(dense(64, 3, activation="tanh"), hidden=64))


def with_states() -> keras.Model:
    return compiled(mlp(keras.layers.BatchNormalization(momentum=0.5), hidden=64))


def a_step_applies_the_sums_of_the_round_that_the_strategy_says() -> None:
    """By hand, where all values travel: the gradients of the global batch, some steps late; zeros come at first."""
    if getattr(current().strategy, "share", 1.0) < 1:
        return
    ours, alone = twins(deep)
    fit(ours, epochs=2)
    require_same_model_everywhere(ours)
    x, y = rows()
    late = [[np.zeros(variable.shape, "f4") for variable in alone.trainable_variables]] * current().strategy.lag
    for number in range(2 * STEPS):
        begin = number % STEPS * BATCH
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((y[begin : begin + BATCH] - alone(x[begin : begin + BATCH])) ** 2)
        late.append(tape.gradient(loss, alone.trainable_variables))
        alone.optimizer.apply_gradients(zip(late.pop(0), alone.trainable_variables, strict=True))
    require_close(ours.get_weights(), alone.get_weights(), 1e-4)


def states_of_layers_are_exact_whatever_travels_of_gradients() -> None:
    with strategy().scope():
        model = with_states()
    history = fit(model, epochs=3)
    require_same_model_everywhere(model)
    require_same_history_everywhere(history)
    mean, variance = model.layers[1].non_trainable_variables
    seen = model.layers[0](rows()[0]).numpy()
    assert np.linalg.norm(mean - seen.mean(0)) < 0.5 * np.linalg.norm(seen.mean(0)) + 0.5
    assert (np.asarray(variance) > 0.01).any()
    assert np.count_nonzero(np.asarray(mean)) > 32


def sums_of_what_is_no_gradient_are_exact() -> None:
    values = tf.range(5000, dtype=tf.float32) + float(coarse.rank())
    size = strategy().num_replicas_in_sync
    wanted = np.arange(5000) * size + sum(range(size))
    for _ in range(3):
        require_close([strategy().reduce("SUM", values, axis=None)], [wanted])


CLAIMS = [
    a_step_applies_the_sums_of_the_round_that_the_strategy_says,
    states_of_layers_are_exact_whatever_travels_of_gradients,
    sums_of_what_is_no_gradient_are_exact,
]
