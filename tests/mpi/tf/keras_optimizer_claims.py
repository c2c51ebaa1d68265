"""What Keras claims of an optimizer's step under a strategy, where each worker brings a gradient of its own."""

import keras
import numpy as np
import tensorflow as tf

from tests.mpi.tf.two_workers import NUM_WORKERS, RANK, STRATEGY, assert_alike, numbers, sums
from tests.support.claims import raises

SGD = keras.optimizers.SGD
RANKS = sum(range(1, NUM_WORKERS + 1))
"""The sum over all workers of their rank and one, by which each worker's gradient is multiplied."""


def _apply(optimizer: keras.Optimizer, *pairs: tuple[np.ndarray, keras.Variable]) -> None:
    """One step, with the gradients as they are here."""
    STRATEGY.run(lambda: optimizer.apply_gradients([(tf.constant(grad, tf.float32), v) for grad, v in pairs]))


def _variable(values: object, name: str | None = None) -> keras.Variable:
    with STRATEGY.scope():
        return keras.Variable(np.asarray(values, np.float32), name=name)


def _optimizer(**settings: object) -> keras.Optimizer:
    with STRATEGY.scope():
        return SGD(**settings)


def an_optimizer_made_in_scope_is_made_again_from_its_config():
    settings = {"learning_rate": 0.3, "momentum": 0.07, "nesterov": True, "weight_decay": 0.002}
    config = _optimizer(**settings).get_config()
    assert {name: config[name] for name in settings} == {**settings, "learning_rate": np.float32(0.3)}
    with STRATEGY.scope():
        assert SGD.from_config(config).get_config() == config


def one_step_subtracts_the_rate_times_the_sum_of_all_workers_gradients():
    grad = np.array([1.0, 6.0, 7.0, 2.0])
    begin = np.array([1.0, 2.0, 3.0, 4.0])
    optimizer, variable = _optimizer(learning_rate=0.5, momentum=0.1), _variable(begin)
    _apply(optimizer, (grad * (RANK + 1), variable))
    np.testing.assert_allclose(numbers(variable.value), begin - 0.5 * grad * RANKS, rtol=1e-6)
    with STRATEGY.scope():
        plain = tf.Variable(begin, dtype=tf.float32)
        STRATEGY.run(lambda: optimizer.__class__(0.5).apply_gradients([(tf.constant(grad, tf.float32), plain)]))
    np.testing.assert_allclose(numbers(plain), begin - 0.5 * grad * NUM_WORKERS, rtol=1e-6)


def weight_decay_is_applied_once_however_many_workers_there_are():
    first, excluded, other = _variable(2.0), _variable(3.0, name="excluded"), _variable(4.0)
    _apply(_optimizer(learning_rate=1.0, weight_decay=0.01), (np.zeros(()), first))
    by_name = _optimizer(learning_rate=1.0, weight_decay=0.01)
    by_name.exclude_from_weight_decay(var_names=["excluded"])
    _apply(by_name, (np.zeros(()), first), (np.zeros(()), excluded))
    by_list = _optimizer(learning_rate=1.0, weight_decay=0.01)
    by_list.exclude_from_weight_decay(var_list=[other])
    _apply(by_list, (np.zeros(()), first), (np.zeros(()), other))
    found = [float(numbers(variable.value)) for variable in (first, excluded, other)]
    np.testing.assert_allclose(found, [2.0 * 0.99**3, 3.0, 4.0], rtol=1e-6)


def several_nesterov_steps_follow_the_rule_on_the_sum_of_gradients():
    momentum, rate = 0.9, 0.01
    optimizer = _optimizer(learning_rate=rate, momentum=momentum, nesterov=True)
    x, velocity, variable = np.ones(10), np.zeros(10), _variable(np.ones(10))
    for step in range(5):
        grad = np.arange(0.1, 1.1, 0.1) * (1 + step)
        _apply(optimizer, (grad * (RANK + 1), variable))
        velocity = momentum * velocity - rate * grad * RANKS
        x = x + momentum * velocity - rate * grad * RANKS
        np.testing.assert_allclose(numbers(variable.value), x, rtol=1e-5)
    assert_alike(variable.value)


def clipping_by_norm_clips_the_sum_of_all_workers_gradients():
    variable = _variable([0.0, 0.0])
    grad = np.array([100.0, 100.0]) if RANK == 0 else np.array([-99.0, 0.0])
    _apply(_optimizer(learning_rate=1.0, clipnorm=1.0), (grad, variable))
    total = sums(grad)
    np.testing.assert_allclose(numbers(variable.value), -total / np.linalg.norm(total), rtol=1e-6)


def clipping_by_value_clips_the_sum_of_all_workers_gradients():
    variable = _variable([0.0, 0.0])
    grad = np.array([100.0, -0.5]) if RANK == 0 else np.array([-99.75 / (NUM_WORKERS - 1), 0.0])
    _apply(_optimizer(learning_rate=1.0, clipvalue=1.0), (grad, variable))
    np.testing.assert_allclose(numbers(variable.value), [-0.25, 0.5], rtol=1e-4)


def a_step_without_state_is_refused():
    optimizer, variable = SGD(0.5), keras.Variable(np.ones(4))
    optimizer.build([variable])
    with raises(ValueError, "not supported"):
        optimizer.stateless_apply(optimizer.variables, [np.ones(4)], [variable])


def averages_of_weights_follow_the_steps_and_overwrite_them_in_time():
    begin, grad = np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])
    variable = _variable(begin)
    optimizer = _optimizer(learning_rate=1.0 / RANKS, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)
    weights, average = begin, begin
    for step in range(1, 4):
        _apply(optimizer, (grad * (RANK + 1), variable))
        weights = weights - grad
        average = weights if step == 1 else 0.9 * average + 0.1 * weights
        weights = average if step == 3 else weights
        np.testing.assert_allclose(numbers(variable.value), weights, rtol=1e-5)
        np.testing.assert_allclose(numbers(optimizer._model_variables_moving_average[0].value), average, rtol=1e-5)
    assert_alike(variable.value)


def accumulated_gradients_are_sums_over_all_workers():
    begin, grad = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0], [2.0, 2.0]])
    variable, optimizer = _variable(begin), _optimizer(learning_rate=1.0, gradient_accumulation_steps=3)
    mine = grad * (RANK + 1)
    total = sums(mine)
    for pass_ in (1, 2):
        _apply(optimizer, (mine, variable))
        np.testing.assert_array_equal(numbers(variable.value), begin)
        np.testing.assert_allclose(numbers(optimizer._accumulated_gradients[0].value), total * pass_)
        assert (int(optimizer._iterations.numpy()), int(optimizer.iterations.numpy())) == (pass_, 0)
    _apply(optimizer, (mine, variable))
    np.testing.assert_allclose(numbers(variable.value), begin - total, rtol=1e-6)
    np.testing.assert_array_equal(numbers(optimizer._accumulated_gradients[0].value), np.zeros((2, 2)))
    assert (int(optimizer._iterations.numpy()), int(optimizer.iterations.numpy())) == (3, 1)


CLAIMS = [
    an_optimizer_made_in_scope_is_made_again_from_its_config,
    one_step_subtracts_the_rate_times_the_sum_of_all_workers_gradients,
    weight_decay_is_applied_once_however_many_workers_there_are,
    several_nesterov_steps_follow_the_rule_on_the_sum_of_gradients,
    clipping_by_norm_clips_the_sum_of_all_workers_gradients,
    clipping_by_value_clips_the_sum_of_all_workers_gradients,
    a_step_without_state_is_refused,
    averages_of_weights_follow_the_steps_and_overwrite_them_in_time,
    accumulated_gradients_are_sums_over_all_workers,
]
